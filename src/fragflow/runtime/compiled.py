"""Compiles a fragment's segments ahead of time for where it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fragflow._jax import ClosedJaxpr, plain_aval
from fragflow.graph.ir import Fragment, Value
from fragflow.graph.kinds import Kind, Tag
from fragflow.runtime.evaluate import Setting, evaluate, training_chunk
from fragflow.runtime.layout import Layout, OneDevice, kind_of, plain_function
from fragflow.runtime.segments import Segment
from fragflow.runtime.shared_operands import has_call_with_shared_operands

ROOM = 256
"""iterations that one call of a message-free training loop can make at most"""

FOR_SMALL_PROGRAMS = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
"""Operations in an order for one thread: handing a few microseconds of work on costs more."""

START, COUNT = "start@chunk", "count@chunk"

Engine = Callable[[ClosedJaxpr, Any, dict[str, Any]], Callable[..., Sequence[Any]]]
"""(program, device, compiler options) → what to call in its place"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled segment: call it with its inputs' arrays, get its outputs' arrays."""

    call: Callable[..., Sequence[jax.Array]]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str
    line: str


def compile_segment(
    segment: Segment,
    avals: Mapping[Value, Any],
    kinds: Mapping[Value, Kind],
    layout: Layout,
    setting: Setting,
    name: str,
    compiler_options: dict[str, Any],
    engine: Engine | None = None,
) -> Program:
    """Compiles nodes between two messages; `engine` runs a part of them outside XLA."""

    def body(env: dict[Value, Any], inline: bool) -> dict[Value, Any]:
        evaluate(segment.nodes, env, replace(setting, inline=inline))
        return env

    donated = tuple(i for i, v in enumerate(segment.inputs) if v in segment.donated)
    if segment.is_repeated and layout.platform == "cpu":
        compiler_options = {**FOR_SMALL_PROGRAMS, **compiler_options}
    ends = (segment.inputs, segment.outputs)
    if engine is None:
        call = _compile(body, *ends, avals, kinds, layout, donated, compiler_options)
    else:
        assert isinstance(layout, OneDevice), "an engine is not picked for a group"
        function = plain_function(lambda env: body(env, False), *ends, avals)
        types = [layout.aval(v, avals[v], kind_of(v, kinds)) for v in segment.inputs]
        call = engine(jax.make_jaxpr(function)(*types), layout.device, compiler_options)
    return Program(
        call=call, inputs=segment.inputs, outputs=segment.outputs, name=name, line=segment.line
    )


def compile_training(
    fragment: Fragment,
    sources: Sequence[Value],
    avals: Mapping[Value, Any],
    kinds: Mapping[Value, Kind],
    layout: Layout,
    setting: Setting,
    compiler_options: dict[str, Any],
    in_place: frozenset[Value] = frozenset(),
) -> Program:
    """Compiles a whole message-free training loop."""
    loop = fragment.loop
    states = tuple(c.init for c in loop.carries)
    finals = tuple(c.final for c in loop.carries)
    metrics = tuple(s.outside for s in loop.stacks)
    inputs = (*states, *sources, START, COUNT)
    known = dict(avals)
    known[START] = known[COUNT] = jax.ShapeDtypeStruct((), "int32")
    local = dict(kinds)
    for stack in loop.stacks:
        element = kind_of(stack.element, kinds)
        local[stack.outside] = stacked(element)

    def body(env: dict[Value, Any], inline: bool) -> dict[Value, Any]:
        evaluate(fragment.constants, env, setting)
        buffers = []
        for stack in loop.stacks:
            plain = plain_aval(avals[stack.element])
            buffers.append(jnp.zeros((ROOM, *plain.shape), plain.dtype))
        state, kept = training_chunk(
            loop, env, env[START], env[COUNT], buffers, replace(setting, inline=inline)
        )
        return {**dict(zip(finals, state, strict=True)), **dict(zip(metrics, kept, strict=True))}

    donated = tuple(i for i, c in enumerate(loop.carries) if c.inside in in_place)
    outputs = (*finals, *metrics)
    call = _compile(body, inputs, outputs, known, local, layout, donated, compiler_options)
    return Program(call=call, inputs=inputs, outputs=outputs, name=fragment.name, line="")


def stacked(kind: Kind) -> Kind:
    """The kind of values collected along a new first axis."""
    return replace(kind, axis=kind.axis + 1) if kind.tag is Tag.VARYING else kind


def _compile(
    body: Callable[[dict[Value, Any], bool], dict[Value, Any]],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    avals: Mapping[Value, Any],
    kinds: Mapping[Value, Kind],
    layout: Layout,
    donated: tuple[int, ...],
    compiler_options: dict[str, Any],
) -> Callable[..., Sequence[jax.Array]]:
    in_kinds = [kind_of(v, kinds) for v in inputs]
    out_kinds = [kind_of(v, kinds) for v in outputs]
    args = [layout.aval(v, avals[v], k) for v, k in zip(inputs, in_kinds, strict=True)]

    def compiled(inline: bool) -> Any:
        function = plain_function(lambda env: body(env, inline), inputs, outputs, avals)
        wrapped = layout.wrap(function, in_kinds, out_kinds)
        lowered = jax.jit(wrapped, donate_argnums=donated).lower(*args)
        return lowered.compile(compiler_options=compiler_options or None)

    program = compiled(inline=False)
    if has_call_with_shared_operands(program.as_text()):
        return compiled(inline=True)
    return program
