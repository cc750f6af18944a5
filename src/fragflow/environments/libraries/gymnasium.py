"""Environments of Gymnasium 1.x (Towers et al. 2024), stepped on the host."""

import dataclasses
import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragflow.api.host import HostBatch, HostStep
from fragflow.api.spaces import Box, Space
from fragflow.environments.on_host.gymnasium_spaces import space_of
from fragflow.environments.on_host.processes import ProcessBatch, default_processes
from fragflow.environments.on_host.sequential import Arrays, make_environment, reset_all, step_all
from fragflow.errors import ConfigError, did_you_mean, unknown

VECTORIZATIONS = ("auto", "vector", "sync", "process")
LEAVE_BOUNDS = ("LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore")
"""environments whose observations leave the bounds they declare; they are taken to have none"""
PROBE_STEPS = 64
WORTH_SECONDS = 200e-6
"""least time that processes must save per step of a batch; waking them costs about half of it"""


@dataclasses.dataclass(frozen=True)
class GymnasiumEnvironment:
    """One kind of Gymnasium environment.

    `vector` uses the environment's own implementation for many at once, which may draw random
    numbers for all of them together; `sync` steps one after the other, `process` in several
    processes; `auto` takes the first there is, or what a trial finds faster of the others.
    """

    name: str
    arguments: tuple[tuple[str, Any], ...]
    vectorization: str
    observation: Space
    action: Space

    @property
    def has_mask(self) -> bool:
        return self.vectorization == "vector"

    @property
    def draws_apart(self) -> bool:
        """True if an environment's randomness is its own, whatever shares its batch."""
        return self.vectorization != "vector"

    def with_time_limit(self, steps: int) -> "GymnasiumEnvironment":
        """With Gymnasium's own time limit lowered to `steps`."""
        arguments = dict(self.arguments)
        own = arguments.get("max_episode_steps", _spec(self.name).max_episode_steps)
        # -1 is Gymnasium's word for none.
        arguments["max_episode_steps"] = steps if own in (None, -1) else min(steps, own)
        return dataclasses.replace(self, arguments=tuple(sorted(arguments.items())))

    def open(self, ids: Sequence[int]) -> HostBatch:
        gym = importlib.import_module("gymnasium")
        arguments = dict(self.arguments)
        if self.vectorization == "vector":
            mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
            env = gym.make_vec(self.name, num_envs=len(ids), vectorization_mode=mode, **arguments)
            return VectorBatch(env, self.observation)
        if self.vectorization == "process":
            processes = default_processes()
            spaces = (self.observation, self.action)
            return ProcessBatch(self.name, arguments, ids, *spaces, processes)
        environments = [_one(self.name, arguments) for _ in ids]
        if self.vectorization == "auto" and _is_slow(environments[0], len(ids)):
            for env in environments:
                env.close()
            return dataclasses.replace(self, vectorization="process").open(ids)
        return SyncBatch(environments, self.observation)


class SyncBatch:
    """Environments stepped one after the other."""

    def __init__(self, environments: Sequence[Any], observation: Space):
        self.environments = environments
        self._observation = observation

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        out = self._new()
        reset_all(self.environments, seeds, out.obs)
        return out.obs

    def step(self, action: np.ndarray) -> HostStep:
        # New arrays each time: JAX may still read the last ones.
        out = self._new()
        step_all(self.environments, action, out)
        return HostStep(*out)

    def close(self) -> None:
        for env in self.environments:
            env.close()

    def _new(self) -> Arrays:
        space = self._observation
        return Arrays.new(len(self.environments), space.shape, space.dtype)


class VectorBatch:
    """An environment's own implementation for many at once, which restarts at the next step."""

    def __init__(self, env: Any, observation: Space):
        self._env = env
        self._dtype = np.dtype(observation.dtype)
        self._was_done = np.zeros(env.num_envs, np.bool_)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._was_done = np.zeros(self._env.num_envs, np.bool_)
        obs, _ = self._env.reset(seed=int(seeds[0]))
        return np.array(obs, self._dtype)

    def step(self, action: np.ndarray) -> HostStep:
        obs, reward, terminated, truncated, _ = self._env.step(action)
        obs = np.array(obs, self._dtype)
        mask = ~self._was_done
        terminated = np.array(terminated, np.bool_)
        truncated = np.array(truncated, np.bool_) & ~terminated
        self._was_done = terminated | truncated
        return HostStep(obs, obs, np.asarray(reward, np.float32), terminated, truncated, mask)

    def close(self) -> None:
        self._env.close()


def make(name: str, /, *, vectorization: str = "auto", **arguments: Any) -> GymnasiumEnvironment:
    """The environment registered as `name`; `arguments` go to `gymnasium.make`.

    `module:name` imports the module first, which registers it.
    """
    if vectorization not in VECTORIZATIONS:
        raise ConfigError(unknown("vectorization", vectorization, VECTORIZATIONS))
    spec = _spec(name)
    env = _one(name, arguments)
    try:
        observation = space_of(name, "observations", env.observation_space)
        if spec.name in LEAVE_BOUNDS and isinstance(observation, Box):
            observation = Box(shape=observation.shape, dtype=observation.dtype)
        action = space_of(name, "actions", env.action_space)
    finally:
        env.close()
    if vectorization == "vector" and not spec.vector_entry_point:
        raise ConfigError(f"{name} has no implementation for many at once: use vectorization=sync")
    if vectorization == "auto" and spec.vector_entry_point:
        vectorization = "vector"
    identity = tuple(sorted(arguments.items()))
    return GymnasiumEnvironment(name, identity, vectorization, observation, action)


def names() -> tuple[str, ...]:
    """Every environment that `make` knows without importing a module."""
    return tuple(_gymnasium().registry)


def _spec(name: str) -> Any:
    gym = _gymnasium()
    module, _, rest = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(rest)
    except (gym.error.Error, ImportError) as error:
        known = [word for word in gym.registry if not word.startswith("Gym")]
        hint = did_you_mean(name, known) if ":" not in name else f" {error}"
        raise ConfigError(f"unknown Gymnasium environment {name!r}.{hint}") from error


def _one(name: str, arguments: dict[str, Any]) -> Any:
    gym = _gymnasium()
    try:
        return make_environment(name, arguments)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        is_ours = "mujoco" in str(gym.spec(name).entry_point)
        hint = ": pip install 'fragflow[mujoco]'" if is_ours else ""
        raise ConfigError(
            f"{name} needs a package that is not installed ({error}){hint}"
        ) from error
    except TypeError as error:
        raise ConfigError(f"cannot make {name}: {error}") from error


def _is_slow(env: Any, count: int) -> bool:
    """Tries whether a step of `count` environments is worth handing to several processes."""
    processes = default_processes()
    if processes == 1 or count == 1:
        return False
    env.reset(seed=0)
    env.action_space.seed(0)
    began = time.perf_counter()
    for _ in range(PROBE_STEPS):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    seconds = (time.perf_counter() - began) / PROBE_STEPS
    return seconds * count * (1.0 - 1.0 / processes) > WORTH_SECONDS


def _gymnasium() -> Any:
    return importlib.import_module("gymnasium")
