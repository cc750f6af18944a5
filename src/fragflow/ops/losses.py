"""Losses of policy gradients and of action values, per sample; the caller takes the mean."""

import jax
import jax.numpy as jnp

from fragflow.ops.distributions import Distribution


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


def ppo_loss(
    distribution: Distribution,
    value: jax.Array,
    *,
    action: jax.Array,
    log_prob: jax.Array,
    advantage: jax.Array,
    target: jax.Array,
    weight: jax.Array | float = 1.0,
    clip: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped objective (Schulman et al. 2017, eq. 9), negated, and its parts.

    `distribution` and `value` are what the networks say now, the others what was collected;
    `weight` is 0 where nothing happened.
    """
    log_ratio = distribution.log_prob(action) - log_prob
    ratio = jnp.exp(log_ratio)
    policy_loss = jnp.mean(weight * clipped_surrogate(ratio, advantage, clip))
    critic_loss = jnp.mean(weight * value_loss(value, target))
    entropy = jnp.mean(weight * distribution.entropy())
    loss = policy_loss + value_coef * critic_loss - entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": critic_loss,
        "entropy": entropy,
        # Never negative and of low variance, unlike the mean of -log_ratio (Schulman 2020).
        "approx_kl": jnp.mean(weight * (ratio - 1.0 - log_ratio)),
        "clip_fraction": jnp.mean((jnp.abs(ratio - 1.0) > clip).astype(jnp.float32)),
    }


def huber(error: jax.Array, delta: float = 1.0) -> jax.Array:
    """Half the square of an error, linear beyond `delta` (Huber 1964; Mnih et al. 2015 clip so)."""
    size = jnp.abs(error)
    near = jnp.minimum(size, delta)
    return near * (size - 0.5 * near)
