"""Canonical blocks, with which components give the same bits however environments are spread.

XLA's kernels round differently for different batch sizes. With blocks, a component that works row
by row always sees the same number of environments; a worker runs as many blocks as it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from fragflow._jax import Eqn, bind, contains_all_reduce, hosts_compiled_into
from fragflow.graph.cut import BLOCK
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Loop, Op, Value, is_host_call, walk
from fragflow.graph.replicas.kinds import Kind, Tag


def is_row_wise(op: Op, kinds: Mapping[Value, Kind]) -> bool:
    """True if a component maps rows of environments to rows, each by itself."""
    if not op.components or contains_all_reduce(op.eqn):
        return False
    if is_host_call(op) or any(hosts_compiled_into(op.eqn)):
        return False  # environments answer row by row already, all at once
    ins = [kinds[v] for v in op.inputs if v is not None]
    outs = [kinds[v] for v in op.outputs if v is not None]
    return (
        bool(outs)
        and all(k.is_cuttable for k in outs)
        and all(k.tag is Tag.UNIFORM or k.is_cuttable for k in ins)
    )


def blocked_operations(
    loop: Loop, kinds: Mapping[Value, Kind], extent: Extent
) -> Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]]:
    """Replacements, by path, for all row-wise components of a program."""
    return {
        op.path: _blocked(op, kinds, extent)
        for op in walk((loop,))
        if isinstance(op, Op) and is_row_wise(op, kinds)
    }


def _blocked(
    op: Op, kinds: Mapping[Value, Kind], extent: Extent
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    eqn: Eqn = op.eqns[replace(extent, envs=BLOCK)]
    axes = [_axis(value, kinds) for value in op.inputs]
    out_axes = [_axis(value, kinds) for value in op.outputs]
    count = -(-extent.envs // BLOCK)

    def apply(args: Sequence[Any]) -> Sequence[Any]:
        rows = [
            None if axis is None else _padded(arg, axis, count * variable.aval.shape[axis])
            for arg, axis, variable in zip(args, axes, eqn.invars, strict=True)
        ]

        def one(k: Any) -> list[Any]:
            block = [
                arg
                if row is None or axis is None
                else lax.dynamic_slice_in_dim(
                    row, k * variable.aval.shape[axis], variable.aval.shape[axis], axis
                )
                for arg, row, axis, variable in zip(args, rows, axes, eqn.invars, strict=True)
            ]
            return bind(eqn, block)

        stacked = lax.map(one, jnp.arange(count))
        return [
            out if axis is None else _joined(out, axis, old.aval.shape)
            for out, axis, old in zip(stacked, out_axes, op.eqns[extent].outvars, strict=True)
        ]

    return apply


def _axis(value: Value | None, kinds: Mapping[Value, Kind]) -> int | None:
    kind = kinds.get(value) if value is not None else None
    return kind.axis if kind is not None and kind.tag is Tag.VARYING else None


def _padded(array: Any, axis: int, length: int) -> Any:
    """`array` with its first row repeated up to `length` rows; the added ones are dropped later."""
    missing = length - array.shape[axis]
    if missing == 0:
        return array
    row = lax.slice_in_dim(array, 0, 1, axis=axis)
    return jnp.concatenate([array, *[row] * missing], axis)


def _joined(blocks: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """`[blocks, ..., rows, ...]` as `[..., all rows, ...]`, without the padding."""
    moved = jnp.moveaxis(blocks, 0, axis)
    joined = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
    return lax.slice_in_dim(joined, 0, shape[axis], axis=axis)
