"""The base class of wrappers, and environments inside one: JAX programs and host batches."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api.environment import Environment, Step, num_agents_of, teams_of
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import AsyncBatch, HostBatch, HostEnvironment, HostStep, answers_one_by_one
from fragflow.api.spaces import Space
from fragflow.errors import ConfigError


@dataclass(frozen=True)
class Wrapper:
    """Changes what an agent sees, does and earns; never when an episode ends.

    Pure functions of arrays, of numpy or of JAX (`array.__array_namespace__()` says which), with
    any axes in front of an observation's, an action's or a reward's own. Spaces that they get are
    the environment's.
    """

    def observation(self, space: Space) -> Space:
        """The space of observations as seen from outside."""
        return space

    def action(self, space: Space) -> Space:
        """The space of actions as seen from outside."""
        return space

    def first(self, space: Space, obs: Any) -> tuple[Any, Any]:
        """An episode's first observation, and what to remember of it."""
        del space
        return obs, ()

    def next(self, space: Space, obs: Any, memory: Any) -> tuple[Any, Any]:
        """A further observation, and what to remember; by default nothing is."""
        del memory
        return self.first(space, obs)

    def act(self, space: Space, action: Any) -> Any:
        """The action that the environment gets."""
        del space
        return action

    def reward(self, reward: Any) -> Any:
        return reward

    def around(self, environment: AnyEnvironment) -> AnyEnvironment:
        """The environment inside this wrapper."""
        spaces = self.observation(environment.observation), self.action(environment.action)
        if isinstance(environment, HostEnvironment):
            return WrappedHost(environment, self, *spaces)
        return Wrapped(environment, self, *spaces)


@dataclass(frozen=True)
class _Within:
    """What does not change around an environment."""

    environment: Any

    @property
    def name(self) -> str:
        return self.environment.name

    @property
    def num_agents(self) -> int | None:
        return num_agents_of(self.environment)

    @property
    def teams(self) -> tuple[int, ...]:
        return teams_of(self.environment)


@dataclass(frozen=True)
class _Around(_Within):
    """An environment in a wrapper."""

    wrapper: Wrapper
    observation: Space
    action: Space


@dataclass(frozen=True)
class Wrapped(_Around):
    """A JAX environment in a wrapper, whose memory is part of its state."""

    environment: Environment

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.environment.reset(key)
        obs, memory = self.wrapper.first(self.environment.observation, jnp.asarray(obs))
        return (state, memory), obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        inner, memory = state
        action = self.wrapper.act(self.environment.action, action)
        step = self.environment.step(inner, action, key)
        space = self.environment.observation
        obs, memory = self.wrapper.next(space, jnp.asarray(step.obs), memory)
        reward = self.wrapper.reward(jnp.asarray(step.reward, jnp.float32))
        return step._replace(state=(step.state, memory), obs=obs, reward=reward)


@dataclass(frozen=True)
class TimeLimited(_Within):
    """A JAX environment whose episodes are cut after `steps` steps."""

    environment: Environment
    steps: int

    @property
    def observation(self) -> Space:
        return self.environment.observation

    @property
    def action(self) -> Space:
        return self.environment.action

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.environment.reset(key)
        return (state, jnp.int32(0)), obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        inner, made = state
        step = self.environment.step(inner, action, key)
        terminated = jnp.asarray(step.terminated, bool)
        is_over = jnp.asarray(step.truncated, bool) | (made + 1 >= self.steps)
        return step._replace(state=(step.state, made + 1), truncated=is_over & ~terminated)


@dataclass(frozen=True)
class WrappedHost(_Around):
    """An environment on the host in a wrapper."""

    environment: HostEnvironment

    @property
    def has_mask(self) -> bool:
        return self.environment.has_mask

    @property
    def draws_apart(self) -> bool:
        return self.environment.draws_apart

    @property
    def answers_one_by_one(self) -> bool:
        return answers_one_by_one(self.environment)

    def open(self, ids: Sequence[int]) -> HostBatch:
        return WrappedBatch(self.environment.open(ids), self)

    def open_one_by_one(self, ids: Sequence[int]) -> AsyncBatch:
        environment: Any = self.environment
        return WrappedBatch(environment.open_one_by_one(ids), self)


class WrappedBatch:
    """A batch on the host in a wrapper, whose memory is kept here, one row per environment."""

    def __init__(self, batch: Any, kind: WrappedHost):
        self._batch = batch
        self._wrapper = kind.wrapper
        self._observation = kind.environment.observation
        self._action = kind.environment.action
        # Multi-agent environments also report masks, but never spend a step on a reset.
        self._starts_later = kind.has_mask and kind.num_agents is None
        self._memory: Any = ()

    def reset(self, seeds: np.ndarray) -> Any:
        obs, self._memory = self._wrapper.first(self._observation, self._batch.reset(seeds))
        return obs

    def step(self, action: np.ndarray) -> HostStep:
        step = self._batch.step(self._wrapper.act(self._action, action))
        step, self._memory = self._seen(step, self._memory)
        return step

    def send(self, rows: np.ndarray, action: np.ndarray) -> None:
        self._batch.send(rows, self._wrapper.act(self._action, action))

    def receive(self, count: int) -> tuple[np.ndarray, HostStep]:
        rows, step = self._batch.receive(count)
        step, memory = self._seen(step, jax.tree.map(lambda m: m[rows], self._memory))
        self._memory = jax.tree.map(
            lambda new, old: _replaced(rows, new, old), memory, self._memory
        )
        return rows, step

    def _seen(self, step: HostStep, memory: Any) -> tuple[HostStep, Any]:
        """A step of some environments as seen through the wrapper, and what it remembers then."""
        next_obs, memory = self._wrapper.next(self._observation, step.next_obs, memory)
        obs = next_obs
        rows = self._starting(step)
        if len(rows):
            fresh = self._wrapper.first(self._observation, step.obs[rows])
            obs, memory = jax.tree.map(lambda *a: _replaced(rows, *a), fresh, (obs, memory))
            if self._starts_later:
                next_obs = obs  # nothing happened in these rows
        reward = self._wrapper.reward(step.reward)
        return step._replace(obs=obs, next_obs=next_obs, reward=reward), memory

    def close(self) -> None:
        self._batch.close()

    def _starting(self, step: HostStep) -> np.ndarray:
        """The rows where `step.obs` is the first observation of an episode."""
        if self._starts_later and step.mask is not None:
            return np.flatnonzero(~step.mask)
        done = step.terminated | step.truncated
        return np.flatnonzero(done.reshape(len(done), -1).all(1))


def _replaced(rows: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    # A copy: JAX may still read the old array.
    changed = old.copy()
    changed[rows] = new
    return changed


def with_time_limit(environment: HostEnvironment, steps: int) -> HostEnvironment:
    """The environment with episodes of at most `steps` steps, which only itself can cut."""
    if isinstance(environment, WrappedHost):
        inner = with_time_limit(environment.environment, steps)
        return dataclasses.replace(environment, environment=inner)
    limited = getattr(environment, "with_time_limit", None)
    if limited is None:
        raise ConfigError(
            f"time_limit: {environment.name} runs on the host and starts its episodes itself, so "
            "nothing outside can cut them. Give it a method with_time_limit(steps) that returns "
            "the environment with that limit"
        )
    return limited(steps)
