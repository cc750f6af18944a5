"""What a trajectory is worth: advantage estimates."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fragflow.api.kernel import kernel
from fragflow.ops import native, pallas_kernels


def gae(
    *,
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: float,
    gae_lambda: float,
) -> jax.Array:
    """Generalised advantage estimates, `[T, N]` (Schulman et al. 2016, eq. 16).

    All arrays are `[T, N]`. `next_value` is the value of the true successor: where an episode was
    truncated that is not the observation acted on next, so the estimate bootstraps through the
    truncation. `done` marks the last step of an episode, for whichever reason.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    # The sum over later steps stops at the episode's end, also where its value goes on.
    decay = jnp.where(done, 0.0, gamma * gae_lambda)

    return discounted_sums(delta, decay)


@kernel("discounted_sums")
def discounted_sums(reward: jax.Array, discount: jax.Array) -> jax.Array:
    """`sum_t = reward_t + discount_t * sum_t+1` along the first axis.

    With a discount of zero where an episode ends, these are the episode's rewards to go.
    """

    def accumulate(later: jax.Array, step: tuple[jax.Array, jax.Array]):
        reward, discount = step
        total = reward + discount * later
        return total, total

    _, totals = lax.scan(accumulate, jnp.zeros_like(reward[0]), (reward, discount), reverse=True)
    return totals


def _are_floats(avals: Sequence[Any]) -> bool:
    first, second = avals
    return first.shape == second.shape and first.dtype == second.dtype == jnp.float32


discounted_sums.implementation("cpp", picked_on=["cpu"], absent=native.absent, fits=_are_floats)(
    native.discounted_sums
)
discounted_sums.implementation("pallas", fits=_are_floats)(pallas_kernels.discounted_sums)
