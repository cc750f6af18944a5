"""Statistics over all environments of a run, wherever they are."""

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
