"""Acting: from a distribution to an action in an environment, and the record of a rollout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.environment import Timestep
from fragflow.api.spaces import Box, Space


class Rollout(NamedTuple):
    """Steps of a rollout, `[T, N, ...]`: time first, then environments (and agents)."""

    obs: jax.Array
    action: jax.Array
    """as drawn; the environment got the same within its bounds"""
    log_prob: Any
    """of the action under the policy that acted; None where learning does not need it"""
    next_obs: jax.Array
    """the true successor, also where an episode ended"""
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None
    """False where nothing happened; None: it always did"""

    @property
    def done(self) -> jax.Array:
        """True at the last step of an episode, for whichever reason."""
        return self.terminated | self.truncated


def transition(
    obs: jax.Array, action: jax.Array, t: Timestep, log_prob: jax.Array | None = None
) -> Rollout:
    """One step of a rollout, `[N, ...]`: what `action` after `obs` led to."""
    return Rollout(obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated, t.mask)


def within_bounds(space: Space, action: jax.Array) -> jax.Array:
    """The action that an environment gets for an agent's `action`."""
    return jnp.clip(action, *space.bounds) if isinstance(space, Box) else action


def act(distribution: Any, keys: jax.Array, space: Space) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A draw per key, the same within the bounds of `space`, and the draw's log-probability."""
    action = distribution.sample(keys)
    return action, within_bounds(space, action), distribution.log_prob(action)


def choose(distribution: Any, key: jax.Array, explore: bool) -> jax.Array:
    """A trained agent's action: the likeliest one, or with `explore` a draw."""
    return distribution.sample(key) if explore else distribution.mode()
