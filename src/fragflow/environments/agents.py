"""Several agents in one environment: their teams, and what they must have in common."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fragflow.api.spaces import Box, Space
from fragflow.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Agents:
    """The agents of an environment: arrays of what they see and do have a row for each."""

    teams: tuple[int, ...]
    """number of agents in each team; agents are in the order of teams"""
    observation: Space
    """of one agent; shorter ones are padded with zeros"""
    action: Space

    def padded(self, row: Any, numpy: Any = np) -> Any:
        """One agent's observation in the size of the largest."""
        if len(self.observation.shape) != 1 or row.shape == self.observation.shape:
            return row
        return numpy.pad(row, (0, self.observation.shape[0] - row.shape[0]))


class WithAgents:
    """Properties of an environment that follow from its agents."""

    agents: Agents

    @property
    def num_agents(self) -> int:
        return sum(self.agents.teams)

    @property
    def teams(self) -> tuple[int, ...]:
        return self.agents.teams

    @property
    def observation(self) -> Space:
        return self.agents.observation

    @property
    def action(self) -> Space:
        return self.agents.action


def agents_of(
    name: str,
    observations: Mapping[str, Space],
    actions: Mapping[str, Space],
    apart: bool = False,
) -> Agents:
    """The teams and common spaces of agents with these spaces; a team is named like its agents.

    Agents of a team share a network, so they must see alike. What different teams see is stacked
    in one array, so theirs must be vectors. All must act alike. `apart`, each is its own team.
    """
    if not isinstance(apart, bool):
        raise ConfigError(f"apart is {apart!r}: expected true (every agent is a team) or false")
    if not observations:
        raise ConfigError(f"{name} has no agents")
    agents = list(observations)
    teams = [list(members) for _, members in itertools.groupby(agents, team_name)]
    if apart:
        teams = [[agent] for agent in agents]
    elif len({team_name(team[0]) for team in teams}) < len(teams):
        teams = [agents]  # not in the order of teams, so that these cannot be told apart
    kinds = [
        same_space(name, "observations", {a: observations[a] for a in team}, " of one team")
        for team in teams
    ]
    return Agents(
        teams=tuple(map(len, teams)),
        observation=_largest(name, [team_name(team[0]) for team in teams], kinds),
        action=same_space(name, "actions", actions),
    )


def team_name(agent: str) -> str:
    """`adversary` for `adversary_2`."""
    return re.sub(r"_?\d+$", "", agent)


def same_space(name: str, what: str, spaces: Mapping[str, Space], whose: str = "") -> Space:
    """The one space of all agents."""
    if not spaces:
        raise ConfigError(f"{name} has no agents")
    first = next(iter(spaces))
    for agent, space in spaces.items():
        if space != spaces[first]:
            raise ConfigError(
                f"agents{whose} of {name} have different {what}: {first} has {spaces[first]}, "
                f"{agent} has {space}. Agents{whose} share one network, so their spaces must be "
                "equal."
            )
    return spaces[first]


def _largest(name: str, teams: Sequence[str], spaces: Sequence[Space]) -> Space:
    """A space that holds every team's vectors."""
    if all(space == spaces[0] for space in spaces):
        return spaces[0]
    boxes = [s for s in spaces if isinstance(s, Box) and len(s.shape) == 1]
    if len(boxes) < len(spaces) or len({box.dtype for box in boxes}) > 1:
        listed = ", ".join(f"{t} {s}" for t, s in zip(teams, spaces, strict=True))
        raise ConfigError(
            f"teams of {name} have different observations ({listed}): only vectors of one type are "
            "padded to one size"
        )
    low = min(float(np.min(box.low)) for box in boxes)
    high = max(float(np.max(box.high)) for box in boxes)
    # What fills up is zero.
    return Box(
        shape=(max(box.shape[0] for box in boxes),),
        dtype=boxes[0].dtype,
        low=min(low, 0.0),
        high=max(high, 0.0),
    )
