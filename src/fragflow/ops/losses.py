"""Losses of policy-gradient methods, per sample; the caller takes the mean."""

import jax
import jax.numpy as jnp


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip: float) -> jax.Array:
    """PPO's loss of the policy (Schulman et al. 2017, eq. 7, negated).

    `ratio` is the probability of the action under the new policy over that under the old one.
    """
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error of the value."""
    return 0.5 * jnp.square(value - target)


def clipped_value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: float
) -> jax.Array:
    """Half the squared error, pessimistic about moves of more than `clip` from the old value.

    Not in the paper, but in its authors' code (see Engstrom et al. 2020, section 3).
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(value_loss(value, target), value_loss(near, target))
