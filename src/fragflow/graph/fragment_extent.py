"""Extents: the part of a run that a fragment holds, in environments and in agents of each."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api.environment import Environment, Step, num_agents_of, teams_of
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import Host, HostEnvironment
from fragflow.api.spaces import Space
from fragflow.policies.policy import Over


@dataclass(frozen=True, slots=True)
class Extent:
    """The environments and agents that a program is traced for."""

    envs: int
    times: int = 1
    parts: int = 1
    """every team has `times / parts` as many agents as in the environment"""

    def __str__(self) -> str:
        agents = {(1, 1): "", (2, 1): " of twice the agents"}.get(
            (self.times, self.parts), f" with a part in {self.parts} of the agents"
        )
        return f"{self.envs} environments{agents}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis that a fragment is replicated over, and the two programs that are compared for it."""

    over: Over
    extents: tuple[Extent, Extent]
    """of the whole, and of a replica"""
    sizes: tuple[int, int]
    """numbers of pieces, each of which a replica could hold, in these extents"""
    replica: Extent
    """of a replica as it runs; another extent is compared where this one is too small to tell"""
    teams: tuple[int, ...] = ()
    """of agents: their number in each team, in the second extent"""

    @property
    def is_stood_for(self) -> bool:
        """True if the program that runs is not the one that is compared: it must be tried."""
        return self.extents[1] != self.replica


def environments_axis(whole: int, part: int) -> Axis:
    """The axis of replicas with `part` of `whole` environments each.

    For one environment JAX writes other equations than for several: an axis of length one is
    broadcast, not followed. As many replicas with two environments each are compared instead; a
    run with one each has to be tried, as it is, by the probe.
    """
    sizes = (2 * whole, 2) if part == 1 else (whole, part)
    extents = (Extent(sizes[0]), Extent(sizes[1]))
    return Axis(over="environments", extents=extents, sizes=sizes, replica=Extent(part))


def agents_axis(envs: int, parts: int, teams: tuple[int, ...]) -> Axis:
    """The axis of replicas with one of `parts` parts of each team.

    If a part of some team is a single agent, programs for twice the agents are compared.
    """
    times = 2 if min(teams) == parts else 1
    return Axis(
        over="agents",
        extents=(Extent(envs, times=times), Extent(envs, times=times, parts=parts)),
        sizes=(parts, 1),
        replica=Extent(envs, parts=parts),
        teams=tuple(size * times // parts for size in teams),
    )


def as_traced(environment: AnyEnvironment | Host, extent: Extent) -> Any:
    """`environment` as a program of that extent sees it."""
    if (extent.times, extent.parts) == (1, 1):
        return environment
    if isinstance(environment, Host):
        part = _HostPart(environment.environment, extent)
        return Host(part, is_compiled=environment.is_compiled)
    if isinstance(environment, HostEnvironment):
        return _HostPart(environment, extent)
    return _JaxPart(environment, extent)


@dataclass(frozen=True)
class _Part:
    """An environment that shows another number of agents. It never runs: only shapes are needed."""

    whole: Any
    extent: Extent

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def observation(self) -> Space:
        return self.whole.observation

    @property
    def action(self) -> Space:
        return self.whole.action

    @property
    def total_teams(self) -> tuple[int, ...]:
        return teams_of(self.whole)

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(n * self.extent.times // self.extent.parts for n in self.total_teams)

    @property
    def num_agents(self) -> int:
        return sum(self.teams)


class _JaxPart(_Part):
    whole: Environment

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.whole.reset(key)
        return state, _resized(obs, self.num_agents)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        step = self.whole.step(state, _resized(action, num_agents_of(self.whole) or 1), key)
        return Step(step.state, *_resized(tuple(step[1:]), self.num_agents))


class _HostPart(_Part):
    whole: HostEnvironment

    @property
    def has_mask(self) -> bool:
        return self.whole.has_mask

    @property
    def draws_apart(self) -> bool:
        return self.whole.draws_apart

    def open(self, ids: Any) -> Any:
        raise AssertionError(f"some agents of {self.name} cannot be stepped by themselves: {ids}")


def _resized(tree: Any, count: int) -> Any:
    """Arrays resized to `count` rows: some are left out, or repeated."""

    def resized(leaf: Any) -> jax.Array:
        return jnp.asarray(leaf)[np.arange(count) % jnp.shape(leaf)[0]]

    return jax.tree.map(resized, tree)
