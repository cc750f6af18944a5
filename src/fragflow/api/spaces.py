"""Spaces of observations and actions: shapes, types and ranges of one environment."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """An array; bounds are scalars or arrays of its shape, infinite if not given."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound, each of the box's shape."""

        def full(bound: float | tuple[float, ...]) -> np.ndarray:
            array = np.asarray(bound, self.dtype)
            return np.broadcast_to(
                array if array.ndim == 0 else array.reshape(self.shape), self.shape
            )

        return full(self.low), full(self.high)

    def zeros(self) -> jax.Array:
        return jnp.zeros(self.shape, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrete:
    """One of `n` choices, an int32 scalar."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> str:
        return "int32"

    def zeros(self) -> jax.Array:
        return jnp.zeros((), jnp.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiDiscrete:
    """Several choices at once, an int32 vector: entry `k` is one of `counts[k]`."""

    counts: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.counts),)

    @property
    def dtype(self) -> str:
        return "int32"

    def zeros(self) -> jax.Array:
        return jnp.zeros(self.shape, jnp.int32)


Space: TypeAlias = Box | Discrete | MultiDiscrete


def space_types(space: Space) -> jax.ShapeDtypeStruct:
    """The type of one value of a space."""
    return jax.ShapeDtypeStruct(space.shape, space.dtype)
