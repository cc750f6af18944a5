"""Evaluates jaxprs in double precision: the same equations, every float as a float64.

Two programs then differ either by the order of sums, which is 1e-16, or by a mistake. Calls, loops
and branches are followed inside; operations on bits (bitcasts, `nextafter`), callbacks and foreign
functions are computed in their own types.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow._all_reduce import all_reduce_p, reduce_over_axis
from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Literal,
    bind,
    branches_of,
    called_by,
    closed_jaxpr,
    is_key,
    linear_solve_of,
    scan_of,
    while_of,
    with_programs,
)
from fragflow._jax_typed import Jitted, jit, make_jaxpr, switch


class Tap(NamedTuple):
    """An equation's results; in a loop, those of every step in the order of time."""

    eqn: Eqn
    calls: tuple[Eqn, ...]
    """around it, the outermost first"""
    results: list[Any]


Taps = list[Tap]

_IN_OWN_TYPES = ("bitcast_convert_type", "nextafter", "ffi_call", "pallas_call")
_TYPES = ("new_dtype", "dtype", "preferred_element_type")
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_OLDER = {"xla_cpu_use_fusion_emitters": False}
"""the older way of fusing, which compiles programs in half the time; JAX 0.12 does not have it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleContext:
    """The context in which equations are evaluated."""

    axis: str | None = None
    """the axis over which `all_mean` and its like reduce; None: they are the identity"""
    answer: Callable[[Eqn, Sequence[Any], Any], list[Any] | None] = lambda _eqn, _args, _ids: None
    """plays environments: (equation, arguments, their indices) -> results; None for all other
    equations"""
    ids: Any = None
    """the indices of the environments that are here"""
    calls: tuple[Eqn, ...] = ()
    """the calls around the equations, the outermost first"""


@contextmanager
def in_double() -> Generator[None]:
    """A context in which this thread's JAX has float64, and computes on the CPU."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def compiled(function: Callable[..., Any]) -> Jitted:
    """`function`, compiled in the least time: it will run a few times only."""
    return jit(function, compiler_options=_least_time())


@cache
def _least_time() -> dict[str, Any]:
    try:
        jit(lambda: 0, compiler_options=_OLDER).lower().compile()
    except jax.errors.JaxRuntimeError:
        return _QUICKLY
    return _QUICKLY | _OLDER


def compiled_together(
    functions: Sequence[Callable[..., Any]], *arguments: Any
) -> list[Callable[..., Any]]:
    """`functions` of the same arguments: while one is compiled, the next is traced."""

    def finish(lowered: Any) -> Callable[..., Any]:
        with in_double():  # it holds for one thread only
            return lowered.compile()

    with ThreadPoolExecutor() as pool:
        made = [pool.submit(finish, compiled(f).lower(*arguments)) for f in functions]
        return [future.result() for future in made]


def wide(x: Any) -> Any:
    """`x` in double precision, if it is a float or complex."""
    if is_key(x):
        return x
    return jnp.asarray(x, wide_type(x.dtype))


def wide_type(dtype: Any) -> Any:
    """The type that stands for `dtype` in double precision."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def literal(variable: Any) -> Any:
    """A literal's value in double precision."""
    return wide(np.asarray(variable.val, variable.aval.dtype))


def evaluate(
    closed: ClosedJaxpr, args: Sequence[Any], setting: DoubleContext, taps: Taps | None = None
) -> list[Any]:
    """The results of a program; `taps`, if given, collect those of all its equations."""
    values: dict[Any, Any] = dict(
        zip(closed.jaxpr.constvars, [_constant(c) for c in closed.consts], strict=True)
    )
    values.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(variable: Any) -> Any:
        return literal(variable) if isinstance(variable, Literal) else values[variable]

    for eqn in closed.jaxpr.eqns:
        results = equation(eqn, [read(v) for v in eqn.invars], setting, taps)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in closed.jaxpr.outvars]


def _constant(value: Any) -> Any:
    return wide(value if hasattr(value, "dtype") else np.asarray(value))


def equation(
    eqn: Eqn, args: Sequence[Any], setting: DoubleContext, taps: Taps | None = None
) -> list[Any]:
    """The results of one equation."""
    if not eqn.outvars:
        return []  # prints something, at most
    results = setting.answer(eqn, args, setting.ids)
    if results is None:
        results = _results(eqn, args, setting, taps)
    if taps is not None:
        taps.append(Tap(eqn, setting.calls, list(results)))
    return results


def _results(eqn: Eqn, args: Sequence[Any], setting: DoubleContext, taps: Taps | None) -> list[Any]:
    name = eqn.primitive.name
    if eqn.primitive is all_reduce_p:
        operation = eqn.params["operation"]
        return list(args) if setting.axis is None else _reduced(operation, args, setting.axis)
    called = called_by(eqn)
    if called is not None:
        return evaluate(called, args, replace(setting, calls=(*setting.calls, eqn)), taps)
    match name:
        case "scan":
            return _scan(eqn, args, setting, taps)
        case "while":
            return _while(eqn, args, setting)
        case "cond":
            branches = [_function(branch, setting) for branch in branches_of(eqn)]
            return list(switch(args[0], branches, *args[1:]))
        case "custom_linear_solve":
            solver, used = linear_solve_of(eqn)
            return evaluate(solver, [args[k] for k in used], setting)
        case "reduce_precision":
            return list(args)
        case _ if name in _IN_OWN_TYPES or "callback" in name:
            narrow = [
                a if is_key(v.aval) else a.astype(v.aval.dtype)
                for a, v in zip(args, eqn.invars, strict=True)
            ]
            return [wide(r) for r in bind(eqn, narrow)]
        case _:
            return bind(_widened(eqn, setting), args)


def _reduced(operation: str, args: Sequence[Any], axis: str) -> list[Any]:
    """Reduces over an axis; sums keep their type, as they do in a run."""
    return [
        r.astype(a.dtype)
        for r, a in zip(reduce_over_axis(operation, args, axis), args, strict=True)
    ]


def _widened(eqn: Eqn, setting: DoubleContext) -> Eqn:
    """An equation that takes and gives wide types."""
    changed = {
        name: wide_type(eqn.params[name]) for name in _TYPES if eqn.params.get(name) is not None
    }
    if "preferred_element_type" in changed:
        changed["precision"] = None  # it is for narrow types; wide ones have only one

    def program(inner: ClosedJaxpr) -> ClosedJaxpr:
        types = [
            jax.ShapeDtypeStruct(v.aval.shape, wide_type(v.aval.dtype)) for v in inner.jaxpr.invars
        ]
        return make_jaxpr(_function(inner, setting))(*types)

    return with_programs(eqn.replace(params={**eqn.params, **changed}), program)


def _function(closed: ClosedJaxpr, setting: DoubleContext) -> Callable[..., list[Any]]:
    return lambda *args: evaluate(closed_jaxpr(closed), args, setting)


def _scan(eqn: Eqn, args: Sequence[Any], setting: DoubleContext, taps: Taps | None) -> list[Any]:
    scan = scan_of(eqn)
    inside: Taps = []

    def step(carry: Any, xs: Any) -> Any:
        seen: Taps | None = None if taps is None else []
        results = evaluate(scan.body, [*args[: scan.consts], *carry, *xs], setting, seen)
        inside[:] = seen or ()
        out = results[: scan.carries], results[scan.carries :]
        return out[0], (out[1], [tap.results for tap in seen or ()])

    first, slices = args[scan.consts :][: scan.carries], args[scan.consts + scan.carries :]
    carry, (rows, seen) = lax.scan(
        step, list(first), list(slices), length=scan.length, reverse=scan.reverse
    )
    if taps is not None:
        # Steps in the order of time.
        in_time = [[jnp.flip(r, 0) if scan.reverse else r for r in made] for made in seen]
        taps += [t._replace(results=made) for t, made in zip(inside, in_time, strict=True)]
    return [*carry, *rows]


def _while(eqn: Eqn, args: Sequence[Any], setting: DoubleContext) -> list[Any]:
    loop = while_of(eqn)
    split = loop.test_consts + loop.consts
    test_args, body_args = args[: loop.test_consts], args[loop.test_consts : split]

    def going(carry: Sequence[Any]) -> Any:
        return evaluate(closed_jaxpr(loop.test), [*test_args, *carry], setting)[0]

    def body(carry: Sequence[Any]) -> list[Any]:
        new = evaluate(closed_jaxpr(loop.body), [*body_args, *carry], setting)
        # A condition per row: each row ends by itself.
        rows = going(carry)
        return [_where(rows, n, o) for n, o in zip(new, carry, strict=True)] if rows.ndim else new

    return list(lax.while_loop(lambda c: jnp.any(going(c)), body, list(args[split:])))


def _where(rows: Any, new: Any, old: Any) -> Any:
    return jnp.where(rows.reshape(rows.shape + (1,) * (new.ndim - rows.ndim)), new, old)
