"""The contract of one environment, and what a step of many of them returns."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from fragflow.api.spaces import Space


class Step(NamedTuple):
    """One environment's answer to one action. The environment does not reset itself."""

    state: Any
    obs: Any
    reward: jax.Array
    terminated: jax.Array
    """the episode ended: nothing follows, so its value is zero"""
    truncated: jax.Array
    """the episode was cut (time limit): its value goes on"""
    mask: jax.Array | None = None
    """with several agents: False for those that had ended before this step"""


@runtime_checkable
class Environment(Protocol):
    """One environment as pure JAX functions. Resetting and batching are done for it.

    With a further attribute `num_agents`, observations, actions, rewards, ends and masks have an
    axis of agents first; spaces are those of one agent, and an episode is over when all have ended.
    With `teams`, the number of agents in each, agents are ordered by team.
    """

    @property
    def name(self) -> str: ...
    @property
    def observation(self) -> Space: ...
    @property
    def action(self) -> Space: ...

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """A new episode: (state, obs)."""
        ...

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step: ...


def num_agents_of(environment: Any) -> int | None:
    """The number of agents in an environment; None for one agent without an axis of its own."""
    return getattr(environment, "num_agents", None)


def teams_of(environment: Any) -> tuple[int, ...]:
    """The number of agents in each team; all are in one unless the environment says otherwise."""
    return getattr(environment, "teams", None) or (num_agents_of(environment) or 1,)


def total_teams_of(environment: Any) -> tuple[int, ...]:
    """The number of agents in each team, also where only some of them are here."""
    return getattr(environment, "total_teams", None) or teams_of(environment)


class Timestep(NamedTuple):
    """A batch of environments after one step; the environment axis comes first, then agents'."""

    obs: Any
    """act on this next; the first observation of the new episode where one ended"""
    next_obs: Any
    """the true successor; differs from `obs` where an episode ended"""
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None = None
    """False where nothing happened: a step that starts an episode, or an agent that had ended; None
    if there is no such step"""

    @property
    def done(self) -> jax.Array:
        return self.terminated | self.truncated
