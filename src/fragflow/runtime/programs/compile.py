"""A fragment's segments as functions for its devices, compiled ahead of time."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fragflow._jax import plain_aval
from fragflow.graph.ir import Fragment, Value
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.runtime.planning.segments import Segment
from fragflow.runtime.programs.kernels_in_program import Computed, read_off
from fragflow.runtime.programs.layout import Layout, kind_of, plain_function
from fragflow.runtime.programs.trace_nodes import EvalContext, evaluate, training_chunk

ROOM = 256
"""most iterations that one call of a message-free training loop can make"""

FOR_SMALL_PROGRAMS = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
"""operations in an order for one thread: passing microseconds of work to another costs more"""

START, COUNT = "start@chunk", "count@chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """A compiled segment: call it with its inputs' arrays, get its outputs' arrays."""

    call: Callable[..., Sequence[jax.Array]]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str
    line: str
    computed: Computed = frozenset()
    """implementations of kernels that were found in it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFunction:
    """A segment as a function for its devices, not yet compiled."""

    body: Callable[[dict[Value, Any], bool], dict[Value, Any]]
    """adds the values that the segment makes; the flag says whether components are inlined"""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    avals: Mapping[Value, Any]
    kinds: Mapping[Value, Kind]
    layout: Layout
    donated: tuple[int, ...]
    options: Mapping[str, Any]
    """of the compiler"""
    name: str
    line: str
    expected: Computed = frozenset()
    """implementations of kernels that were picked"""

    @property
    def types(self) -> list[jax.ShapeDtypeStruct]:
        """Types of the arguments."""
        return [self.layout.aval(v, self.avals[v], kind_of(v, self.kinds)) for v in self.inputs]

    def function(self, inline: bool) -> Callable[..., list[Any]]:
        """The function of positional plain arrays of one replica."""
        return plain_function(
            lambda env: self.body(env, inline), self.inputs, self.outputs, self.avals
        )

    def jitted(self, inline: bool) -> Any:
        """The function of arrays as the layout has them, jitted."""
        ends = [[kind_of(v, self.kinds) for v in values] for values in (self.inputs, self.outputs)]
        wrapped = self.layout.wrap(self.function(inline), *ends)
        return jax.jit(wrapped, donate_argnums=self.donated)


def compile_function(function: SegmentFunction) -> Executable:
    """Compiles a segment."""
    call, computed = compile_safely(
        lambda inline: function.jitted(inline).lower(*function.types),
        dict(function.options) or None,
        function.expected,
    )
    return Executable(
        call=call,
        inputs=function.inputs,
        outputs=function.outputs,
        name=function.name,
        line=function.line,
        computed=computed,
    )


def compile_safely(
    lowered: Callable[[bool], Any], options: Mapping[str, Any] | None, expected: Computed
) -> tuple[Callable[..., Sequence[jax.Array]], Computed]:
    """Compiles components apart; inlines them only if XLA would compile them wrongly."""
    asked = lowered(False)
    program = asked.compile(compiler_options=options)
    text = program.as_text()
    if has_call_with_shared_operands(text):
        asked = lowered(True)
        program = asked.compile(compiler_options=options)
        text = program.as_text()
    return program, read_off(asked, text, expected)


def segment_function(
    segment: Segment,
    avals: Mapping[Value, Any],
    kinds: Mapping[Value, Kind],
    layout: Layout,
    context: EvalContext,
    name: str,
    compiler_options: Mapping[str, Any],
) -> SegmentFunction:
    """Makes the function of the nodes between two messages."""

    def body(env: dict[Value, Any], inline: bool) -> dict[Value, Any]:
        evaluate(segment.nodes, env, replace(context, inline=inline))
        return env

    is_small = segment.is_small and layout.platform == "cpu"
    return SegmentFunction(
        body=body,
        inputs=segment.inputs,
        outputs=segment.outputs,
        avals=avals,
        kinds=kinds,
        layout=layout,
        donated=tuple(i for i, v in enumerate(segment.inputs) if v in segment.donated),
        options={**(FOR_SMALL_PROGRAMS if is_small else {}), **compiler_options},
        name=name,
        line=segment.line,
    )


def training_function(
    fragment: Fragment,
    sources: Sequence[Value],
    avals: Mapping[Value, Any],
    kinds: Mapping[Value, Kind],
    layout: Layout,
    context: EvalContext,
    compiler_options: Mapping[str, Any],
    in_place: frozenset[Value] = frozenset(),
) -> SegmentFunction:
    """Makes the function of a whole message-free training loop."""
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
        evaluate(fragment.constants, env, context)
        buffers = []
        for stack in loop.stacks:
            plain = plain_aval(avals[stack.element])
            buffers.append(jnp.zeros((ROOM, *plain.shape), plain.dtype))
        state, kept = training_chunk(
            loop, env, env[START], env[COUNT], buffers, replace(context, inline=inline)
        )
        return {**dict(zip(finals, state, strict=True)), **dict(zip(metrics, kept, strict=True))}

    return SegmentFunction(
        body=body,
        inputs=inputs,
        outputs=(*finals, *metrics),
        avals=known,
        kinds=local,
        layout=layout,
        donated=tuple(i for i, c in enumerate(loop.carries) if c.inside in in_place),
        options=compiler_options,
        name=fragment.name,
        line="",
    )


def stacked(kind: Kind) -> Kind:
    """The kind of values collected along a new first axis."""
    return replace(kind, axis=kind.axis + 1) if kind.tag is Tag.VARYING else kind


_DEFINITION = re.compile(r"^\s*(?:ROOT )?(%[\w.\-]+) = \S+.*? (\S+?)\((.*)$")
_NAME = re.compile(r"%[\w.\-]+")
_VIEWS = ("bitcast", "reshape", "copy-done", "optimization-barrier")


def has_call_with_shared_operands(hlo: str) -> bool:
    """True if a call in an optimised program is given one buffer twice."""
    origin: dict[str, str] = {}
    operands: list[str]
    for line in hlo.splitlines():
        if line and not line[0].isspace():
            origin = {}  # a new computation
            continue
        found = _DEFINITION.match(line)
        if found is None:
            continue
        name, opcode, rest = str(found[1]), found[2], str(found[3])
        operands = _NAME.findall(rest.split(")", 1)[0])
        if opcode in _VIEWS and len(operands) == 1:
            origin[name] = origin.get(operands[0], operands[0])
        if opcode == "get-tuple-element":
            index = "".join(re.findall(r"index=(\d+)", rest)[:1])
            origin[name] = f"{origin.get(operands[0], operands[0])}[{index}]"
        if opcode == "call":
            buffers = [origin.get(operand, operand) for operand in operands]
            if len(set(buffers)) < len(buffers):
                return True
    return False
