"""The loss of PPO and its kin, and what to report of it."""

import jax
import jax.numpy as jnp

from fragflow.ops.distributions import Distribution
from fragflow.ops.losses import clipped_surrogate, value_loss


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
