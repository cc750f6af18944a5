"""Environments of PettingZoo's parallel API (Terry et al. 2021): several agents, on the host."""

import dataclasses
import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragflow.api.host import HostBatch, HostStep
from fragflow.environments.agents import Agents, WithAgents, agents_of
from fragflow.environments.on_host.gymnasium_spaces import space_of
from fragflow.environments.on_host.sequential import Failed
from fragflow.errors import ConfigError, did_you_mean

FAMILIES = ("mpe2", "pettingzoo.butterfly", "pettingzoo.sisl", "pettingzoo.classic")
NAMES = (
    *("simple_v3", "simple_adversary_v3", "simple_crypto_v3", "simple_push_v3"),
    *("simple_reference_v3", "simple_speaker_listener_v4", "simple_spread_v3", "simple_tag_v3"),
    "simple_world_comm_v3",
)
"""those of mpe2; others are found too, if what they need is installed"""


@dataclasses.dataclass(frozen=True)
class PettingzooEnvironment(WithAgents):
    """One kind of environment. Agents are in its own order; dead ones are masked."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    agents: Agents
    has_mask: bool = True
    draws_apart: bool = True
    time_limit: float = math.inf
    """steps after which we cut an episode; it may end earlier by itself"""

    def with_time_limit(self, steps: int) -> "PettingzooEnvironment":
        return dataclasses.replace(self, time_limit=min(steps, self.time_limit))

    def open(self, ids: Sequence[int]) -> HostBatch:
        return PettingzooBatch([_make(self.name, dict(self.arguments)) for _ in ids], self)


class PettingzooBatch:
    """Environments stepped one after the other."""

    def __init__(self, environments: Sequence[Any], kind: PettingzooEnvironment):
        self._environments = environments
        self._agents = list(environments[0].possible_agents)
        rows = (len(environments), kind.num_agents)
        self._rows = rows
        self._shape = (*rows, *kind.observation.shape)
        self._dtype = kind.observation.dtype
        self._time_limit = kind.time_limit
        self._padded = kind.agents.padded

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        obs = np.zeros(self._shape, self._dtype)
        self._ended = np.zeros(self._rows, np.bool_)
        self._steps = np.zeros(self._rows[0], np.int64)
        for i, seed in enumerate(seeds):
            obs[i] = self._start(i, int(seed))
        return obs

    def step(self, action: np.ndarray) -> HostStep:
        next_obs = np.zeros(self._shape, self._dtype)
        reward = np.zeros(self._rows, np.float32)
        terminated = self._ended.copy()
        truncated = np.zeros(self._rows, np.bool_)
        mask = ~self._ended
        for i, env in enumerate(self._environments):
            try:
                self._step_one(
                    i, env, action[i], next_obs[i], reward[i], terminated[i], truncated[i]
                )
            except Failed:
                raise
            except Exception as error:
                raise Failed(i, f"{type(error).__name__}: {error}") from error
        self._steps += 1
        truncated |= (self._steps >= self._time_limit)[:, None]
        truncated &= ~terminated
        self._ended = terminated | truncated
        obs = next_obs
        over = self._ended.all(1)
        if over.any():
            obs = next_obs.copy()
            for i in np.flatnonzero(over):
                obs[i] = self._start(int(i), None)
                self._ended[i] = False
            self._steps[over] = 0
        return HostStep(obs, next_obs, reward, terminated, truncated, mask)

    def close(self) -> None:
        for env in self._environments:
            env.close()

    def _start(self, i: int, seed: int | None) -> np.ndarray:
        try:
            seen, _ = self._environments[i].reset(seed=seed)
        except Exception as error:
            raise Failed(i, f"{type(error).__name__}: {error}") from error
        missing = [agent for agent in self._agents if agent not in seen]
        if missing:
            raise Failed(i, f"an episode starts without {', '.join(missing)}")
        return np.stack([self._padded(seen[agent]) for agent in self._agents])

    def _step_one(
        self,
        i: int,
        env: Any,
        action: np.ndarray,
        obs: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        alive = [k for k in range(len(self._agents)) if not self._ended[i, k]]
        actions = {self._agents[k]: action[k] for k in alive}
        seen, rewards, ends, cuts, _ = env.step(actions)
        back = [agent for agent in seen if agent not in actions]
        if back:
            raise Failed(i, f"{', '.join(back)} came back after its end")
        for k in alive:
            agent = self._agents[k]
            # An agent that is not mentioned any more has ended.
            terminated[k] = ends.get(agent, True)
            truncated[k] = cuts.get(agent, False)
            reward[k] = rewards.get(agent, 0.0)
            if agent in seen:
                obs[k] = self._padded(seen[agent])


def make(name: str, /, *, apart: bool = False, **arguments: Any) -> PettingzooEnvironment:
    """The environment `name` of mpe2 or PettingZoo; `arguments` go to its `parallel_env`.

    `apart`, every agent is a team of its own.
    """
    env = _make(name, arguments)
    agents = env.possible_agents
    seen = {a: space_of(name, "observations", env.observation_space(a)) for a in agents}
    done = {a: space_of(name, "actions", env.action_space(a)) for a in agents}
    env.close()
    return PettingzooEnvironment(
        name,
        tuple(sorted(arguments.items())),
        agents_of(name, seen, done, apart),
    )


def names() -> tuple[str, ...]:
    """Some environments that `make` knows."""
    return NAMES


def _make(name: str, arguments: dict[str, Any]) -> Any:
    problem: Exception | None = None
    for family in FAMILIES:
        try:
            module = importlib.import_module(f"{family}.{name}")
        except ImportError as error:
            problem = problem or error
            continue
        if not hasattr(module, "parallel_env"):
            raise ConfigError(
                f"{name} has no parallel_env: its agents take turns, or it is not a game"
            )
        try:
            return module.parallel_env(**arguments)
        except TypeError as error:
            raise ConfigError(f"cannot make {name}: {error}") from error
    raise ConfigError(
        f"there is no PettingZoo environment {name!r} here ({problem}).{did_you_mean(name, NAMES)} "
        "Those of mpe2 need: pip install 'fragflow[pettingzoo]'"
    )
