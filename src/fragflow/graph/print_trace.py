"""Prints equations, and a trace of them: the same text under every JAX that makes the same ones.

Parameters are left out: they differ from release to release, and types say most of it.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fragflow._all_reduce import all_reduce_p
from fragflow._jax import (
    DropVar,
    Eqn,
    Jaxpr,
    Literal,
    called_by,
    component_of,
    is_key,
    num_turns,
    result_name,
    scan_of,
)
from fragflow.graph.stages import TraceStage
from fragflow.graph.tracing.trace import ITERATION, SOURCES, Trace, components_of

WIDTH = 100
INDENT = "  "
_TOGETHER = "\N{NO-BREAK SPACE}"
"""between words that stay in one line"""
_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf", "complex": "c"}


def in_lines(text: str, indent: str = "", margin: str = "") -> list[str]:
    """`text` in lines of at most `WIDTH` columns, all but the first further in.

    `margin` stands before the first line, and as much room before the others.
    """
    rest = " " * (len(margin) - 1) + margin[-1:]
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=margin + indent,
        subsequent_indent=rest + indent + 2 * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TOGETHER, " ") for line in lines]


def type_of(aval: Any) -> str:
    """A type as `f32[8,3]`."""
    dims = ",".join(map(str, aval.shape))
    return f"{'key' if is_key(aval) else short(aval.dtype)}[{dims}]"


def short(dtype: Any) -> str:
    word = str(dtype)
    family = word.rstrip("0123456789")
    return _SHORT.get(family, family) + word[len(family) :]


def typed(name: str, aval: Any) -> str:
    return f"{name}:{_TOGETHER}{type_of(aval)}"


def literal(value: Any) -> str:
    """A constant as it is written; one that is not a number by its type."""
    if np.shape(value) != () or is_key(value):
        return type_of(value)
    number = np.asarray(value)
    if number.dtype == bool:
        return str(bool(number))
    return f"{number.item():g}" if number.dtype.kind in "iuf" else str(number)


def call_of(eqn: Eqn) -> str:
    """The function that an equation applies: a component, a reduction, a primitive."""
    name = component_of(eqn)
    if name is not None:
        return f"component {name}"
    if eqn.primitive is all_reduce_p:
        return f"all_{eqn.params['operation']}"
    turns, inside = num_turns(eqn), ", ".join(sorted(components_of(eqn)))
    called = f" {eqn.params['name']}" if "name" in eqn.params else ""
    times = f" ×{turns}" if turns else ""
    return eqn.primitive.name + called + times + (f" of {inside}" if inside else "")


def statement(results: Sequence[str], eqn: Eqn, operands: Sequence[str]) -> str:
    return f"{', '.join(results)} = {call_of(eqn)}({', '.join(operands)})"


def unique_names() -> Callable[[str], str]:
    """Makes a function that gives a name once: after `obs` comes `obs_2`."""
    taken: set[str] = set()

    def name(wanted: str) -> str:
        found, count = wanted, 1
        while found in taken:
            count += 1
            found = f"{wanted}_{count}"
        taken.add(found)
        return found

    return name


def print_trace(stage: TraceStage) -> str:
    """The undivided program's trace, and the extents of the others."""
    trace, *others = stage.traces
    also = f", and the same for {', '.join(str(t.extent) for t in others)}" if others else ""
    out = in_lines(f"trace · {trace.extent}{also}")
    return "\n".join([*out, "", *_TracePrinter(trace).lines()]) + "\n"


class _TracePrinter:
    """Names variables in the order of the program, and prints its equations."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._unique = unique_names()
        self._names: dict[Any, str] = {}

    def lines(self) -> Iterator[str]:
        trace, jaxpr = self._trace, self._trace.closed.jaxpr
        yield "given"
        labels = [*trace.state_labels, ITERATION, *SOURCES]
        for variable, label in zip(jaxpr.invars, labels, strict=True):
            yield from in_lines(typed(self._name(variable, label), variable.aval), INDENT)
        for variable in jaxpr.constvars:
            yield from in_lines(typed(self._name(variable, "const"), variable.aval), INDENT)
        yield "train"
        yield from self._block(jaxpr, INDENT)
        yield "hands on"
        results = [
            *trace.state_labels,
            *(f"metric {label}" for label in trace.metric_labels),
            *(f"episodes {stat}" for stat in trace.episodes),
        ]
        for label, variable in zip(results, jaxpr.outvars, strict=True):
            yield from in_lines(f"{label} = {self._read(variable)}", INDENT)

    def _name(self, variable: Any, wanted: str) -> str:
        self._names[variable] = self._unique(wanted)
        return self._names[variable]

    def _read(self, variable: Any) -> str:
        return literal(variable.val) if isinstance(variable, Literal) else self._names[variable]

    def _block(self, jaxpr: Jaxpr, indent: str) -> Iterator[str]:
        for eqn in jaxpr.eqns:
            if component_of(eqn) is None and components_of(eqn):
                yield from self._opened(eqn, indent)
            operands = [self._read(v) for v in eqn.invars]
            results = [
                "_" if isinstance(v, DropVar) else typed(self._name(v, result_name(eqn, k)), v.aval)
                for k, v in enumerate(eqn.outvars)
            ]
            yield from in_lines(statement(results, eqn, operands), indent)

    def _opened(self, eqn: Eqn, indent: str) -> Iterator[str]:
        """The body of a loop or call around components, before the line of its results."""
        inside, closed = indent + INDENT, called_by(eqn)
        fixed = carried = len(eqn.invars)
        if eqn.primitive.name == "scan":
            scan = scan_of(eqn)
            fixed, carried, closed = scan.consts, scan.consts + scan.carries, scan.body
        if closed is None:
            return
        yield from in_lines(f"in {call_of(eqn)}:", indent)
        for k, (variable, given) in enumerate(zip(closed.jaxpr.invars, eqn.invars, strict=True)):
            if k < fixed:
                self._names[variable] = self._read(given)
            else:
                how = "carry" if k < carried else "slice"
                name = how if isinstance(given, Literal) else self._read(given)
                text = f"{how} {typed(self._name(variable, name), variable.aval)}"
                yield from in_lines(f"{text} of {self._read(given)}", inside)
        for variable in closed.jaxpr.constvars:
            self._name(variable, "const")
        yield from self._block(closed.jaxpr, inside)
        results = ", ".join(self._read(v) for v in closed.jaxpr.outvars)
        yield from in_lines(f"hands on {results}", inside)
