"""Scales that are learnt: of observations, returns and values, over all environments of a run."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.reduce import all_mean
from fragflow.api.spaces import Box, Space
from fragflow.errors import ConfigError
from fragflow.ops.minibatches import take_time


def means(*xs: jax.Array, mask: jax.Array | None = None) -> tuple[jax.Array, ...]:
    """The mean of each of `xs` over all environments, of the elements where `mask` is True."""
    if mask is None:
        return all_mean(tuple(jnp.mean(x) for x in xs))
    kept = [jnp.where(mask, x, 0.0) for x in xs]
    *sums, share = all_mean(tuple(jnp.mean(x) for x in (*kept, mask.astype(jnp.float32))))
    return tuple(total / jnp.maximum(share, 1e-8) for total in sums)


def moments(x: jax.Array, mask: jax.Array | None = None) -> tuple[jax.Array, ...]:
    """The means of `x` and of its square, over the elements where `mask` is True."""
    return means(x, jnp.square(x), mask=mask)


def standardise(
    x: jax.Array,
    mask: jax.Array | None = None,
    time_idx: jax.Array | None = None,
    epsilon: float = 1e-8,
) -> jax.Array:
    """`x` shifted and scaled to mean zero and variance one, over the elements where `mask` is True.

    With `time_idx`, over those of them that are at these steps of time.
    """
    some = (x, mask) if time_idx is None else take_time((x, mask), time_idx)
    mean, mean_square = moments(*some)
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
    def of_nothing(space: Space) -> "Statistics":
        """Before anything was observed in `space`."""
        if not isinstance(space, Box):
            raise ConfigError(
                f"normalise_observations is for numbers, but observations are {space}"
            )
        return Statistics(jnp.zeros(space.shape), jnp.ones(space.shape), jnp.float32(0.0))


def normalise(statistics: Statistics | None, obs: jax.Array) -> jax.Array:
    """`obs` in standard deviations from the mean, as it is without statistics.

    Its last axes are an observation's.
    """
    if statistics is None:
        return obs
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


class ReturnScale(NamedTuple):
    """The running size of returns, in units of which a critic counts.

    One learning rate then fits returns of any size (compare van Hasselt et al. 2016), and the
    critic's loss does not drown the policy's where gradients are clipped.
    """

    square: jax.Array
    """running mean of squared returns"""

    @staticmethod
    def of_nothing() -> "ReturnScale":
        return ReturnScale(jnp.float32(1.0))

    @property
    def size(self) -> jax.Array:
        """The root of the mean square."""
        return jnp.sqrt(self.square)

    def mean_square(self, target: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """The mean square of the returns whose scaled estimates are `target`."""
        return self.square * means(jnp.square(target), mask=mask)[0]

    def moved(self, latest: jax.Array, iteration: jax.Array, memory: float) -> "ReturnScale":
        """The scale after an iteration whose mean square is `latest`."""
        weight = latest_weight(iteration, memory)
        square = self.square + weight * (latest - self.square)
        return ReturnScale(jnp.maximum(square, MIN_DEVIATION**2))


def latest_weight(iteration: jax.Array, memory: float) -> jax.Array:
    """The weight of the latest in a running average that keeps a share `memory` per iteration.

    At first the average is the plain mean of all iterations so far.
    """
    return jnp.maximum(1.0 / (1.0 + iteration), 1.0 - memory)


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

    def moved(
        self, target: jax.Array, mask: jax.Array | None, iteration: jax.Array, memory: float
    ) -> "ValueScale":
        """The running averages after an iteration whose returns are `target`."""
        weight = latest_weight(iteration, memory)
        latest = moments(target, mask)
        return ValueScale(*(a + weight * (b - a) for a, b in zip(self, latest, strict=True)))
