"""A normal distribution squashed into (-1, 1): Haarnoja et al. 2018, appendix C."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class TanhNormal(NamedTuple):
    """`tanh(mean + exp(log_std) * noise)`, independent over the last axis."""

    mean: jax.Array
    """`[..., A]`"""
    log_std: jax.Array
    """`[..., A]`"""

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The draws `[..., A]` that standard normal `noise` leads to, and their log-probabilities.

        From the noise and not from the draw: a draw near 1 does not tell what it was made of.
        """
        inner = self.mean + jnp.exp(self.log_std) * noise
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = -0.5 * jnp.square(noise) - self.log_std - constant - _log_slope(inner)
        return jnp.tanh(inner), jnp.sum(log_prob, axis=-1)

    def mode(self) -> jax.Array:
        """The image of the mean."""
        return jnp.tanh(self.mean)


def _log_slope(x: jax.Array) -> jax.Array:
    """`log(1 - tanh(x)^2)`, without taking the logarithm of a difference that rounds to zero."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
