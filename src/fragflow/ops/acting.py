"""Acting: from a distribution to an action in an environment, and the record of a rollout."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Key, Shaped

from fragflow.api.environment import Timestep
from fragflow.api.spaces import Box, Space


class Rollout(NamedTuple):
    """Steps of a rollout: time first, then environments (and agents)."""

    obs: Shaped[Array, "T N ..."]
    action: Shaped[Array, "T N ..."]
    """as drawn; the environment got the same within its bounds"""
    log_prob: Any
    """of the action under the policy that acted; None where learning does not need it"""
    next_obs: Shaped[Array, "T N ..."]
    """the true successor, also where an episode ended"""
    reward: Float[Array, "T *N"]
    terminated: Bool[Array, "T *N"]
    truncated: Bool[Array, "T *N"]
    mask: Bool[Array, "T *N"] | None
    """False where nothing happened; None: it always did"""

    @property
    def done(self) -> Bool[Array, "T *N"]:
        """True at the last step of an episode, for whichever reason."""
        return self.terminated | self.truncated


def transition(
    obs: Shaped[Array, "N ..."],
    action: Shaped[Array, "N ..."],
    t: Timestep,
    log_prob: Float[Array, "N ..."] | None = None,
) -> Rollout:
    """One step of a rollout, without the axis of time: what `action` after `obs` led to."""
    return Rollout(obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated, t.mask)


def within_bounds(space: Space, action: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """The action that an environment gets for an agent's `action`."""
    if not isinstance(space, Box):
        return action
    return jnp.clip(action, *(lax.broadcast_to_rank(x, action.ndim) for x in space.bounds))


def act(
    distribution: Any, keys: Key[Array, "*B"], space: Space
) -> tuple[Shaped[Array, "..."], Shaped[Array, "..."], Float[Array, "*B"]]:
    """A draw per key, the same within the bounds of `space`, and the draw's log-probability."""
    action = distribution.sample(keys)
    return action, within_bounds(space, action), distribution.log_prob(action)


def choose(distribution: Any, key: Key[Array, "*B"], explore: bool) -> Shaped[Array, "..."]:
    """A trained agent's action: the likeliest one, or with `explore` a draw."""
    return distribution.sample(key) if explore else distribution.mode()
