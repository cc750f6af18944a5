"""Losses of policy gradients and of action values, and the one rule for steps that are masked."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Shaped

from fragflow.ops.distributions import Distribution


def step_mean(x: Float[Array, "*B"], mask: Bool[Array, "*B"] | None = None) -> Float[Array, ""]:
    """The mean over steps of a loss's term, to which steps with a `mask` of False add nothing.

    At such a step nothing happened: its action changed nothing, and no return follows it. So it
    must count neither for the policy nor for the critic nor for the entropy: every term of a loss
    goes through here. The sum is divided by the number of all steps. That is the same on every
    replica; the number of those that count is not, and a mean of quotients with different
    denominators is not what one big batch would give.
    """
    return jnp.mean(x if mask is None else jnp.where(mask, x, 0.0))


def clipped_surrogate(
    ratio: Float[Array, "*B"], advantage: Float[Array, "*B"], clip: float
) -> Float[Array, "*B"]:
    """PPO's loss of the policy, per sample (Schulman et al. 2017, eq. 7, negated).

    `ratio` is the probability of the action under the new policy over that under the old one.
    """
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(value: Float[Array, "*B"], target: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Half the squared error of the value, per sample."""
    return 0.5 * jnp.square(value - target)


def clipped_value_loss(
    value: Float[Array, "*B"],
    old_value: Float[Array, "*B"],
    target: Float[Array, "*B"],
    clip: float,
) -> Float[Array, "*B"]:
    """Half the squared error, pessimistic about moves of more than `clip` from the old value.

    Not in the paper, but in its authors' code (see Engstrom et al. 2020, section 3).
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(value_loss(value, target), value_loss(near, target))


def policy_gradient_loss(
    *,
    log_prob: Float[Array, "*B"],
    advantage: Float[Array, "*B"],
    value: Float[Array, "*B"],
    target: Float[Array, "*B"],
    entropy: Float[Array, "*B"],
    mask: Bool[Array, "*B"] | None,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss of advantage actor-critic (Mnih et al. 2016, section 4), and its parts.

    `advantage` and `target` are taken for granted: only what they are compared with learns.
    """
    policy_loss = -step_mean(advantage * log_prob, mask)
    critic_loss = step_mean(value_loss(value, target), mask)
    mean_entropy = step_mean(entropy, mask)
    loss = policy_loss + value_coef * critic_loss - entropy_coef * mean_entropy
    return loss, {"policy_loss": policy_loss, "value_loss": critic_loss, "entropy": mean_entropy}


class PPOBatch(NamedTuple):
    """The data that PPO's gradient is computed from; any axes first, the same for all fields."""

    obs: Shaped[Array, "B ..."]
    """as networks see them"""
    action: Shaped[Array, "B ..."]
    log_prob: Float[Array, " B"]
    """under the policy that acted"""
    advantage: Float[Array, " B"]
    target: Float[Array, " B"]
    """for the critic"""
    mask: Bool[Array, " B"] | None
    """False where nothing happened"""
    value: Float[Array, " B"] | None = None
    """the critic's before learning; needed where its change is clipped"""


def ppo_loss(
    distribution: Distribution,
    value: Float[Array, "*B"],
    batch: PPOBatch,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
    clip_value: bool = False,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
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


def huber(error: Float[Array, "*B"], delta: float = 1.0) -> Float[Array, "*B"]:
    """Half the square of an error, linear beyond `delta` (Huber 1964; Mnih et al. 2015 clip so)."""
    size = jnp.abs(error)
    near = jnp.minimum(size, delta)
    return near * (size - 0.5 * near)
