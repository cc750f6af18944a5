"""Maps functions of one environment's row over all rows, as calls that are recognised later.

What is row by row by construction need not be looked into (docs/soundness.md).
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Literal,
    called_as,
    called_by,
    component_of,
    has_own_batching,
    is_key,
)
from fragflow._jax_typed import checkpoint_name, is_sequence, jit, make_jaxpr

_ENVIRONMENT = "environment:"
_ROWS = "rows:"


class RowCall(NamedTuple):
    """A marked vmap: a function of one environment's row, called for all of them."""

    name: str
    """equal for equal functions of one row"""
    rows: frozenset[int] | None
    """positions of inputs that are rows; others are shared. None: all with the environment axis"""


def environment_call(name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Calls a method of the environments inside a component: an inner jit that keeps its name."""

    def inner(*inner_args: Any) -> Any:
        return function(*inner_args)

    inner.__name__ = inner.__qualname__ = _ENVIRONMENT + name
    return jit(inner)(*args)


def row_map(function: Callable[..., Any], rows: Sequence[Any]) -> Any:
    """`jax.vmap(function)(*rows)` as an inner jit that is recognised by its name.

    The name holds a digest of the function of one row: equal in two traces, it is one function.
    """
    leaves, structure = jax.tree.flatten(tuple(rows))

    def one(*row: Any) -> Any:
        return function(*jax.tree.unflatten(structure, row))

    def inner(*arrays: Any) -> Any:
        return jax.vmap(one)(*[checkpoint_name(array, _ROWS) for array in arrays])

    of_one = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    row = make_jaxpr(one)(*of_one)
    if any(has_own_batching(eqn) for eqn in row.jaxpr.eqns):
        return inner(*leaves)  # a user's batching rule may do other work for many rows: it is read
    inner.__name__ = inner.__qualname__ = _ROWS + digest(row)
    return jit(inner)(*leaves)


def digest(closed: ClosedJaxpr) -> str:
    """A hash of a program: of its text, and of the constants that are not part of the text."""
    text = hashlib.sha256()

    def add(program: ClosedJaxpr) -> None:
        text.update(re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)).encode())
        for const in program.consts:
            if not isinstance(const, Tracer):
                array = jax.random.key_data(const) if _is_key_array(const) else const
                text.update(np.asarray(array).tobytes())
        for eqn in program.jaxpr.eqns:
            for value in eqn.params.values():
                for inner in value if is_sequence(value) else (value,):
                    if isinstance(inner, ClosedJaxpr):
                        add(inner)

    add(closed)
    return text.hexdigest()


def _is_key_array(value: Any) -> bool:
    return isinstance(value, jax.Array) and is_key(value)


def row_call(eqn: Eqn) -> RowCall | None:
    """The marked vmap over the environments that `eqn` is; None if it is not one."""
    name = component_of(eqn) or called_as(eqn, _ENVIRONMENT)
    if name in ("environment.step", "environment.reset"):
        return RowCall(name, None)
    name = called_as(eqn, _ROWS)
    closed = called_by(eqn) if name is not None else None
    if name is None or closed is None:
        return None
    marked: set[Any] = set()
    others: set[Any] = {*_variables(closed.jaxpr.outvars)}
    for inner in closed.jaxpr.eqns:
        (marked if inner.params.get("name") == _ROWS else others).update(_variables(inner.invars))
    rows = (i for i, v in enumerate(closed.jaxpr.invars) if v in marked and v not in others)
    return RowCall(name, frozenset(rows))


def _variables(atoms: Sequence[Any]) -> Iterator[Any]:
    return (a for a in atoms if not isinstance(a, Literal))
