"""The only module, besides `_jax_process`, that uses what is private to JAX."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax._src import source_info_util
from jax._src.core import ShapedArray
from jax._src.interpreters import partial_eval
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core
from jax.interpreters import batching, mlir

from fragflow._all_reduce import all_reduce_p, reduce_over_axis

if TYPE_CHECKING:
    Eqn = Any  # JAX's own class does not say that variables have shapes
else:
    Eqn = core.JaxprEqn
Jaxpr = core.Jaxpr
ClosedJaxpr = core.ClosedJaxpr
Literal = core.Literal
Var = core.Var
DropVar = core.DropVar

# Source lines name the algorithm's code, not the functions it calls to mark it, or of ours.
for _file in (
    "_jax.py",
    "_all_reduce.py",
    "api/component.py",
    "api/host.py",
    "api/reduce.py",
    "api/rows.py",
    "api/environment_batch.py",
    "ops/",
):
    source_info_util.register_exclusion(f"{Path(__file__).parent}/{_file}")

REPLICA_AXIS = "replica"
_COMPONENT = "component:"
_KERNEL = "kernel:"


def is_name_valid(name: Any) -> bool:
    """True if `name` can be the name of a component or a kernel."""
    words = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*"
    return isinstance(name, str) and re.fullmatch(words, name) is not None


def component_call(name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Calls `function` as an inner jit that carries the component's name.

    The call is not inlined: across an inlined boundary XLA contracts multiply-adds, and the bits of
    a result would depend on where the program was cut. Calls within it may be inlined again.
    """

    def inner(*inner_args: Any) -> Any:
        with set_xla_metadata(inlineable=None):
            return function(*inner_args)

    inner.__name__ = inner.__qualname__ = _COMPONENT + name
    with set_xla_metadata(inlineable="false"):
        return jax.jit(inner)(*args)


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a call that is not inlined: what uses its results rounds as if they were given.

    XLA adds up rows in another order where it fuses the sum with the operations that make them.
    """

    def call(*args: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return jax.jit(function)(*args)

    return call


def component_of(eqn: Eqn) -> str | None:
    """The name of the component that `eqn` calls, if it calls one."""
    return called_as(eqn, _COMPONENT)


def called_as(eqn: Eqn, prefix: str) -> str | None:
    """The rest of the name of the function that `eqn` calls, if it begins with `prefix`."""
    name = eqn.params.get("name") if eqn.primitive.name in ("jit", "pjit") else None
    return name.removeprefix(prefix) if name and name.startswith(prefix) else None


def kernel_call(name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Calls `function` as an inner jit that carries the kernel's name, so that it can be found."""

    def inner(*inner_args: Any) -> Any:
        return function(*inner_args)

    inner.__name__ = inner.__qualname__ = _KERNEL + name
    return jax.jit(inner)(*args)


def kernels_in(eqn: Eqn) -> Iterator[tuple[str, ClosedJaxpr]]:
    """The kernels called in `eqn`, at any depth: their names and programs."""
    name = called_as(eqn, _KERNEL)
    if name is not None:
        yield name, eqn.params["jaxpr"]
    for jaxpr in inner_jaxprs(eqn):
        for inner in jaxpr.eqns:
            yield from kernels_in(inner)


def with_kernels(eqn: Eqn, other: Callable[[str, ClosedJaxpr], ClosedJaxpr | None]) -> Eqn:
    """`eqn` with its kernels replaced by other programs, where `other` has one."""

    def change(inner: Eqn) -> list[Eqn]:
        name = called_as(inner, _KERNEL)
        closed = other(name, inner.params["jaxpr"]) if name is not None else None
        return [inner.replace(params={**inner.params, "jaxpr": closed}) if closed else inner]

    return change(_rewritten(eqn, change))[0]


# Calls of environments that are not JAX programs: known shapes, carried out by a worker.

host_call_p = core.Primitive("host_call")
host_call_p.multiple_results = True


def _host_call_impl(*args: Any, host: Any, method: str) -> list[Any]:
    return [jax.numpy.asarray(r) for r in host.call(method, *map(np.asarray, args))]


def _host_call_types(*args: Any, host: Any, method: str) -> list[Any]:
    rows = args[0].shape[0]
    return [ShapedArray((rows, *t.shape), np.dtype(t.dtype)) for t in host.result_types(method)]


def _host_call_lowering(*_: Any, host: Any, method: str) -> Any:
    raise TypeError(
        f"{host.name}.{method} runs on the host: it can neither be compiled nor be inside jit, "
        "while_loop or cond. Call env.step in step itself or in a lax.scan of it."
    )


def _host_call_batch(*_: Any, host: Any, method: str) -> Any:
    raise TypeError(f"{host.name}.{method} takes all environments at once: do not vmap it")


host_call_p.def_impl(_host_call_impl)
host_call_p.def_abstract_eval(_host_call_types)
batching.primitive_batchers[host_call_p] = _host_call_batch
mlir.register_lowering(host_call_p, mlir.lower_fun(_host_call_lowering, multiple_results=True))


def host_call(host: Any, method: str, *args: Any) -> list[Any]:
    """Calls an environment on the host; the environment axis of all values comes first."""
    return host_call_p.bind(*args, host=host, method=method)


def contains_host_call(eqn: Eqn) -> bool:
    """True if a worker must call an environment on the host for `eqn`, at any depth."""
    return _contains(eqn, lambda inner: inner.primitive is host_call_p)


# Steps of such environments that a compiled program makes by itself, through code in C++.

host_program_p = core.Primitive("host_program")
host_program_p.multiple_results = True


def _host_program_types(*args: Any, host: Any) -> list[Any]:
    return _host_call_types(*args, host=host, method="compiled_step")


def _host_program_lowering(*args: Any, host: Any) -> list[Any]:
    return host.compiled_results(*args)


host_program_p.def_abstract_eval(_host_program_types)
mlir.register_lowering(
    host_program_p, mlir.lower_fun(_host_program_lowering, multiple_results=True)
)


def host_program(host: Any, *args: Any) -> list[Any]:
    """Steps environments from within a compiled program; the environment axis comes first."""
    return host_program_p.bind(*args, host=host)


def hosts_compiled_into(eqn: Eqn) -> Iterator[Any]:
    """The hosts whose environments are stepped by `eqn`'s compiled program, at any depth."""
    if eqn.primitive is host_program_p:
        yield eqn.params["host"]
    for jaxpr in inner_jaxprs(eqn):
        for inner in jaxpr.eqns:
            yield from hosts_compiled_into(inner)


# The parameters of calls, loops and branches change from one release of JAX to the next, so they
# are read here and nowhere else (scripts/private_parameters.py looks for other places).


class Scan(NamedTuple):
    """A `scan`: its inputs are `consts` constants, `carries` carries, and slices."""

    consts: int
    carries: int
    length: int
    reverse: bool
    body: ClosedJaxpr


class While(NamedTuple):
    """A `while`: its inputs are constants of the test, constants of the body, and carries."""

    test_consts: int
    consts: int
    test: ClosedJaxpr
    body: ClosedJaxpr


def scan_of(eqn: Eqn) -> Scan:
    """Reads the parameters of a `scan`."""
    params = eqn.params
    if "num_carry" in params:  # before JAX 0.11
        consts, carries = params["num_consts"], params["num_carry"]
    else:
        consts, carries = (len(part) for part in params["ft_in"].unpack()[:2])
    return Scan(consts, carries, params["length"], params["reverse"], closed_jaxpr(params["jaxpr"]))


def while_of(eqn: Eqn) -> While:
    """Reads the parameters of a `while`."""
    params = eqn.params
    return While(
        params["cond_nconsts"], params["body_nconsts"], params["cond_jaxpr"], params["body_jaxpr"]
    )


def branches_of(eqn: Eqn) -> tuple[ClosedJaxpr, ...]:
    """The programs that a `cond` chooses from; its first input is the index."""
    return eqn.params["branches"]


_CALLS = "jit pjit closed_call core_call remat remat2 checkpoint composite custom_vmap_call "
_CALLS += "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr custom_lin"
CALLS = frozenset(_CALLS.split())
"""primitives that do nothing but call a program, which may be inlined"""


def called_by(eqn: Eqn) -> ClosedJaxpr | None:
    """The program that a plain call runs; None if `eqn` is not a plain call."""
    if eqn.primitive.name not in CALLS:
        return None
    key = next(k for k in ("jaxpr", "call_jaxpr", "call") if k in eqn.params)
    return closed_jaxpr(eqn.params[key])


def linear_solve_of(eqn: Eqn) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """The program that a `custom_linear_solve` runs, and the positions of the inputs it takes."""
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    consts = range(before, before + lengths.solve)
    return (
        closed_jaxpr(eqn.params["jaxprs"].solve),
        (*consts, *range(sum(lengths), len(eqn.invars))),
    )


def applied_by(eqn: Eqn) -> Jaxpr | None:
    """The function that a `scatter` applies to the entries it finds; None if it only writes."""
    return eqn.params["update_jaxpr"] if eqn.primitive.name == "scatter" else None


def num_turns(eqn: Eqn) -> int | None:
    """The number of times that a `scan` runs its body; None for all other equations."""
    return eqn.params["length"] if eqn.primitive.name == "scan" else None


def closed_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """`jaxpr` with its constants. From JAX 0.11 on there is one class, which always has them."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def constants_of(eqn: Eqn) -> Iterator[Any]:
    """The arrays that programs within `eqn` close over, at any depth, and the literals in them."""
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, ClosedJaxpr):
                yield from inner.consts
    for jaxpr in inner_jaxprs(eqn):
        for inner_eqn in jaxpr.eqns:
            yield from (v.val for v in inner_eqn.invars if isinstance(v, Literal))
            yield from constants_of(inner_eqn)


def with_programs(eqn: Eqn, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Eqn:
    """`eqn` with `change` applied to the programs in its parameters."""

    def other(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return change(value)
        return change(closed_jaxpr(value)).jaxpr if isinstance(value, Jaxpr) else value

    return eqn.replace(params={k: other(v) for k, v in eqn.params.items()})


def inner_jaxprs(eqn: Eqn) -> Iterator[Jaxpr]:
    """The jaxprs in an equation's parameters (loop bodies, branches, calls)."""
    yield from core.jaxprs_in_params(eqn.params)


def programs_in(eqn: Eqn) -> Iterator[ClosedJaxpr]:
    """The programs in an equation's parameters, with their constants."""
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, Jaxpr | ClosedJaxpr):
                yield closed_jaxpr(inner)


# Reading and re-evaluating equations.


def bind(eqn: Eqn, args: Sequence[Any]) -> list[Any]:
    """Applies an equation to values, in the context it was traced in."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        result = eqn.primitive.bind(*args, **params)
    return list(result) if eqn.primitive.multiple_results else [result]


_PACKAGE = Path(__file__).parent
_LIKE_USERS = tuple(f"{_PACKAGE / name}/" for name in ("algorithms", "environments"))


def source_line(eqn: Eqn) -> str:
    """`file:line (function)` of the user's code that made this equation; empty for fragflow's."""
    line = source_info_util.summarize(eqn.source_info)
    is_ours = line.startswith(f"{_PACKAGE}/") and not line.startswith(_LIKE_USERS)
    return "" if is_ours else line


def is_key(aval: Any) -> bool:
    """True if values of this type are random keys."""
    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)


def dead_code_removed(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without equations that no output needs, loops and calls included."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    return ClosedJaxpr(jaxpr, closed.consts)


def with_axis_reductions(eqn: Eqn, axis: str, size: int) -> Eqn:
    """`eqn` with every reduction over replicas inside it bound to a mesh axis."""
    if not contains_all_reduce(eqn):
        return eqn
    made = _rewritten(eqn, lambda inner: _axis_eqns(inner, axis, size))
    # Left as it is, it would be the identity: each replica would go on with its own part.
    assert not contains_all_reduce(made), f"a reduction over replicas stays inside {eqn.primitive}"
    return made


def without_barriers(eqn: Eqn) -> Eqn:
    """`eqn` with every component inside it, and itself, free to be inlined."""
    plain = jax.make_jaxpr(lambda x: -x)(0.0).jaxpr.eqns[0].ctx
    return _rewritten(eqn, lambda inner: [inner.replace(ctx=plain)]).replace(ctx=plain)


def _rewritten(eqn: Eqn, change: Callable[[Eqn], list[Eqn]]) -> Eqn:
    """`eqn` with `change` applied to every equation inside it, innermost first."""

    def rewrite(value: Any) -> Any:
        if isinstance(value, Jaxpr):  # from JAX 0.11 on, a closed one too
            eqns = [new for old in value.eqns for new in change(_rewritten(old, change))]
            return value.replace(eqns=eqns)
        if isinstance(value, ClosedJaxpr):
            return ClosedJaxpr(rewrite(value.jaxpr), value.consts)
        if type(value) in (tuple, list):
            return type(value)(rewrite(v) for v in value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # of custom_linear_solve
            return type(value)(*map(rewrite, value))
        return value

    return eqn.replace(params={k: rewrite(v) for k, v in eqn.params.items()})


def _axis_eqns(eqn: Eqn, axis: str, size: int) -> list[Eqn]:
    if eqn.primitive is not all_reduce_p:
        return [eqn]
    operation = eqn.params["operation"]
    avals = [v.aval for v in eqn.invars]
    closed = jax.make_jaxpr(
        lambda *xs: reduce_over_axis(operation, xs, axis), axis_env=[(axis, size)]
    )(*avals)
    names: dict[Any, Any] = dict(zip(closed.jaxpr.invars, eqn.invars, strict=True))
    results = dict(zip(closed.jaxpr.outvars, eqn.outvars, strict=True))
    eqns = []
    for inner in closed.jaxpr.eqns:
        outvars = [results.get(v, v) for v in inner.outvars]
        names.update(zip(inner.outvars, outvars, strict=True))
        invars = [v if isinstance(v, Literal) else names[v] for v in inner.invars]
        eqns.append(inner.replace(invars=invars, outvars=outvars))
    return eqns


def contains_all_reduce(eqn: Eqn) -> bool:
    """True if `eqn` contains a reduction over replicas, at any depth."""
    return _contains(eqn, lambda inner: inner.primitive is all_reduce_p)


def calls_back(eqn: Eqn) -> bool:
    """True if `eqn` calls back into Python, at any depth."""
    return _contains(eqn, lambda inner: "callback" in inner.primitive.name)


def loops(eqn: Eqn) -> bool:
    """True if `eqn` contains, at any depth, a loop whose end depends on what it computes."""
    return _contains(eqn, lambda inner: inner.primitive.name == "while")


def has_own_batching(eqn: Eqn) -> bool:
    """True if `eqn` contains, at any depth, a user's batching rule, which may compute anything."""
    return _contains(eqn, lambda inner: inner.primitive.name == "custom_vmap_call")


def draws_together(eqn: Eqn) -> bool:
    """True if `eqn`, once vmapped, draws random numbers for all rows together, not row by row.

    With keys other than threefry's, JAX uses the first one for all rows.
    """

    def is_such(inner: Eqn) -> bool:
        if inner.primitive.name == "rng_bit_generator":
            return True
        keys = [v.aval.dtype for v in inner.invars if hasattr(v.aval, "dtype") and is_key(v.aval)]
        return any(dtype._impl.name != "threefry2x32" for dtype in keys)

    return _contains(eqn, is_such)


def _contains(eqn: Eqn, test: Callable[[Eqn], bool]) -> bool:
    return test(eqn) or any(
        _contains(inner, test) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns
    )


def raw_key(key: Any) -> Any:
    """A random key as plain numbers, which are cheaper to pass between programs."""
    return jax.random.key_data(key)


def wrapped_key(raw: Any, aval: Any) -> Any:
    """The random key of type `aval` with these numbers."""
    return jax.random.wrap_key_data(raw, impl=str(aval.dtype._impl.name))


def plain_aval(aval: Any) -> jax.ShapeDtypeStruct:
    """The type in which a value of type `aval` is held between programs."""
    if is_key(aval):
        shape = aval.dtype._impl.key_shape
        return jax.ShapeDtypeStruct((*aval.shape, *shape), "uint32")
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def result_paths(eqn: Eqn) -> tuple[str, ...]:
    """The path of each result of a component in what its function returns: `result[1].obs`."""
    return tuple(str(p) for p in eqn.params["jaxpr"].jaxpr.debug_info.result_paths or ())


def result_name(eqn: Eqn, position: int) -> str:
    """A result's name for the user: the component that makes it, and its field."""
    if eqn.primitive is host_call_p:
        method = eqn.params["method"]
        return f"environment.{method}:{eqn.params['host'].result_names(method)[position]}"
    name = component_of(eqn)
    if name is not None:
        paths = result_paths(eqn)
        path = paths[position] if position < len(paths) else ""
        words = re.findall(r"\w+", path.removeprefix("result"))
        field = ".".join(itertools.dropwhile(str.isdigit, words))
        return f"{name}:{field}" if field else name
    inner = next(inner_jaxprs(eqn), None)
    if inner is None or position >= len(inner.outvars):
        return eqn.primitive.name
    variable = inner.outvars[position]
    for maker in inner.eqns:
        if variable in maker.outvars:
            return result_name(maker, maker.outvars.index(variable))
    # A carry handed out at the start of a step was made by the step before it.
    if eqn.primitive.name == "scan" and variable in inner.invars:
        scan = scan_of(eqn)
        carry = inner.invars.index(variable) - scan.consts
        if 0 <= carry < scan.carries and carry != position:
            return result_name(eqn, carry)
    return eqn.primitive.name
