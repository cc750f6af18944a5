"""Losses of policy gradients and of action values, and the one rule for steps that are masked."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.ops.distributions import Distribution


def step_mean(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The mean over steps of a loss's term, to which steps with a `mask` of False add nothing.

    At such a step nothing happened: its action changed nothing, and no return follows it. So it
    must count neither for the policy nor for the critic nor for the entropy: every term of a loss
    goes through here. The sum is divided by the number of all steps. That is the same on every
    replica; the number of those that count is not, and a mean of quotients with different
    denominators is not what one big batch would give.
    """
    return jnp.mean(x if mask is None else jnp.where(mask, x, 0.0))


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip: float) -> jax.Array:
    """PPO's loss of the policy, per sample (Schulman et al. 2017, eq. 7, negated).

    `ratio` is the probability of the action under the new policy over that under the old one.
    """
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error of the value, per sample."""
    return 0.5 * jnp.square(value - target)


def clipped_value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: float
) -> jax.Array:
    """Half the squared error, pessimistic about moves of more than `clip` from the old value.

    Not in the paper, but in its authors' code (see Engstrom et al. 2020, section 3).
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(value_loss(value, target), value_loss(near, target))


def policy_gradient_loss(
    *,
    log_prob: jax.Array,
    advantage: jax.Array,
    value: jax.Array,
    target: jax.Array,
    entropy: jax.Array,
    mask: jax.Array | None,
    value_coef: float,
    entropy_coef: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of advantage actor-critic (Mnih et al. 2016, section 4), and its parts.

    `advantage` and `target` are taken for granted: only what they are compared with learns.
    """
    policy_loss = -step_mean(advantage * log_prob, mask)
    critic_loss = step_mean(value_loss(value, target), mask)
    entropy = step_mean(entropy, mask)
    loss = policy_loss + value_coef * critic_loss - entropy_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": critic_loss, "entropy": entropy}


class PPOBatch(NamedTuple):
    """The data that PPO's gradient is computed from; any axes first, the same for all fields."""

    obs: jax.Array
    """as networks see them"""
    action: jax.Array
    log_prob: jax.Array
    """under the policy that acted"""
    advantage: jax.Array
    target: jax.Array
    """for the critic"""
    mask: jax.Array | None
    """False where nothing happened"""
    value: jax.Array | None = None
    """the critic's before learning; needed where its change is clipped"""


def ppo_loss(
    distribution: Distribution,
    value: jax.Array,
    batch: PPOBatch,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
    clip_value: bool = False,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped objective (Schulman et al. 2017, eq. 9), negated, and its parts.

    `distribution` and `value` are what the networks say now, `batch` is what was collected.
    """
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    policy_loss = step_mean(clipped_surrogate(ratio, batch.advantage, clip), batch.mask)
    if clip_value and batch.value is not None:
        errors = clipped_value_loss(value, batch.value, batch.target, clip)
    else:
        errors = value_loss(value, batch.target)
    critic_loss = step_mean(errors, batch.mask)
    entropy = step_mean(distribution.entropy(), batch.mask)
    loss = policy_loss + value_coef * critic_loss - entropy_coef * entropy
    is_clipped = (jnp.abs(ratio - 1.0) > clip).astype(jnp.float32)
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": critic_loss,
        "entropy": entropy,
        # Never negative and of low variance, unlike the mean of -log_ratio (Schulman 2020).
        "approx_kl": step_mean(ratio - 1.0 - log_ratio, batch.mask),
        "clip_fraction": step_mean(is_clipped, batch.mask),
    }


def huber(error: jax.Array, delta: float = 1.0) -> jax.Array:
    """Half the square of an error, linear beyond `delta` (Huber 1964; Mnih et al. 2015 clip so)."""
    size = jnp.abs(error)
    near = jnp.minimum(size, delta)
    return near * (size - 0.5 * near)
