"""Checks that observations stay within the bounds that their space declares."""

from typing import NamedTuple

import numpy as np

from fragflow.api.spaces import Box, Discrete, Space

SLACK = 1e-4
"""the part of the distance between bounds by which rounding may take a number beyond them"""


class Breach(NamedTuple):
    """The first observation of a batch that is out of range."""

    row: int
    words: str
    """the entry, its value and its bounds"""
    fix: str


class Range:
    """The bounds of a batch of observations, ready to be compared with one."""

    def __init__(self, space: Space, low: np.ndarray, high: np.ndarray, shape: tuple[int, ...]):
        self._space = space
        # One number is compared faster than many, and many faster than broadcast ones.
        self._low, self._high = (
            np.array(b.flat[0]) if (b == b.flat[0]).all() else np.broadcast_to(b, shape).copy()
            for b in (low, high)
        )
        self._within = np.empty((2, *shape), np.bool_)
        self._above, self._below = self._within

    @classmethod
    def of(cls, space: Space, shape: tuple[int, ...]) -> "Range | None":
        """The range of batches of `shape`; None if there is nothing to compare."""
        dtype = np.dtype(space.dtype)
        if dtype.kind not in "fiu" or dtype.itemsize > 4:
            return None  # flags have no range; JAX computes in 32 bits
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        low, high = declared_bounds(space)
        low = np.where(low <= float(limits.min), -np.inf, low)
        high = np.where(high >= float(limits.max), np.inf, high)
        if not (np.isfinite(low).any() or np.isfinite(high).any()):
            return None
        if dtype.kind == "f":
            slack = SLACK * _distance(low, high)
            low, high = low - slack, high + slack
        # Clipped to the limits of the type: infinity is then out of every range, as is NaN.
        low, high = (np.clip(b, limits.min, limits.max).astype(dtype) for b in (low, high))
        return cls(space, low, high, shape)

    def holds(self, obs: np.ndarray) -> bool:
        """True if all numbers are within their bounds, which NaN and infinity never are."""
        np.greater_equal(obs, self._low, self._above)
        np.less_equal(obs, self._high, self._below)
        return np.count_nonzero(self._within) == self._within.size

    def breach(self, obs: np.ndarray) -> Breach | None:
        """The first observation of a batch that is out of range, if any."""
        if self.holds(obs):
            return None
        row, *entry = (int(k) for k in np.argwhere(~self._within.all(0))[0])
        low, high = (
            np.broadcast_to(b, obs.shape[1:])[tuple(entry)] for b in declared_bounds(self._space)
        )
        where = f"entry {entry} of it is" if entry else "it is"
        words = f"{where} {obs[(row, *entry)]!s}, outside of {low:g} to {high:g}"
        if isinstance(self._space, Box):
            fix = (
                "Correct it, or declare wider bounds in its observation space; for an environment "
                "that is not yours, --env-arg observation_bounds=none declares none"
            )
        else:
            fix = "Correct it, or declare more choices in its observation space"
        return Breach(row, words, fix)


def _distance(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The distance between the bounds; with only one bound, its size, which is at least 1."""
    size = np.maximum(*(np.where(np.isfinite(b), np.abs(b), 1.0) for b in (low, high)))
    return np.where(np.isfinite(high - low), high - low, np.maximum(size, 1.0))


def declared_bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest values; infinite where none is declared."""
    if isinstance(space, Box):
        bounds = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
        low, high = (b.reshape(space.shape) if b.ndim else b for b in bounds)
        return np.broadcast_to(low, space.shape), np.broadcast_to(high, space.shape)
    counts = np.array(space.n if isinstance(space, Discrete) else space.counts, np.float64)
    return np.zeros_like(counts), counts - 1.0
