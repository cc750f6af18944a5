"""Makes the first state; calls environments on the host wherever the program does."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Literal,
    bind,
    called_by,
    contains_host_call,
    host_call_p,
)

Answer = Callable[..., Sequence[Any]]
"""(method, arguments) -> results"""


def evaluate_with_host(closed: ClosedJaxpr, args: Sequence[Any], answer: Answer) -> list[Any]:
    """Returns a program's results; compiles the operations between calls of the host."""
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    waiting: list[Eqn] = []

    def flush() -> None:
        if waiting:
            values.update(_compiled(waiting, values))
            waiting.clear()

    for eqn in jaxpr.eqns:
        if not contains_host_call(eqn):
            waiting.append(eqn)
            continue
        flush()
        arguments = [_read(values, v) for v in eqn.invars]
        if eqn.primitive is host_call_p:
            results = answer(eqn.params["method"], *arguments)
        elif (inner := called_by(eqn)) is not None:
            results = evaluate_with_host(inner, arguments, answer)
        else:
            raise AssertionError(f"{eqn.primitive.name} around a call of the host")
        values.update(zip(eqn.outvars, results, strict=True))
    flush()
    return [_read(values, v) for v in jaxpr.outvars]


def _compiled(eqns: Sequence[Eqn], values: dict[Any, Any]) -> dict[Any, Any]:
    made = [v for eqn in eqns for v in eqn.outvars]
    defined = set(made)
    needed = list(
        dict.fromkeys(
            v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal) and v not in defined
        )
    )

    def run(*arguments: Any) -> list[Any]:
        local = dict(zip(needed, arguments, strict=True))
        for eqn in eqns:
            local.update(
                zip(eqn.outvars, bind(eqn, [_read(local, v) for v in eqn.invars]), strict=True)
            )
        return [local[v] for v in made]

    return dict(zip(made, jax.jit(run)(*(values[v] for v in needed)), strict=True))


def _read(values: dict[Any, Any], variable: Any) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]
