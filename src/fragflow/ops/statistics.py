"""Statistics over all environments of a run, wherever they are."""

import jax
import jax.numpy as jnp

from fragflow.api.reduce import all_mean


def standardise(x: jax.Array, epsilon: float = 1e-8) -> jax.Array:
    """`x` shifted and scaled to mean zero and variance one over all its elements."""
    mean, mean_square = all_mean((jnp.mean(x), jnp.mean(jnp.square(x))))
    # Rounding may leave the difference below zero where all elements are equal.
    variance = jnp.maximum(mean_square - jnp.square(mean), 0.0)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon)
