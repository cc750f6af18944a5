"""Collects the rows that a loop step adds to several outputs as one row of one array.

The cost of a compiled call grows with the number of arrays that go in and come out. So the outputs
that one segment collects step by step share a buffer of 32-bit words, which is taken apart after
the loop.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fragflow._jax import is_key
from fragflow.graph.ir import Node, Value
from fragflow.runtime.planning.instructions import Enter, Instruction, Repeat, Run
from fragflow.runtime.planning.segments import RuntimeOp

MAX_ROW_BYTES = 1 << 16
"""larger rows gain nothing from being packed"""


@dataclass(slots=True, kw_only=True)
class PlanDraft:
    """A fragment's program while it is planned."""

    segments: list[list[Node | RuntimeOp]]
    loops: list[Any]
    code: list[Instruction]
    shell_reads: set[Value]
    """values that sends and loops read, outside segments"""
    packed_avals: dict[Value, jax.ShapeDtypeStruct] = field(default_factory=dict)


def pack_rows(draft: PlanDraft, avals: Mapping[Value, Any]) -> None:
    """Packs the collected outputs of every innermost loop."""
    for index in range(len(draft.loops)):
        start, end = _extent(draft.code, index)
        body = draft.code[start + 1 : end]
        if any(isinstance(c, Enter) for c in body):
            continue
        for segment in [c.segment for c in body if isinstance(c, Run)]:
            puts = [
                n
                for n in draft.segments[segment]
                if isinstance(n, RuntimeOp) and n.stack is not None and _is_packable(avals[n.stack])
            ]
            if len(puts) > 1:
                _pack(draft, index, segment, puts, avals)


def _extent(code: Sequence[Instruction], index: int) -> tuple[int, int]:
    start = next(i for i, c in enumerate(code) if isinstance(c, Enter) and c.loop == index)
    end = next(i for i, c in enumerate(code) if isinstance(c, Repeat) and c.loop == index)
    return start, end


def _pack(
    draft: PlanDraft,
    index: int,
    segment: int,
    puts: Sequence[RuntimeOp],
    avals: Mapping[Value, Any],
) -> None:
    loop = draft.loops[index]
    buffer = f"{loop.counter}@{segment}@packed"
    outputs = tuple(put.outputs[0] for put in puts)
    types = [jax.ShapeDtypeStruct(avals[o].shape[1:], avals[o].dtype) for o in outputs]
    shape = (loop.length, sum(math.prod(t.shape) for t in types))
    draft.packed_avals[buffer] = jax.ShapeDtypeStruct(shape, jnp.uint32)

    def add_row(rows: Any, step: Any, *elements: Any) -> Sequence[Any]:
        row = _words(elements)
        return (lax.dynamic_update_index_in_dim(rows, row, step, 0),)

    for k, nodes in enumerate(draft.segments):
        draft.segments[k] = [
            n for n in nodes if not (isinstance(n, RuntimeOp) and set(n.outputs) & set(outputs))
        ]
    elements = (put.inputs[1] for put in puts)
    draft.segments[segment].append(
        RuntimeOp(inputs=(buffer, loop.counter, *elements), outputs=(buffer,), function=add_row)
    )
    empty = RuntimeOp(
        inputs=(), outputs=(buffer,), function=lambda: (jnp.zeros(shape, jnp.uint32),)
    )
    apart = RuntimeOp(inputs=(buffer,), outputs=outputs, function=_columns(types))
    start, _ = _extent(draft.code, index)
    if start and isinstance(before := draft.code[start - 1], Run):
        draft.segments[before.segment].append(empty)
    else:
        _insert(draft, start, [empty])
    _, end = _extent(draft.code, index)
    if end + 1 < len(draft.code) and isinstance(after := draft.code[end + 1], Run):
        draft.segments[after.segment].insert(0, apart)
    else:
        _insert(draft, end + 1, [apart])


def _insert(draft: PlanDraft, position: int, nodes: list[Node | RuntimeOp]) -> None:
    """Adds a segment at `position` of the code."""
    draft.segments.append(nodes)
    draft.code.insert(position, Run(len(draft.segments) - 1))
    for i, c in enumerate(draft.code):
        if isinstance(c, Repeat) and c.first >= position:
            draft.code[i] = replace(c, first=c.first + 1)


def _is_packable(aval: Any) -> bool:
    if is_key(aval):
        return False
    row = math.prod(aval.shape[1:]) * aval.dtype.itemsize
    is_word = aval.dtype.itemsize == 4 or aval.dtype in (jnp.bool_, jnp.uint8)
    return is_word and row <= MAX_ROW_BYTES


def _words(values: Sequence[Any]) -> Any:
    """All values as one vector of 32-bit words."""
    return jnp.concatenate(
        [
            (
                v.astype(jnp.uint32)
                if v.dtype.itemsize < 4
                else lax.bitcast_convert_type(v, jnp.uint32)
            ).reshape(-1)
            for v in values
        ]
    )


def _columns(types: Sequence[jax.ShapeDtypeStruct]) -> Callable[[Any], Sequence[Any]]:
    """Makes a function that takes `[length, words]` apart again."""

    def columns(rows: Any) -> Sequence[Any]:
        values, start = [], 0
        for t in types:
            width = math.prod(t.shape)
            part = rows[:, start : start + width].reshape(-1, *t.shape)
            start += width
            is_narrow = t.dtype.itemsize < 4
            values.append(
                part.astype(t.dtype) if is_narrow else lax.bitcast_convert_type(part, t.dtype)
            )
        return values

    return columns
