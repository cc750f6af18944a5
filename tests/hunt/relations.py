"""What each kind says of numbers: drawn for operands, and tested of results.

`whole` is the value of one program that holds all environments, `parts` are those of the replicas
that hold some each. Nothing here knows how the analysis comes to its kinds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fragflow.graph.replicas.kinds import Kind, Tag

KEY = "key"
TOLERANCES = {8: 1e-9, 4: 1e-4, 2: 0.1, 1: 0.5}
"""by the bytes of the narrowest float in a program: what is less is rounding"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many environments a replica holds, and how many replicas there are."""

    local: int
    replicas: int

    @property
    def whole(self) -> int:
        return self.local * self.replicas


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a drawn program: how its parts relate to the whole, and its type in a replica."""

    kind: Kind
    shape: tuple[int, ...]
    dtype: str = "float64"
    style: str = "normal"

    def whole_shape(self, sizes: Sizes) -> tuple[int, ...]:
        if self.kind.tag is not Tag.VARYING:
            return self.shape
        axis = self.kind.axis
        return (*self.shape[:axis], self.shape[axis] * sizes.replicas, *self.shape[axis + 1 :])

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"{self.dtype}[{shape}] {describe(self.kind)}"


def describe(kind: Kind) -> str:
    """A kind in words, with all that its relation depends on."""
    words = [kind.tag.value]
    if kind.tag is Tag.VARYING:
        words.append(f"along {kind.axis}")
        if kind.flexible:
            words.append("constant")
        elif (kind.outer, kind.inner) != (1, 1):
            words.append(f"as {kind.outer}·n·{kind.inner}")
    if kind.tag is Tag.PARTIAL:
        words.append(kind.reduction)
    if kind.degree or kind.tag is Tag.PARTIAL:
        words.append(f"of degree {kind.degree}")
    words += ["zero"] * kind.zero + ["affine"] * getattr(kind, "affine", False)
    return " ".join(words) + (f" ({kind.reason})" if kind.tag is Tag.MIXED else "")


def values(operand: Operand, sizes: Sizes, rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """The whole and the parts of an operand: numbers at random that relate as its kind says."""
    kind, count = operand.kind, sizes.replicas

    def numbers(shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, operand.dtype) if kind.zero else _random(operand, shape, rng)

    if kind.tag is Tag.UNIFORM:
        one = numbers(operand.shape)
        whole, local = _scaled(one, kind.degree, count)
        return _finish(operand, whole, [local] * count)
    if kind.tag is Tag.VARYING:
        axis = kind.axis
        if kind.flexible:
            length = operand.shape[axis]
            one = numbers((*operand.shape[:axis], 1, *operand.shape[axis + 1 :]))
            whole, local = _scaled(one, kind.degree, count)
            parts = [np.repeat(local, length, axis)] * count
            return _finish(operand, np.repeat(whole, length * count, axis), parts)
        full = numbers(operand.whole_shape(sizes))
        whole, local = _scaled(full, kind.degree, count)
        return _finish(operand, whole, cut(local, kind, sizes))
    parts = [numbers(operand.shape) for _ in range(count)]
    if kind.reduction == "sum" and np.dtype(operand.dtype).kind in "iu":
        over = np.sum(parts, 0, dtype=operand.dtype) % count  # a mean of integers must be one
        parts[-1] = (parts[-1] - over).astype(operand.dtype)
    return _finish(operand, reduced(parts, kind), parts)


def _random(operand: Operand, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if operand.dtype == KEY:
        return rng.integers(0, 2**32, (*shape, 2), dtype=np.uint32)
    kind = np.dtype(operand.dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        low = 0 if operand.style == "positive" or kind == "u" else -4
        return rng.integers(low, 5, shape).astype(operand.dtype)
    one = rng.uniform(0.1, 0.9, shape) if operand.style == "positive" else rng.normal(size=shape)
    if operand.style == "wide":
        one = 5 * one
    if kind == "c":
        one = one + 1j * rng.normal(size=shape)
    return one.astype(operand.dtype)


def _scaled(x: np.ndarray, degree: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`x` and a multiple of it, such that the first is the second times `count ** degree`."""
    if degree == 0:
        return x, x
    factor = np.asarray(count ** abs(degree)).astype(x.dtype)
    return (x * factor, x) if degree > 0 else (x, x * factor)


def _finish(operand: Operand, whole: Any, parts: Sequence[Any]) -> tuple[Any, list[Any]]:
    if operand.dtype != KEY:
        return whole, list(parts)
    return jax.random.wrap_key_data(whole), [jax.random.wrap_key_data(p) for p in parts]


def cut(whole: np.ndarray, kind: Kind, sizes: Sizes) -> list[np.ndarray]:
    """Each replica's part of a varying value."""
    axis, count = kind.axis, sizes.replicas
    before, after = whole.shape[:axis], whole.shape[axis + 1 :]
    folded = whole.reshape(*before, kind.outer, count, -1, *after)
    length = whole.shape[axis] // count
    return [folded.take(i, axis + 1).reshape(*before, length, *after) for i in range(count)]


def reduced(parts: Sequence[np.ndarray], kind: Kind) -> np.ndarray:
    """What the whole is of the parts of a partial value."""
    if kind.reduction != "sum":
        most = np.max(parts, 0) if kind.reduction == "max" else np.min(parts, 0)
        return _times(most, kind.degree, len(parts))
    dtype = parts[0].dtype
    total = np.sum(parts, 0, dtype=dtype if dtype.kind in "iuc" else np.float64)
    power = kind.degree - 1
    if dtype.kind in "iu" and power < 0:
        scaled = total / len(parts) ** -power
        return scaled if (scaled % 1).any() else scaled.astype(dtype)
    return (total * float(len(parts)) ** power if power else total).astype(dtype)


def broken(
    kind: Kind,
    whole: Any,
    parts: Sequence[Any],
    sizes: Sizes,
    tolerance: float,
    size: float = 1.0,
) -> str:
    """Why these numbers are not what `kind` says of them; nothing if they are.

    `size` is that of the numbers they were made from: what cancels out leaves their rounding.
    """
    w, ls = plain(whole), [plain(p) for p in parts]
    if kind.zero and (w.any() or any(p.any() for p in ls)):
        return "it is not zero"
    known = getattr(kind, "values", None)
    if known is not None:
        pairs = [(w, known[0]), *((p, known[1]) for p in ls)]
        different = _first(_apart(np.asarray(x), np.asarray(y), tolerance, size) for x, y in pairs)
        if different:
            return f"its value is known to be another one: {different}"
    if kind.tag is not Tag.VARYING:
        if w.shape != ls[0].shape:
            return f"its shape is {w.shape} for all and {ls[0].shape} for some environments"
        if kind.tag is Tag.PARTIAL:
            # Numbers are believed to be finite: inf and -inf, of two parts, are no sum.
            finite = np.all([np.isfinite(p) for p in ls], 0) if kind.reduction == "sum" else True
            if kind.reduction == "sum" and kind.degree < 1 and w.dtype.kind in "iu":
                # A mean of whole numbers that wrap around: nobody can divide, but multiply.
                w, kind = _times(w, 1 - kind.degree, sizes.replicas), replace(kind, degree=1)
            total = np.where(finite, reduced(ls, kind), 0)
            return _apart(np.where(finite, w, 0), total, tolerance, size)
        own = [_times(p, kind.degree, sizes.replicas) for p in ls]
        return _first(_apart(w, p, tolerance, size) for p in own)
    axis = kind.axis
    sized = [i for i, (x, y) in enumerate(zip(w.shape, ls[0].shape, strict=True)) if x != y]
    long, short = w.shape[axis], ls[0].shape[axis]
    per = kind.outer * kind.inner
    if sized != [axis] or long != short * sizes.replicas or short % sizes.local:
        return f"its shape is {w.shape} for all and {ls[0].shape} for some environments"
    if not kind.flexible and short != per * sizes.local:
        return f"there are {short} entries, not {kind.outer} · {sizes.local} · {kind.inner}"
    parts = [_times(p, kind.degree, sizes.replicas) for p in ls]
    folds = _divisors(short // sizes.local) if kind.flexible else [kind.outer]
    return _first(_apart(w, joined(parts, axis, outer), tolerance, size) for outer in folds)


def joined(parts: Sequence[np.ndarray], axis: int, outer: int) -> np.ndarray:
    """The parts of a varying value side by side, each within its `outer` entries."""
    shape = parts[0].shape
    folded = [p.reshape(*shape[:axis], outer, -1, *shape[axis + 1 :]) for p in parts]
    side = np.concatenate(folded, axis + 1)
    return side.reshape(*shape[:axis], -1, *shape[axis + 1 :])


def holding(whole: Any, parts: Sequence[Any], sizes: Sizes, tolerance: float) -> str:
    """Some relation that these numbers do have; nothing if they have none of those that count."""
    w, ls = plain(whole), [plain(p) for p in parts]
    if w.ndim != ls[0].ndim or w.dtype.kind == "V":
        return ""
    sized = [i for i, (x, y) in enumerate(zip(w.shape, ls[0].shape, strict=True)) if x != y]
    if len(sized) > 1:
        return ""
    if sized:
        axis = sized[0]
        short = ls[0].shape[axis]
        if w.shape[axis] != short * sizes.replicas or short % sizes.local:
            return ""
        for outer in _divisors(short // sizes.local):
            if not _apart(w, joined(ls, axis, outer), tolerance):
                return "varying"
        return ""
    if not any(_apart(w, p, tolerance) for p in ls):
        return "uniform"
    for name, fields in _REDUCED.items():
        if w.dtype.kind != "b" and not _apart(w, reduced(ls, Kind(**fields)), tolerance):
            return name
    return ""


_REDUCED: dict[str, Any] = {
    "sum": {"tag": Tag.PARTIAL, "degree": 1},
    "mean": {"tag": Tag.PARTIAL, "degree": 0},
    "max": {"tag": Tag.PARTIAL, "reduction": "max"},
    "min": {"tag": Tag.PARTIAL, "reduction": "min"},
}


def plain(x: Any) -> np.ndarray:
    """`x` as numbers, random keys too."""
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "V" or x.dtype.itemsize < 4 <= _wide(x) else x


def _wide(x: np.ndarray) -> int:
    """4 for narrow floats, in which NumPy does not calculate; 0 for all else."""
    return 4 if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else 0


def _times(x: np.ndarray, degree: int, count: int) -> np.ndarray:
    if degree == 0:
        return x
    if x.dtype.kind in "iu" and degree > 0:
        return (x * count**degree).astype(x.dtype)
    return x * float(count) ** degree


def _apart(a: np.ndarray, b: np.ndarray, tolerance: float, size: float = 1.0) -> str:
    """In what two arrays differ by more than rounding, relative to the size of their numbers."""
    if a.size == 0:
        return ""
    if a.dtype.kind not in "fc" and b.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else f"{_short(a)} is not {_short(b)}"
    wide = np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64
    a, b = a.astype(wide), b.astype(wide)
    endless = ~np.isfinite(a)
    if not np.array_equal(a[endless], b[~np.isfinite(b)], equal_nan=True) or (
        not np.array_equal(endless, ~np.isfinite(b))
    ):
        return f"{_short(a)} is not {_short(b)}"
    a, b = np.where(endless, 0, a), np.where(endless, 0, b)
    scale = max(float(np.max(np.abs(a))), 1e-2 * size)  # what cancels out leaves rounding
    with np.errstate(over="ignore", invalid="ignore"):
        worst = float(np.max(np.abs(a / scale - b / scale)))
    return f"{_short(a)} is not {_short(b)}" if not worst <= tolerance else ""


def _short(x: np.ndarray) -> str:
    flat = x.reshape(-1)
    shown = ", ".join(f"{v:.4g}" if x.dtype.kind in "fc" else str(v) for v in flat[:4].tolist())
    return f"[{shown}{', …' if flat.size > 4 else ''}]"


def _first(reasons: Any) -> str:
    return next((r for r in reasons if r), "")


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0] if n > 0 else [1]


def size_of(values: Sequence[Any]) -> float:
    """The largest of the floats among `values`, at least 1."""
    floats = [np.abs(plain(v)) for v in values if plain(v).dtype.kind in "fc"]
    return max([1.0, *(float(np.max(x[np.isfinite(x)], initial=0.0)) for x in floats)])


def tolerance_of(bytes_of_floats: int) -> float:
    return TOLERANCES[min(bytes_of_floats, 8)]


def is_testable(kind: Kind) -> bool:
    """Whether `kind` claims anything: a sum with something added to it is one that nobody takes."""
    if kind.tag not in (Tag.UNIFORM, Tag.VARYING, Tag.PARTIAL):
        return False
    is_affine = kind.tag is Tag.PARTIAL and getattr(kind, "affine", False)
    return not (is_affine and (kind.degree or kind.reduction != "sum"))


def product(shape: Sequence[int]) -> int:
    return math.prod(shape)
