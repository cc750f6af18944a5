"""Packs what a loop keeps for itself into few arrays.

A compiled call costs by the number of arrays that go in and come out. Carries that only one segment
reads and writes, and the outputs it collects, become one array of 32-bit words each.
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
from fragflow.runtime.evaluate import Local
from fragflow.runtime.schedule import Enter, Instruction, Put, Repeat, Run

LARGEST_ROW = 1 << 16
"""bytes; larger values gain nothing from being packed"""
SUFFIX = "@packed"


@dataclass(slots=True, kw_only=True)
class Draft:
    """A fragment's program while it is planned."""

    segments: list[list[Node | Local]]
    loops: list[Any]
    code: list[Instruction]
    shell_reads: set[Value] = field(default_factory=set)
    """what sends and loops read, apart from segments"""
    packed_avals: dict[Value, jax.ShapeDtypeStruct] = field(default_factory=dict)


def packed(
    draft: Draft,
    avals: Mapping[Value, Any],
    reads: Callable[[Sequence[Node | Local]], list[Value]],
    defines: Callable[[Sequence[Node | Local]], list[Value]],
) -> Draft:
    """Packs every innermost loop of a draft."""
    for index in range(len(draft.loops)):
        _pack_loop(draft, index, avals, reads, defines)
    return draft


def _pack_loop(draft: Draft, index: int, avals: Mapping[Value, Any], reads: Any, defines: Any) -> None:
    start = next(i for i, c in enumerate(draft.code) if isinstance(c, Enter) and c.loop == index)
    end = next(i for i, c in enumerate(draft.code) if isinstance(c, Repeat) and c.loop == index)
    body = draft.code[start + 1 : end]
    runs = [c.segment for c in body if isinstance(c, Run)]
    if any(isinstance(c, Enter) for c in body) or not runs:
        return
    loop = draft.loops[index]
    sent = {
        name
        for c in draft.code
        if isinstance(c, Put)
        for p in c.transfer.parcels
        for name in (p.value,)
    }
    all_reads = [set(reads(nodes)) for nodes in draft.segments]
    for segment in runs:
        nodes = draft.segments[segment]
        made = set(defines(nodes))
        others = set().union(*(r for k, r in enumerate(all_reads) if k != segment), sent)
        renamed = {value for k, l in enumerate(draft.loops) if k != index for _, value in l.step}
        renamed |= {value for k, l in enumerate(draft.loops) if k != index for _, value in l.entry}
        carries = [
            (inside, first, after, final)
            for (inside, first), (_, after), (final, _) in zip(
                loop.entry, loop.step, loop.exit, strict=True
            )
            if inside in all_reads[segment]
            and after in made
            and not {inside, after} & (others | renamed)
            and _is_packable(avals[inside])
        ]
        puts = [n for n in nodes if isinstance(n, Local) and n.stack is not None]
        puts = [n for n in puts if _is_packable(avals[n.stack])]
        before: list[Node | Local] = []
        later: list[Node | Local] = []
        if len(carries) > 1:
            loop = _pack_carries(draft, index, segment, carries, avals, before, later)
        if len(puts) > 1:
            _pack_stacks(draft, segment, puts, loop, avals, before, later)
        if before:
            _insert(draft, index, before, later)
            return  # positions have moved; one segment of a loop is the one that matters


def _pack_carries(
    draft: Draft, index: int, segment: int, carries: Any, avals: Any, before: Any, later: Any
) -> Any:
    loop = draft.loops[index]
    types = [avals[inside] for inside, *_ in carries]
    name = f"{loop.counter}@carries"
    first, inside, after = (f"{name}.{k}{SUFFIX}" for k in ("first", "inside", "next"))
    before.append(Local(inputs=tuple(c[1] for c in carries), outputs=(first,), function=_packer(types)))
    names = tuple(c[0] for c in carries)
    draft.segments[segment] = [
        Local(inputs=(inside,), outputs=names, function=_unpacker(types)),
        *draft.segments[segment],
        Local(inputs=tuple(c[2] for c in carries), outputs=(after,), function=_packer(types)),
    ]
    finals = tuple(c[3] for c in carries)
    later.append(Local(inputs=(inside,), outputs=finals, function=_unpacker(types)))
    gone = set(names)
    new = replace(
        loop,
        entry=(*((i, v) for i, v in loop.entry if i not in gone), (inside, first)),
        step=(*((i, v) for i, v in loop.step if i not in gone), (inside, after)),
        exit=tuple((f, i) for f, i in loop.exit if i not in gone),
    )
    draft.loops[index] = new
    words = jax.ShapeDtypeStruct((sum(map(_words, types)),), jnp.uint32)
    draft.packed_avals |= dict.fromkeys((first, inside, after), words)
    draft.shell_reads |= {first, inside, after}
    draft.shell_reads -= {c[2] for c in carries} | {c[0] for c in carries}
    return new


def _pack_stacks(
    draft: Draft, segment: int, puts: Any, loop: Any, avals: Any, before: Any, later: Any
) -> None:
    buffer = f"{loop.counter}@rows{SUFFIX}"
    outsides = tuple(n.stack for n in puts)
    types = [jax.ShapeDtypeStruct(avals[o].shape[1:], avals[o].dtype) for o in outsides]
    width = sum(_words(t) for t in types)
    length = loop.length
    draft.packed_avals[buffer] = jax.ShapeDtypeStruct((length, width), jnp.uint32)

    def zeros() -> Sequence[Any]:
        return (jnp.zeros((length, width), jnp.uint32),)

    def put(rows: Any, step: Any, *elements: Any) -> Sequence[Any]:
        (row,) = _packer(types)(*elements)
        return (lax.dynamic_update_index_in_dim(rows, row, step, 0),)

    for k, nodes in enumerate(draft.segments):
        draft.segments[k] = [
            n for n in nodes if not (isinstance(n, Local) and n.outputs and n.outputs[0] in outsides)
        ]
    draft.segments[segment].append(
        Local(
            inputs=(buffer, loop.counter, *(n.inputs[1] for n in puts)),
            outputs=(buffer,),
            function=put,
            stack=buffer,
        )
    )
    before.append(Local(inputs=(), outputs=(buffer,), function=zeros))
    later.append(
        Local(inputs=(buffer,), outputs=outsides, function=jax.vmap(_unpacker(types)))
    )


def _insert(draft: Draft, index: int, before: list[Any], later: list[Any]) -> None:
    """Adds work before and after a loop, to the segment that is there if there is one."""
    start = next(i for i, c in enumerate(draft.code) if isinstance(c, Enter) and c.loop == index)
    if start and isinstance(draft.code[start - 1], Run):
        draft.segments[draft.code[start - 1].segment] += before
    else:
        draft.segments.append(before)
        _insert_code(draft, start, Run(len(draft.segments) - 1))
    end = next(i for i, c in enumerate(draft.code) if isinstance(c, Repeat) and c.loop == index)
    following = draft.code[end + 1] if end + 1 < len(draft.code) else None
    if isinstance(following, Run):
        nodes = draft.segments[following.segment]
        draft.segments[following.segment] = [*later, *nodes]
    else:
        draft.segments.append(later)
        _insert_code(draft, end + 1, Run(len(draft.segments) - 1))


def _insert_code(draft: Draft, position: int, instruction: Instruction) -> None:
    draft.code.insert(position, instruction)
    for i, c in enumerate(draft.code):
        if isinstance(c, Repeat) and c.first >= position:
            draft.code[i] = replace(c, first=c.first + 1)


def _is_packable(aval: Any) -> bool:
    if is_key(aval):
        return False
    small = math.prod(aval.shape) * aval.dtype.itemsize <= LARGEST_ROW * max(1, len(aval.shape))
    return small and (aval.dtype.itemsize == 4 or aval.dtype == bool or aval.dtype == jnp.uint8)


def _words(aval: Any) -> int:
    return math.prod(aval.shape)


def _packer(types: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    def pack(*values: Any) -> Sequence[Any]:
        words = [
            (v.astype(jnp.uint32) if t.dtype.itemsize < 4 else lax.bitcast_convert_type(v, jnp.uint32))
            .reshape(-1)
            for v, t in zip(values, types, strict=True)
        ]
        return (jnp.concatenate(words),)

    return pack


def _unpacker(types: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    def unpack(words: Any) -> Sequence[Any]:
        values, start = [], 0
        for t in types:
            part = words[start : start + _words(t)].reshape(t.shape)
            start += _words(t)
            narrow = t.dtype.itemsize < 4
            values.append(part.astype(t.dtype) if narrow else lax.bitcast_convert_type(part, t.dtype))
        return tuple(values)

    return unpack
