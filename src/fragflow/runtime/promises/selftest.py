"""Tries, operation by operation, that parts of a batch give the results of the whole batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import (
    Eqn,
    Jaxpr,
    Literal,
    bind,
    calls_back,
    component_of,
    contains_all_reduce,
    contains_host_call,
    inner_jaxprs,
    is_key,
    raw_key,
    source_line,
)
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Fragment, Op, walk
from fragflow.graph.replicas.eqn_pair import sized_dims


def components_with_other_bits(
    whole: Jaxpr,
    local: Jaxpr,
    sizes: tuple[int, int],
    is_replicated: Callable[[str], bool],
    is_alike: Callable[[np.ndarray, np.ndarray], bool] | None = None,
) -> tuple[str, ...]:
    """Names the row-wise components whose results depend on the batch they are computed in."""
    different = {
        name
        for name, a, b in _pairs(whole, local)
        if is_replicated(name) and not _are_alike(a, b, sizes, is_alike or _is_same)
    }
    return tuple(sorted(different))


def are_near_floats(a: np.ndarray, b: np.ndarray) -> bool:
    """True unless floats differ by more than rounding; other numbers may follow from a digit."""
    return not jnp.issubdtype(a.dtype, jnp.inexact) or _is_near(a, b)


def operation_that_differs(fragment: Fragment, local: Extent) -> str | None:
    """The line of a fragment's first operation that computes rows otherwise, `local` at a time.

    Differences by rounding do not count.
    """
    whole = fragment.extent
    constants = {c.output: (c.arrays[whole], c.arrays[local]) for c in fragment.constants}
    for op in walk((fragment.loop,)):
        if isinstance(op, Op) and {whole, local} <= op.eqns.keys():
            a, b = op.eqns[whole], op.eqns[local]
            known = {i: constants[v] for i, v in enumerate(op.inputs) if v in constants}
            if not _are_alike(a, b, (whole.envs, local.envs), _is_near, known):
                return source_line(a) or op.path
    return None


_EXACT = frozenset(
    [
        *("reshape", "squeeze", "transpose", "broadcast_in_dim", "concatenate", "stack", "rev"),
        *("slice", "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "pad", "copy"),
        *("select_n", "stop_gradient", "convert_element_type", "random_wrap", "random_unwrap"),
        *("random_split", "random_fold_in", "random_bits"),
    ]
)
"""operations that move numbers, and do not round"""


def rounding_glue(fragment: Fragment, whole: Extent, local: Extent) -> str | None:
    """The line of an operation outside components that rounds rows of environments, if any.

    The cut and the batch decide what it is fused with, so that its last bits may depend on them.
    """
    for op in walk((fragment.loop,)):
        if isinstance(op, Op) and not op.components:
            a, b = op.eqns[whole], op.eqns[local]
            pairs = zip(a.outvars, b.outvars, strict=True)
            has_rows = any(sized_dims(x.aval, y.aval) for x, y in pairs)
            if has_rows and _rounds(a):
                return source_line(a)
    return None


def _rounds(eqn: Eqn) -> bool:
    inner = [e for jaxpr in inner_jaxprs(eqn) for e in jaxpr.eqns]
    if inner:
        return any(_rounds(e) for e in inner)
    is_float = any(getattr(v.aval.dtype, "kind", "") == "f" for v in eqn.outvars)
    return is_float and eqn.primitive.name not in _EXACT


def _pairs(a: Jaxpr, b: Jaxpr) -> Iterator[tuple[str, Eqn, Eqn]]:
    for x, y in zip(a.eqns, b.eqns, strict=True):
        name = component_of(x)
        if name is not None:
            yield name, x, y
        else:
            for inner_x, inner_y in zip(inner_jaxprs(x), inner_jaxprs(y), strict=True):
                if any(component_of(e) or list(inner_jaxprs(e)) for e in inner_x.eqns):
                    yield from _pairs(inner_x, inner_y)


def _row_axes(
    a: Sequence[Any], b: Sequence[Any], sizes: tuple[int, int]
) -> list[int | None] | None:
    """The environment axis of each variable that has one; None if one varies in another way."""
    axes: list[int | None] = []
    for x, y in zip(a, b, strict=True):
        sized = sized_dims(x.aval, y.aval)
        if len(sized) > 1 or (sized and x.aval.shape[sized[0]] != sizes[0]):
            return None
        axes.append(sized[0] if sized else None)
    return axes


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


def _is_near(a: np.ndarray, b: np.ndarray) -> bool:
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return np.array_equal(a, b)
    return np.allclose(a.astype(np.complex128), b, rtol=1e-3, atol=1e-4, equal_nan=True)


def _are_alike(
    a: Eqn,
    b: Eqn,
    sizes: tuple[int, int],
    is_alike: Callable[[np.ndarray, np.ndarray], bool],
    known: Mapping[int, tuple[Any, Any]] | None = None,
) -> bool:
    """True if rows come out alike for random inputs, all together and some at a time.

    Constants are not random: `known` has those of both equations, by position.
    """
    ins, outs = _row_axes(a.invars, b.invars, sizes), _row_axes(a.outvars, b.outvars, sizes)
    if ins is None or outs is None or None in outs or contains_all_reduce(a):
        return True  # not row-wise: such a component sees all environments, or is reduced anyway
    if contains_host_call(a):
        return True  # environments answer row by row: it is their contract
    if calls_back(a):
        return False  # cannot be tried: it may do anything
    rng = np.random.default_rng(0)
    args = [_random(v.aval, rng, axis) for v, axis in zip(a.invars, ins, strict=True)]
    literals = {
        i: (x.val, y.val)
        for i, (x, y) in enumerate(zip(a.invars, b.invars, strict=True))
        if isinstance(x, Literal) and isinstance(y, Literal)
    }
    fixed = {i: both for i, both in {**(known or {}), **literals}.items() if ins[i] is None}
    for i, (value, _) in fixed.items():
        args[i] = _plain(value)
    whole = _run(a, args)
    for k in range(sizes[0] // sizes[1]):
        local_args = [
            arg if axis is None else np.take(arg, np.arange(k * sizes[1], (k + 1) * sizes[1]), axis)
            for arg, axis in zip(args, ins, strict=True)
        ]
        for i, (_, value) in fixed.items():
            local_args[i] = _plain(value)
        for full, part, axis in zip(whole, _run(b, local_args), outs, strict=True):
            assert axis is not None
            rows = np.take(full, np.arange(k * sizes[1], (k + 1) * sizes[1]), axis)
            if not is_alike(rows, part):
                return False
    return True


def _plain(value: Any) -> np.ndarray:
    return np.asarray(raw_key(value) if hasattr(value, "dtype") and is_key(value) else value)


def _run(eqn: Eqn, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    def call(*values: Any) -> list[Any]:
        keyed = [
            jax.random.wrap_key_data(x) if is_key(v.aval) else x
            for x, v in zip(values, eqn.invars, strict=True)
        ]
        return [jax.random.key_data(r) if is_key(r) else r for r in bind(eqn, keyed)]

    return [np.asarray(r) for r in jax.jit(call)(*args)]


def _random(aval: Any, rng: np.random.Generator, axis: int | None) -> np.ndarray:
    if is_key(aval):
        return rng.integers(0, 2**32, (*aval.shape, 2), dtype=np.uint32)
    if aval.dtype.kind == "f" or str(aval.dtype) == "bfloat16":
        # Weights of a usual size: larger ones saturate a network and hide how it rounds.
        is_weight = axis is None and len(aval.shape) > 1
        scale = 1.0 / np.sqrt(aval.shape[-2]) if is_weight else 1.0
        return (scale * rng.normal(size=aval.shape)).astype(aval.dtype)
    if aval.dtype == bool:
        return rng.random(aval.shape) < 0.5
    return rng.integers(0, 2, aval.shape).astype(aval.dtype)
