"""What a trajectory is worth: advantage estimates."""

import jax
import jax.numpy as jnp
from jax import lax


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

    def accumulate(later: jax.Array, step: tuple[jax.Array, jax.Array]):
        delta, decay = step
        advantage = delta + decay * later
        return advantage, advantage

    _, advantages = lax.scan(accumulate, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantages
