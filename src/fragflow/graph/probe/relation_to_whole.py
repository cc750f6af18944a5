"""Relations of replicas' values to those of the undivided program, found by their numbers."""

import math

import numpy as np

from fragflow.graph.replicas.kinds import Kind, Tag

TOLERANCE = 1e-9
"""relative; in double precision another order of sums is far below, a mistake far above"""
SMALLEST = 1e-3
"""the least size that a value is taken to have: numbers that cancel out leave a rounding error (the
mean of standardised numbers is 1e-16, not 0)"""


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the array's largest number.

    Values that are not floats are equal or infinitely far apart, and so are non-finite numbers.
    """
    if a.size == 0:
        return 0.0
    if a.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(b[finite]).all():
        return math.inf
    a, b = a[finite], b[finite]
    if not a.size:
        return 0.0
    return float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(a))), SMALLEST))


def is_near(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and distance(a, b) <= TOLERANCE


def joined(parts: np.ndarray, axis: int, outer: int = 1) -> np.ndarray:
    """Joins `[replicas, ...]` along `axis`, in which another axis of length `outer` is in front."""
    shape, length = parts.shape[1:], parts.shape[1 + axis]
    folded = parts.reshape(len(parts), *shape[:axis], outer, length // outer, *shape[axis + 1 :])
    moved = np.moveaxis(folded, 0, axis + 1)
    return moved.reshape(*shape[:axis], len(parts) * length, *shape[axis + 1 :])


def relation(whole: np.ndarray, parts: np.ndarray) -> str | None:
    """The relation of `parts`, one of each replica, to `whole`; None if it is none of the known."""
    sized = [i for i, (a, b) in enumerate(zip(whole.shape, parts.shape[1:], strict=True)) if a != b]
    if len(sized) > 1:
        return None
    count = len(parts)
    if sized:
        length = parts.shape[1 + sized[0]]
        if whole.shape[sized[0]] != count * length:
            return None
        for outer in (n for n in range(1, length + 1) if length % n == 0):
            together = joined(parts, sized[0], outer)
            if is_near(whole, together):
                return "slices"
            if _is_number(whole) and any(is_near(whole, together * f) for f in (count, 1 / count)):
                return "slices of another scale"
        return None
    if all(is_near(whole, part) for part in parts):
        return "equal"
    if not _is_number(whole):
        return None
    for name, made in (
        ("sum", parts.sum(0)),
        ("mean", parts.mean(0)),
        ("maximum", parts.max(0)),
        ("minimum", parts.min(0)),
    ):
        if is_near(whole, made.astype(whole.dtype)):
            return name
    for degree in (1, -1, 2):
        if all(is_near(whole, part * float(count) ** degree) for part in parts):
            return "multiple"
    return None


def _is_number(x: np.ndarray) -> bool:
    return x.dtype.kind in "fciu"


def holds(kind: Kind | None, whole: np.ndarray, parts: np.ndarray) -> bool:
    """True if replicas' values are as claimed, or in any known relation if nothing was claimed."""
    found = relation(whole, parts)
    if kind is None or kind.tag is Tag.MIXED:
        return found is not None
    if kind.tag is Tag.UNIFORM and kind.degree == 0:
        return found == "equal"
    return found is not None
