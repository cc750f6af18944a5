"""Observations brought to mean zero and variance one, by statistics of all that was seen."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.reduce import all_mean

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
