"""Divides a program around what another engine than XLA can compute of one component."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fragflow._jax import ClosedJaxpr, Eqn, Jaxpr, Literal, bind, called_by, component_of

Name = int
"""a value of the flattened program"""
Operand = Name | Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An equation with its values by name."""

    eqn: Eqn
    inputs: tuple[Operand, ...]
    outputs: tuple[Name, ...]
    is_ours: bool
    """belongs to the component"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A program as three: what the middle needs, the middle, and what is left."""

    before: tuple[Step, ...]
    middle: tuple[Step, ...]
    after: tuple[Step, ...]
    inputs: tuple[Name, ...]
    outputs: tuple[Operand, ...]
    constants: Mapping[Name, Any]


class _Flat:
    """Flattens calls of the component, and those within it."""

    def __init__(self, component: str):
        self._component = component
        self._count = 0
        self.steps: list[Step] = []
        self.constants: dict[Name, Any] = {}

    def new(self) -> Name:
        self._count += 1
        return self._count

    def add(self, jaxpr: Jaxpr, names: dict[Any, Operand], is_ours: bool) -> None:
        for eqn in jaxpr.eqns:
            inputs = tuple(v if isinstance(v, Literal) else names[v] for v in eqn.invars)
            ours = is_ours or component_of(eqn) == self._component
            called = called_by(eqn) if ours else None
            if called is not None:
                results = self.call(called, inputs, ours)
                names.update(zip(eqn.outvars, results, strict=True))
                continue
            outputs = tuple(self.new() for _ in eqn.outvars)
            names.update(zip(eqn.outvars, outputs, strict=True))
            self.steps.append(Step(eqn=eqn, inputs=inputs, outputs=outputs, is_ours=ours))

    def call(
        self, closed: ClosedJaxpr, inputs: Sequence[Operand], is_ours: bool
    ) -> tuple[Operand, ...]:
        names: dict[Any, Operand] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            names[variable] = name = self.new()
            self.constants[name] = value
        self.add(closed.jaxpr, names, is_ours)
        return tuple(v if isinstance(v, Literal) else names[v] for v in closed.jaxpr.outvars)


def divide(closed: ClosedJaxpr, component: str, can: Callable[[Step], bool]) -> Division:
    """Puts into the middle what `can` be computed elsewhere of `component`.

    What needs the middle's results, or randomness that the engine does not have, comes after it.
    """
    flat = _Flat(component)
    inputs = tuple(flat.new() for _ in closed.jaxpr.invars)
    outputs = flat.call(closed, inputs, is_ours=False)
    middle: list[Step] = []
    made_in_middle: set[Name] = set()
    made_after: set[Name] = set()
    for step in flat.steps:
        used = _names(step)
        if used & made_after:
            made_after.update(step.outputs)
        elif step.is_ours and can(step):
            middle.append(step)
            made_in_middle.update(step.outputs)
        elif used & made_in_middle:
            made_after.update(step.outputs)
    chosen = {id(step) for step in middle}
    needed = needs(middle)
    before: list[Step] = []
    for step in reversed(flat.steps):
        if id(step) not in chosen and needed.intersection(step.outputs):
            before.append(step)
            chosen.add(id(step))
            needed |= _names(step)
    return Division(
        before=tuple(reversed(before)),
        middle=tuple(middle),
        after=tuple(step for step in flat.steps if id(step) not in chosen),
        inputs=inputs,
        outputs=outputs,
        constants=flat.constants,
    )


def needs(steps: Sequence[Step], outputs: Sequence[Operand] = ()) -> set[Name]:
    """Everything that `steps` use, and the outputs."""
    used = {name for step in steps for name in _names(step)}
    return used | {o for o in outputs if not isinstance(o, Literal)}


def run_steps(steps: Sequence[Step], env: dict[Name, Any]) -> None:
    """Extends `env` by what `steps` compute."""
    for step in steps:
        args = [
            operand.val if isinstance(operand, Literal) else env[operand] for operand in step.inputs
        ]
        env.update(zip(step.outputs, bind(step.eqn, args), strict=True))


def _names(step: Step) -> set[Name]:
    return {operand for operand in step.inputs if not isinstance(operand, Literal)}
