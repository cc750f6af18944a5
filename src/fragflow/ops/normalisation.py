"""Scales that are learnt: of observations, returns and values, over all environments of a run."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Shaped

from fragflow.api.reduce import all_mean
from fragflow.api.spaces import Box, Space
from fragflow.errors import ConfigError
from fragflow.ops.minibatches import take_time


def means(
    *xs: Float[Array, "*B"], mask: Bool[Array, "*B"] | None = None
) -> tuple[Float[Array, ""], ...]:
    """The mean of each of `xs` over all environments, of the elements where `mask` is True."""
    if mask is None:
        return all_mean(tuple(jnp.mean(x) for x in xs))
    kept = [jnp.where(mask, x, 0.0) for x in xs]
    *sums, share = all_mean(tuple(jnp.mean(x) for x in (*kept, mask.astype(jnp.float32))))
    return tuple(total / jnp.maximum(share, 1e-8) for total in sums)


def moments(
    x: Float[Array, "*B"], mask: Bool[Array, "*B"] | None = None
) -> tuple[Float[Array, ""], ...]:
    """The means of `x` and of its square, over the elements where `mask` is True."""
    return means(x, jnp.square(x), mask=mask)


def standardise(
    x: Float[Array, "*B"],
    mask: Bool[Array, "*B"] | None = None,
    time_idx: Int32[Array, "..."] | None = None,
    epsilon: float = 1e-8,
) -> Float[Array, "*B"]:
    """`x` shifted and scaled to mean zero and variance one, over the elements where `mask` is True.

    With `time_idx`, over those of them that are at these steps of time.
    """
    some = (x, mask) if time_idx is None else take_time((x, mask), time_idx)
    mean, mean_square = moments(*some)
    # Rounding may leave the difference below zero where all elements are equal.
    variance = jnp.maximum(mean_square - jnp.square(mean), 0.0)
    return (x - mean) * lax.rsqrt(variance + epsilon)


LARGEST = 10.0
"""in standard deviations; what lies further out is cut off"""


class Statistics(NamedTuple):
    """Of every entry of an observation."""

    mean: Float[Array, "*obs"]
    variance: Float[Array, "*obs"]
    number: Float[Array, ""]
    """observations seen, as a float: it outgrows 32 bits"""

    @staticmethod
    def of_nothing(space: Space) -> "Statistics":
        """Before anything was observed in `space`."""
        if not isinstance(space, Box):
            raise ConfigError(
                f"normalise_observations is for numbers, but observations are {space}"
            )
        return Statistics(jnp.zeros(space.shape), jnp.ones(space.shape), jnp.float32(0.0))


def normalise(statistics: Statistics | None, obs: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """`obs` in standard deviations from the mean, as it is without statistics.

    Its last axes are an observation's.
    """
    if statistics is None:
        return obs
    deviation = jnp.sqrt(statistics.variance + 1e-8)
    scaled = obs - lax.broadcast_to_rank(statistics.mean, obs.ndim)
    scaled = scaled / lax.broadcast_to_rank(deviation, obs.ndim)
    return jnp.clip(scaled, -LARGEST, LARGEST)


def include(statistics: Statistics, obs: Float[Array, "T N *obs"], total: int) -> Statistics:
    """Statistics that also cover `obs`, which are `total` over all replicas.

    Chan et al. 1979, eq. 2.1, for means over all environments, wherever they are.
    """
    axes = (0, 1)
    mean = all_mean(jnp.mean(obs, axes))
    variance = all_mean(jnp.mean(jnp.square(obs - lax.broadcast_to_rank(mean, obs.ndim)), axes))
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

    square: Float[Array, ""]
    """running mean of squared returns"""

    @staticmethod
    def of_nothing() -> "ReturnScale":
        return ReturnScale(jnp.float32(1.0))

    @property
    def size(self) -> Float[Array, ""]:
        """The root of the mean square."""
        return jnp.sqrt(self.square)

    def mean_square(
        self, target: Float[Array, "*B"], mask: Bool[Array, "*B"] | None = None
    ) -> Float[Array, ""]:
        """The mean square of the returns whose scaled estimates are `target`."""
        return self.square * means(jnp.square(target), mask=mask)[0]

    def moved(
        self, latest: Float[Array, ""], iteration: Int32[Array, ""], memory: float
    ) -> "ReturnScale":
        """The scale after an iteration whose mean square is `latest`."""
        weight = latest_weight(iteration, memory)
        square = self.square + weight * (latest - self.square)
        return ReturnScale(jnp.maximum(square, MIN_DEVIATION**2))


def latest_weight(iteration: Int32[Array, ""], memory: float) -> Float[Array, ""]:
    """The weight of the latest in a running average that keeps a share `memory` per iteration.

    At first the average is the plain mean of all iterations so far.
    """
    return jnp.maximum(1.0 / (1.0 + iteration.astype(jnp.float32)), 1.0 - memory)


class ValueScale(NamedTuple):
    """Running averages over returns; one per team, say."""

    mean: Float[Array, "*teams"]
    square: Float[Array, "*teams"]

    @staticmethod
    def of_nothing(shape: tuple[int, ...] = ()) -> "ValueScale":
        return ValueScale(jnp.zeros(shape), jnp.ones(shape))

    @property
    def deviation(self) -> Float[Array, "*teams"]:
        variance = jnp.maximum(self.square - jnp.square(self.mean), 0.0)
        return jnp.maximum(jnp.sqrt(variance), MIN_DEVIATION)

    def normalised(self, value: Float[Array, "*B"]) -> Float[Array, "*B"]:
        return (value - self.mean) / self.deviation

    def restored(self, value: Float[Array, "*B"]) -> Float[Array, "*B"]:
        """In units of rewards again."""
        return value * self.deviation + self.mean

    def moved(
        self,
        target: Float[Array, "*B"],
        mask: Bool[Array, "*B"] | None,
        iteration: Int32[Array, ""],
        memory: float,
    ) -> "ValueScale":
        """The running averages after an iteration whose returns are `target`."""
        weight = latest_weight(iteration, memory)
        latest = moments(target, mask)
        return ValueScale(*(a + weight * (b - a) for a, b in zip(self, latest, strict=True)))
