"""Scales that are learnt: of observations, returns and values, over all environments of a run."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.reduce import all_mean


def moments(x: jax.Array, weight: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The means of `x` and of its square; `weight` is 0 for elements that do not count, else 1."""
    if weight is None:
        return all_mean((jnp.mean(x), jnp.mean(jnp.square(x))))
    sums = (jnp.mean(weight * x), jnp.mean(weight * jnp.square(x)), jnp.mean(weight))
    total, total_square, share = all_mean(sums)
    share = jnp.maximum(share, 1e-8)
    return total / share, total_square / share


def standardise(x: jax.Array, weight: jax.Array | None = None, epsilon: float = 1e-8) -> jax.Array:
    """`x` shifted and scaled to mean zero and variance one over all its elements that count."""
    mean, mean_square = moments(x, weight)
    # Rounding may leave the difference below zero where all elements are equal.
    variance = jnp.maximum(mean_square - jnp.square(mean), 0.0)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon)


LARGEST = 10.0
"""in standard deviations; what lies further out is cut off"""


class Statistics(NamedTuple):
    """Of every entry of an observation."""

    mean: jax.Array
    variance: jax.Array
    number: jax.Array
    """observations seen, as a float: it outgrows 32 bits"""

    @staticmethod
    def of_nothing(shape: tuple[int, ...]) -> "Statistics":
        return Statistics(jnp.zeros(shape), jnp.ones(shape), jnp.float32(0.0))


def normalise(statistics: Statistics, obs: jax.Array) -> jax.Array:
    """`obs` in standard deviations from the mean; its last axes are an observation's."""
    scaled = (obs - statistics.mean) / jnp.sqrt(statistics.variance + 1e-8)
    return jnp.clip(scaled, -LARGEST, LARGEST)


def include(statistics: Statistics, obs: jax.Array, total: int) -> Statistics:
    """Statistics that also cover `obs` `[T, N, ...]`, which are `total` over all replicas.

    Chan et al. 1979, eq. 2.1, for means over all environments, wherever they are.
    """
    axes = (0, 1)
    mean = all_mean(jnp.mean(obs, axes))
    variance = all_mean(jnp.mean(jnp.square(obs - mean), axes))
    share = total / (statistics.number + total)
    delta = mean - statistics.mean
    return Statistics(
        statistics.mean + delta * share,
        statistics.variance
        + (variance - statistics.variance) * share
        + jnp.square(delta) * share * (1.0 - share),
        statistics.number + total,
    )


MIN_DEVIATION = 0.1
"""So that the first reward after a long time without any does not look enormous to the critic."""


class ValueScale(NamedTuple):
    """Running averages over returns; one per team, say."""

    mean: jax.Array
    square: jax.Array

    @staticmethod
    def of_nothing(shape: tuple[int, ...] = ()) -> "ValueScale":
        return ValueScale(jnp.zeros(shape), jnp.ones(shape))

    @property
    def deviation(self) -> jax.Array:
        variance = jnp.maximum(self.square - jnp.square(self.mean), 0.0)
        return jnp.maximum(jnp.sqrt(variance), MIN_DEVIATION)

    def normalised(self, value: jax.Array) -> jax.Array:
        return (value - self.mean) / self.deviation

    def restored(self, value: jax.Array) -> jax.Array:
        """In units of rewards again."""
        return value * self.deviation + self.mean

    def moved(self, towards: "ValueScale", weight: jax.Array) -> "ValueScale":
        """The running averages after newer ones."""
        return ValueScale(*(a + weight * (b - a) for a, b in zip(self, towards, strict=True)))
