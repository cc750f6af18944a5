"""Agents in teams: one axis of agents, in the order of teams, and how they act."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32, Key, Shaped

from fragflow.ops.acting import choose
from fragflow.ops.distributions import Distribution


def team_slices(teams: Sequence[int]) -> list[slice]:
    """The slice of the agents' axis that each team has."""
    ends = [sum(teams[: k + 1]) for k in range(len(teams))]
    return [slice(end - size, end) for end, size in zip(ends, teams, strict=True)]


def members(tree: Any, team: slice, axis: int) -> Any:
    """One team's part of arrays whose axis `axis` is that of agents."""
    where = (*[slice(None)] * axis, team)
    return jax.tree.map(lambda x: x[where], tree)


def each_team(
    function: Callable[..., Any], teams: Sequence[int], axis: int, params: Sequence[Any], *args: Any
) -> Any:
    """`function` of each team's parameters and arrays, its results joined along agents again."""
    slices = team_slices(teams)
    results = [
        function(team_params, *(members(arg, team, axis) for arg in args))
        for team_params, team in zip(params, slices, strict=True)
    ]
    if len(results) == 1:
        return results[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis), *results)


def per_team(parts: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """`{part: one entry per team}` as one `{part: entry}` per team."""
    names = list(parts)
    return [dict(zip(names, team, strict=True)) for team in zip(*parts.values(), strict=True)]


def per_part(teams: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The reverse of `per_team`."""
    return {name: tuple(team[name] for team in teams) for name in teams[0]}


def team_metrics(teams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of all teams; the names of the second's start with `team1_`, and so on."""
    return {
        name if k == 0 else f"team{k}_{name}": value
        for k, metrics in enumerate(teams)
        for name, value in metrics.items()
    }


def team_numbers(teams: Sequence[int]) -> Int32[Array, " A"]:
    """The number of each agent's team."""
    return jnp.asarray(np.repeat(np.arange(len(teams), dtype=np.int32), teams))


def own_team(
    team: Int32[Array | np.ndarray, " A"], as_team: Sequence[Shaped[Array, "A *x"]]
) -> Shaped[Array, "A *x"]:
    """For each agent, what it would be as a member of its own team."""
    chosen = as_team[0]
    for k, other in enumerate(as_team[1:], start=1):
        is_member = (team == k).reshape(-1, *[1] * (other.ndim - 1))
        chosen = jnp.where(is_member, other, chosen)
    return chosen


def joint_observations(
    obs: Float[Array, "*B A D"], members: slice = slice(None)
) -> Float[Array, "*B M A*D"]:
    """All agents' views for each of `members`, its own first.

    The others follow in their order, so that an agent's view tells which agent it is.
    """
    chosen = range(*members.indices(obs.shape[-2]))
    # Slices, not indices: which agent is seen from where is known before anything runs.
    views = [jnp.concatenate([obs[..., k:, :], obs[..., :k, :]], -2) for k in chosen]
    return jnp.stack([view.reshape(*view.shape[:-2], -1) for view in views], -2)


def agent_keys(keys: Key[Array, " N"], count: int) -> Key[Array, "N {count}"]:
    """A key for each of `count` agents from each environment's."""
    return jax.vmap(lambda key: jax.random.split(key, count))(keys)


@runtime_checkable
class RememberingActor(Protocol):
    """The methods of a network that acting needs; see `GRUActorCritic`."""

    def observe(
        self, part: Any, memory: Float[Array, "*B units"], obs: Shaped[Array, "..."]
    ) -> Float[Array, "*B units"]: ...

    def policy(self, actor: Any, memory: Float[Array, "*B units"]) -> Distribution: ...


def act_in_teams(
    network: RememberingActor,
    actors: Sequence[Any],
    teams: Sequence[int],
    memory: Float[Array, "N A units"],
    obs: Shaped[Array, "N A ..."],
    keys: Key[Array, " N"],
) -> tuple[Float[Array, "N A units"], Shaped[Array, "N A ..."], Float[Array, "N A"]]:
    """Memories, sampled actions and their log-probabilities of all agents.

    There is an actor for each team; `keys` are the environments'.
    """

    def of_team(actor: Any, memory: Array, obs: Array, keys: Array) -> Any:
        memory = network.observe(actor, memory, obs)
        distribution = network.policy(actor, memory)
        action = distribution.sample(keys)
        return memory, action, distribution.log_prob(action)

    per_agent = agent_keys(keys, sum(teams))
    return each_team(of_team, teams, 1, actors, memory, obs, per_agent)


def act_as_members(
    network: RememberingActor,
    params: Any,
    memory: Float[Array, "A units"],
    obs: Shaped[Array, "A ..."],
    key: Key[Array, ""],
    explore: bool,
) -> tuple[Shaped[Array, "A ..."], Float[Array, "A units"]]:
    """Actions and memories of all agents of one environment.

    `params` has an `actor` for each team, and the `team` of each agent. Teams are known only when
    this runs, so every actor acts for all agents. Without `explore`, actions are the likeliest.
    """
    keys = jax.random.split(key, obs.shape[0])

    def as_team(actor: Any) -> tuple[Array, Array]:
        updated = network.observe(actor, memory, obs)
        distribution = network.policy(actor, updated)
        return choose(distribution, keys, explore), updated

    each = [as_team(actor) for actor in params["actor"]]
    actions, memories = (own_team(params["team"], list(x)) for x in zip(*each, strict=True))
    return actions, memories
