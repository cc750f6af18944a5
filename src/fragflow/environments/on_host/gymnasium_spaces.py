"""Spaces of Gymnasium, which other libraries use too, as ours."""

from typing import Any

import numpy as np

from fragflow.api.spaces import Box, Discrete, MultiDiscrete, Space
from fragflow.errors import ConfigError


def space_of(name: str, what: str, space: Any) -> Space:
    """A Gymnasium space as ours."""
    match type(space).__name__:
        case "Discrete":
            if int(space.start) != 0:
                raise ConfigError(
                    f"{name} has {what} that count from {space.start}: only counting from 0 is "
                    "supported"
                )
            return Discrete(n=int(space.n))
        case "Box":
            return Box(
                shape=tuple(space.shape),
                dtype=_dtype(space.dtype),
                low=_bound(space.low),
                high=_bound(space.high),
            )
        case "MultiDiscrete" if space.nvec.ndim == 1 and not np.any(space.start):
            return MultiDiscrete(counts=tuple(int(n) for n in space.nvec))
        case other:
            raise ConfigError(
                f"{name} has {what} of type {other}: only Box, Discrete and MultiDiscrete are "
                "supported, and Dict and Tuple of them for observations"
            )


def _dtype(dtype: Any) -> str:
    """JAX computes in 32 bits."""
    name = np.dtype(dtype).name
    return {"float64": "float32", "int64": "int32"}.get(name, name)


def _bound(bound: np.ndarray) -> float | tuple[float, ...]:
    array = np.asarray(bound, np.float64)
    if np.dtype(bound.dtype).kind == "f":
        # "Unbounded" is also written as the largest number; and in C++, by mistake, its "least" is
        # the smallest positive one.
        limits = np.finfo(bound.dtype)
        array = np.where(np.abs(array) >= limits.max, np.copysign(np.inf, array), array)
        array = np.where(array == limits.tiny, -np.inf, array)
    if np.all(array == array.flat[0]):
        return float(array.flat[0])
    return tuple(array.ravel().tolist())
