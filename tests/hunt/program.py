"""A drawn program as data: operands with their relations, and a few calls of public functions.

Sizes are the one thing in which the whole program and a replica's differ: a `Size` is an expression
in `n`, the number of environments here, wherever a number may stand.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from hunt.relations import KEY, Operand, Sizes


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program: its operands first, then the results of its steps."""

    index: int


@dataclass(frozen=True, slots=True)
class Size:
    """A number that depends on how many environments are here."""

    expression: str

    def at(self, n: int) -> Any:
        return eval(self.expression, {"n": n, "np": np})


@dataclass(frozen=True, slots=True)
class Step:
    function: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    sizes: Sizes
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    counts: tuple[int, ...]
    """how many results each step has"""

    def __str__(self) -> str:
        sizes = self.sizes
        lines = [f"{sizes.replicas} replicas of n = {sizes.local}, all {sizes.whole}"]
        lines += [f"v{i}: {operand}" for i, operand in enumerate(self.operands)]
        first = len(self.operands)
        for step, count in zip(self.steps, self.counts, strict=True):
            names = ", ".join(f"v{first + i}" for i in range(count))
            args = [_shown(a) for a in step.args] + [f"{k}={_shown(v)}" for k, v in step.kwargs]
            lines.append(f"{names} = {step.function}({', '.join(args)})")
            first += count
        return "\n".join(lines)

    def run(self, args: Sequence[Any], n: int) -> list[Any]:
        """The results of all steps, with `n` environments here."""
        pool = list(args)
        for step in self.steps:
            pool += step_results(step, pool, n)
        return pool[len(args) :]

    def avals(self, whole: bool) -> list[jax.ShapeDtypeStruct]:
        return [aval(operand, self.sizes, whole) for operand in self.operands]


def aval(operand: Operand, sizes: Sizes, whole: bool) -> jax.ShapeDtypeStruct:
    shape = operand.whole_shape(sizes) if whole else operand.shape
    dtype = key_dtype() if operand.dtype == KEY else np.dtype(operand.dtype)
    return jax.ShapeDtypeStruct(shape, dtype)


@functools.cache
def key_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0)).dtype


def step_results(step: Step, pool: Sequence[Any], n: int) -> list[Any]:
    """The arrays that a call returns."""
    args = [_filled(a, pool, n) for a in step.args]
    kwargs = {k: _filled(v, pool, n) for k, v in step.kwargs}
    results = jax.tree.leaves(resolve(step.function)(*args, **kwargs))
    return [r for r in results if isinstance(r, jax.Array)]


@functools.cache
def resolve(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _filled(argument: Any, pool: Sequence[Any], n: int) -> Any:
    match argument:
        case Ref(index):
            return pool[index]
        case Size():
            return argument.at(n)
        case slice():
            ends = (argument.start, argument.stop, argument.step)
            return slice(*(_filled(end, pool, n) for end in ends))
        case tuple() | list() if type(argument) in (tuple, list):
            return type(argument)(_filled(a, pool, n) for a in argument)
    return argument


def refs_in(argument: Any) -> Iterator[int]:
    match argument:
        case Ref(index):
            yield index
        case tuple() | list():
            for inner in argument:
                yield from refs_in(inner)


def step_refs(step: Step) -> Iterator[int]:
    for argument in (*step.args, *(v for _, v in step.kwargs)):
        yield from refs_in(argument)


def renumbered(step: Step, new: Callable[[int], int]) -> Step:
    """`step` with other numbers of the values it reads."""

    def change(argument: Any) -> Any:
        match argument:
            case Ref(index):
                return Ref(new(index))
            case tuple() | list() if type(argument) in (tuple, list):
                return type(argument)(change(a) for a in argument)
        return argument

    args = tuple(change(a) for a in step.args)
    return replace(step, args=args, kwargs=tuple((k, change(v)) for k, v in step.kwargs))


def _shown(argument: Any) -> str:
    match argument:
        case Ref(index):
            return f"v{index}"
        case Size(expression):
            return expression
        case slice():
            ends = (argument.start, argument.stop, argument.step)
            return f"slice({', '.join(map(_shown, ends))})"
        case tuple() | list() if type(argument) in (tuple, list):
            inner = ", ".join(map(_shown, argument))
            comma = "," if isinstance(argument, tuple) and len(argument) == 1 else ""
            return f"({inner}{comma})" if isinstance(argument, tuple) else f"[{inner}]"
    return repr(argument)


def narrowest_float(closed: Any) -> int:
    """The bytes of the narrowest float that a program computes with, at any depth."""
    found = [float_bytes(v.aval) for v in closed.jaxpr.invars]
    for eqn in equations_in(closed.jaxpr):
        found += [float_bytes(v.aval) for v in eqn.outvars]
    return min(found, default=8)


def equations_in(jaxpr: Any) -> Iterator[Any]:
    """All equations, at any depth."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from equations_in(inner)


def float_bytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or jnp.issubdtype(dtype, jax.dtypes.extended):
        return 8
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype.itemsize // 2
    return dtype.itemsize if jnp.issubdtype(dtype, jnp.floating) else 8
