"""Kinds of constants, by their values in the whole and in a replica, and of scalars from them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragflow._jax import Eqn
from fragflow._jax_typed import finfo
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import (
    CONSTANT,
    COUNT,
    UNIFORM,
    Kind,
    Tag,
    mixed,
    row_number,
    varying,
)

_POSITION = "differs from environment to environment by its position"


def constant_kind(a: Any, b: Any, sizes: tuple[int, int]) -> Kind:
    """The kind of a literal or a closed-over array, by its values in both traces."""
    try:
        x, y = np.asarray(a), np.asarray(b)
    except TypeError:  # random keys
        return UNIFORM if a is b else _key_kind(a, b)
    if x.dtype == object or y.dtype == object:
        return UNIFORM if a is b or a == b else mixed(COUNT, CONSTANT)
    if x.dtype != y.dtype or x.ndim != y.ndim:
        return mixed(COUNT, CONSTANT)
    if x.shape != y.shape:
        return _sized(x, y, sizes)
    is_number = x.ndim == 0 and x.dtype.kind in "biuf" and x == x and y == y
    values = (x.item(), y.item()) if is_number else None
    degree = _degree(x, y, sizes)
    if degree is None:
        return replace(mixed(COUNT, CONSTANT), values=values)
    return replace(UNIFORM, degree=degree, zero=not x.any() and not y.any(), values=values)


def _key_kind(a: Any, b: Any) -> Kind:
    import jax

    same = a.shape == b.shape and a.dtype == b.dtype
    raw = jax.random.key_data
    return UNIFORM if same and np.array_equal(raw(a), raw(b)) else mixed(COUNT, CONSTANT)


def _sized(x: np.ndarray, y: np.ndarray, sizes: tuple[int, int]) -> Kind:
    """The kind of arrays whose lengths differ: one row repeated, or the rows' own numbers."""
    axes = [i for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if m != n]
    if len(axes) != 1:
        return mixed(_POSITION, CONSTANT)
    axis = axes[0]
    if x.ndim == 1 and (len(x), len(y)) == sizes and all(map(_is_arange, (x, y))):
        return row_number(0, _POSITION, CONSTANT)
    one_x, one_y = x.take([0], axis), y.take([0], axis)
    degree = _degree(one_x, one_y, sizes)
    grows = x.shape[axis] * sizes[1] == y.shape[axis] * sizes[0] and x.shape[axis] % sizes[0] == 0
    if degree is None or not grows or not (_repeats(x, one_x) and _repeats(y, one_y)):
        return mixed(_POSITION, CONSTANT)
    inner = x.shape[axis] // sizes[0]
    return varying(axis, inner=inner, flexible=True, zero=not x.any(), degree=degree)


def _repeats(x: np.ndarray, one: np.ndarray) -> bool:
    return same_bits(x, np.broadcast_to(one, x.shape))


def _is_arange(x: np.ndarray) -> bool:
    return x.dtype.kind in "iu" and bool((x == np.arange(len(x))).all())


def _degree(x: np.ndarray, y: np.ndarray, sizes: tuple[int, int]) -> int | None:
    """The degree d for which x = R^d y, with R = sizes[0] / sizes[1]; None if there is none.

    Degree 0 requires the same bits: a last digit of bfloat16 is a percent, and -0.0 and 0.0 are two
    numbers to some functions.
    """
    if same_bits(x, y):
        return 0
    is_whole = x.dtype.kind in "iu"
    if not is_whole and not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    whole, part = sizes
    for degree in (1, -1, 2, -2, 3, -3):
        up, down = (part, whole) if degree > 0 else (whole, part)
        if is_whole:
            large, small = x.astype(object), y.astype(object)
            holds = bool(np.all(large * up ** abs(degree) == small * down ** abs(degree)))
        else:
            holds = _round_from_one(x, y, (whole / part) ** degree)
        if holds:
            return degree
    return None


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _round_from_one(x: np.ndarray, y: np.ndarray, scale: float) -> bool:
    """True if there are exact numbers c such that x is c, and y is c / scale, rounded."""
    (low_x, high_x), (low_y, high_y) = _rounded_to(x), _rounded_to(y)
    if low_x is None or low_y is None or not np.array_equal(np.signbit(x), np.signbit(y)):
        return False
    return bool(np.all((low_x < high_y * scale) & (low_y * scale < high_x) | (x == 0) & (y == 0)))


def _rounded_to(x: np.ndarray) -> tuple[Any, Any]:
    """Bounds of the magnitudes that are rounded to x; None if x is not finite, or too small."""
    info = finfo(x.dtype)
    exact = np.abs(x.astype(np.float64))
    if not np.isfinite(exact).all() or np.any((exact < float(info.tiny)) & (exact != 0)):
        return None, None
    mantissa, exponent = np.frexp(exact)
    half = np.ldexp(0.5, exponent - int(info.nmant) - 1)
    # Below a power of two numbers are twice as dense.
    return exact - np.where(mantissa == 0.5, half / 2, half), exact + half


def _quotient(x: Any, y: Any) -> Any:
    """Divides as XLA does, integers towards zero; None for an integer divided by zero."""
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        if y == 0:
            return None
        sign = -1 if (int(x) < 0) != (int(y) < 0) else 1
        return sign * (abs(int(x)) // abs(int(y)))
    return np.divide(x, y)


def _integer_pow(x: Any, *, y: int, **_: Any) -> Any:
    return np.power(x, y) if y >= 0 else np.divide(1, np.power(x, -y))


def _select(which: Any, *cases: Any) -> Any:
    return cases[int(which)]


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _as_it_is(x: Any) -> Any:
    return x


_FOLDED: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name) for name in ("add", "exp", "sqrt", "log", "log1p", "expm1", "floor")
    },
    **{name: getattr(np, name) for name in ("ceil", "sign", "square", "sin", "cos", "tanh")},
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "pow": np.power,
    "integer_pow": _integer_pow,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "select_n": _select,
    "clamp": _clamp,
    **dict.fromkeys(
        ("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy"), _as_it_is
    ),
}
"""functions of scalars, by primitive: NumPy's, since compiling each takes longer"""


def folded(
    pair: EqnPair, kinds: Sequence[Kind], sizes: tuple[int, int], is_stand_in: bool = False
) -> list[Kind] | None:
    """The kind of a scalar that follows from constants; its value is computed, for both traces.

    JAX writes select(0 < 0, 0 + n, 0) for the index 0, which does not count environments.
    """
    compute = _FOLDED.get(pair.name)
    if is_stand_in and any(k.values is not None and k.values[0] != k.values[1] for k in kinds):
        # These are other numbers in the programs that run: more than one is both 16 and 2, not 1.
        return _chosen(pair, kinds)
    known = [k.values for k in kinds if k.values is not None]
    if compute is None or not kinds or len(known) < len(kinds):
        return None
    if _is_kept_wide(pair.a, kinds):
        return None
    results: list[Any] = []
    for side, eqn in enumerate((pair.a, pair.b)):
        variables = [*eqn.invars, *eqn.outvars]
        if len(eqn.outvars) != 1 or any(v.aval.shape for v in variables):
            return None
        args = [
            np.asarray(values[side]).astype(v.aval.dtype)
            for values, v in zip(known, eqn.invars, strict=True)
        ]
        own = {k: v for k, v in eqn.params.items() if k == "y"}
        try:
            with np.errstate(all="ignore"):
                result = compute(*args, **own)
                if not _is_firm(eqn, compute, args):
                    return None
        except (TypeError, ValueError, OverflowError):
            return None
        kept = None if result is None else _as_type(np.asarray(result), eqn.outvars[0].aval.dtype)
        if kept is None:
            return None
        results.append(kept)
    found = constant_kind(results[0], results[1], sizes)
    # Divided by a number other than a power of two, a multiple is rounded differently: the values
    # are no longer a number and its multiple, but degrees still add up.
    return None if found.tag is Tag.MIXED and not _is_power_of_two(sizes) else [found]


def _chosen(pair: EqnPair, kinds: Sequence[Kind]) -> list[Kind] | None:
    """The kind of the case that a constant selects, whatever the other cases are."""
    known = kinds[0].values
    if pair.name != "select_n" or known is None or known[0] != known[1]:
        return None
    return [kinds[1 + int(known[0])]]


def _is_power_of_two(sizes: tuple[int, int]) -> bool:
    times = sizes[0] // sizes[1]
    return times & (times - 1) == 0


def _is_kept_wide(eqn: Eqn, kinds: Sequence[Kind]) -> bool:
    """True if XLA may keep more digits than NumPy, of a result that differs between the traces."""
    dtype = eqn.outvars[0].aval.dtype
    is_narrow = jnp.issubdtype(dtype, jnp.inexact) and finfo(dtype).bits < 32
    return is_narrow and any(k.values is not None and k.values[0] != k.values[1] for k in kinds)


_JUMPS = frozenset(("floor", "ceil", "sign", "lt", "le", "gt", "ge", "eq", "ne"))
_NEAR = 4e-6
"""relative distance of NumPy's functions from XLA's, with a margin"""


def _is_firm(eqn: Eqn, compute: Callable[..., Any], args: Sequence[np.ndarray]) -> bool:
    """True if the result is the same for numbers nearby, which XLA may have instead of NumPy's."""
    dtype = np.dtype(eqn.outvars[0].aval.dtype)
    is_cast = eqn.primitive.name == "convert_element_type" and dtype.kind in "biu"
    if not (eqn.primitive.name in _JUMPS or is_cast) or all(a.dtype.kind in "biu" for a in args):
        return True
    nearby = [
        (a,) if a.dtype.kind in "biu" else (a * (1 - _NEAR), a, a * (1 + _NEAR)) for a in args
    ]
    found = [_as_type(np.asarray(compute(*some)), dtype) for some in product(*nearby)]
    return len({None if x is None else x.item() for x in found}) == 1


def _as_type(value: np.ndarray, dtype: Any) -> np.ndarray | None:
    """`value` in another type; None beyond an integer's range, where NumPy and XLA may differ."""
    if value.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= float(value) <= limits.max:
            return None
    return value.astype(dtype)
