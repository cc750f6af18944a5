"""Runs a fragment's nodes inside a traced function, so that they compile into one program."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from fragflow._all_reduce import all_reduce_p, reduce_over_axis
from fragflow._jax import (
    REPLICA_AXIS,
    ClosedJaxpr,
    Eqn,
    bind,
    with_axis_reductions,
    with_kernels,
    without_barriers,
)
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Constant, Loop, Node, Op, Value
from fragflow.runtime.planning.segments import RuntimeOp


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalContext:
    """The facts about a fragment that the evaluation of its nodes depends on."""

    extent: Extent
    group: int = 1
    """replicas that reduce among themselves in this program"""
    inline: bool = False
    """lets XLA inline components; see `compile_safely`"""
    replacements: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]]
    """by path, operations that run in another way (in blocks, say)"""
    kernels: Callable[[str, ClosedJaxpr], ClosedJaxpr | None]
    """the program to run in a kernel's place, if another one was picked"""


def evaluate(
    nodes: Sequence[Node | RuntimeOp], env: dict[Value, Any], context: EvalContext
) -> None:
    """Adds the values that `nodes` compute to `env`."""
    for node in nodes:
        match node:
            case Op():
                outs = _apply(node, env, context)
                for value, out in zip(node.outputs, outs, strict=True):
                    if value is not None:
                        env[value] = out
            case Constant():
                env[node.output] = jnp.asarray(node.arrays[context.extent])
            case RuntimeOp():
                outs = node.function(*(env[v] for v in node.inputs))
                env.update(zip(node.outputs, outs, strict=True))
            case Loop():
                _scan(node, env, context)
            case _:
                raise AssertionError(f"{type(node).__name__} cannot be compiled")


def _apply(op: Op, env: Mapping[Value, Any], context: EvalContext) -> Sequence[Any]:
    eqn: Eqn = op.eqns[context.extent]
    args = [
        variable.val if value is None else env[value]
        for value, variable in zip(op.inputs, eqn.invars, strict=True)
    ]
    if op.path in context.replacements:
        return context.replacements[op.path](args)
    eqn = with_kernels(eqn, context.kernels)
    if context.group > 1:
        if eqn.primitive is all_reduce_p:
            return reduce_over_axis(eqn.params["operation"], args, REPLICA_AXIS)
        eqn = with_axis_reductions(eqn, REPLICA_AXIS, context.group)
    return bind(without_barriers(eqn) if context.inline else eqn, args)


def _scan(loop: Loop, env: dict[Value, Any], context: EvalContext) -> None:
    def body(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        inner = dict(env)
        inner.update(zip((c.inside for c in loop.carries), carry, strict=True))
        inner.update(zip((s.inside for s in loop.slices), xs, strict=True))
        evaluate(loop.body, inner, context)
        return [inner[c.next] for c in loop.carries], [inner[s.element] for s in loop.stacks]

    carry, ys = lax.scan(
        body,
        [env[c.init] for c in loop.carries],
        [env[s.outside] for s in loop.slices],
        length=loop.length,
        reverse=loop.reverse,
    )
    env.update(zip((c.final for c in loop.carries), carry, strict=True))
    env.update(zip((s.outside for s in loop.stacks), ys, strict=True))


def training_chunk(
    loop: Loop,
    env: dict[Value, Any],
    start: Any,
    count: Any,
    buffers: Sequence[Any],
    context: EvalContext,
) -> tuple[list[Any], list[Any]]:
    """Makes `count` iterations of a message-free loop; returns the last state and all metrics.

    The count is a run-time number: the program is compiled once, and the bits do not depend on how
    a run is divided into chunks. Metrics go to `buffers`, which have room for the largest chunk.
    """

    def body(k: Any, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        carry, kept = state
        inner = dict(env)
        inner.update(zip((c.inside for c in loop.carries), carry, strict=True))
        if loop.counter is not None:
            inner[loop.counter] = start + k
        evaluate(loop.body, inner, context)
        values = [inner[s.element] for s in loop.stacks]
        kept = [
            lax.dynamic_update_index_in_dim(buffer, value, k, 0)
            for buffer, value in zip(kept, values, strict=True)
        ]
        return [inner[c.next] for c in loop.carries], kept

    first = [env[c.init] for c in loop.carries]
    return lax.fori_loop(0, count, body, (first, list(buffers)))
