"""What agents do, each with the actor of its team; actors have a memory (see `recurrent.py`)."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax

from fragflow.ops.distributions import Distribution
from fragflow.ops.teams import agent_keys, each_team, own_team


class RememberingActor(Protocol):
    """What is asked of a network; see `GRUActorCritic`."""

    def observe(self, part: Any, memory: jax.Array, obs: jax.Array) -> jax.Array: ...

    def policy(self, actor: Any, memory: jax.Array) -> Distribution: ...


def act_in_teams(
    network: RememberingActor,
    actors: Sequence[Any],
    teams: Sequence[int],
    memory: jax.Array,
    obs: jax.Array,
    keys: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Memories, sampled actions and their log-probabilities of all agents, `[N, A, ...]`.

    There is an actor for each team; `keys` are the environments', `[N]`.
    """

    def of_team(actor: Any, memory: jax.Array, obs: jax.Array, keys: jax.Array) -> Any:
        memory = network.observe(actor, memory, obs)
        distribution = network.policy(actor, memory)
        action = distribution.sample(keys)
        return memory, action, distribution.log_prob(action)

    per_agent = agent_keys(keys, sum(teams))
    return each_team(of_team, teams, 1, actors, memory, obs, per_agent)


def act_as_members(
    network: RememberingActor,
    params: Any,
    memory: jax.Array,
    obs: jax.Array,
    key: jax.Array,
    explore: bool,
) -> tuple[jax.Array, jax.Array]:
    """Actions and memories of all agents of one environment, `[A, ...]`.

    `params` has an `actor` for each team, and the `team` of each agent. Teams are known only when
    this runs, so every actor acts for all agents. Without `explore`, actions are the likeliest.
    """
    keys = jax.random.split(key, obs.shape[0])

    def as_team(actor: Any) -> tuple[jax.Array, jax.Array]:
        updated = network.observe(actor, memory, obs)
        distribution = network.policy(actor, updated)
        return distribution.sample(keys) if explore else distribution.mode(), updated

    each = [as_team(actor) for actor in params["actor"]]
    actions, memories = (own_team(params["team"], list(x)) for x in zip(*each, strict=True))
    return actions, memories
