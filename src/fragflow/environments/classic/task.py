"""The common part of the tasks of classic control: their interface, and their time limit."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api.environment import Step
from fragflow.api.spaces import Box, Space


class Task(Protocol):
    """A frozen dataclass; its fields are the constants that `--env-arg` sets."""

    @property
    def max_steps(self) -> int: ...
    @property
    def observation(self) -> Box: ...
    @property
    def action(self) -> Space: ...

    def start(self, key: jax.Array) -> Any:
        """The first state of an episode; `time`, the steps made since, is its first leaf."""
        ...

    def advance(self, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """The next state, the reward, and whether the episode has ended there."""
        ...

    def observe(self, state: Any) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class ClassicControl:
    """A task as an environment. Nothing but the first state is left to chance."""

    name: str
    task: Task
    observation: Box
    action: Space
    entries: tuple[int, ...] | None = None
    """those of the task's observations that are seen; None: all"""

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self.task.start(key)
        return state, self._seen(state)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        del key
        state, reward, terminated = self.task.advance(state, action)
        truncated = state.time >= self.task.max_steps
        return Step(state, self._seen(state), reward, terminated, truncated)

    def _seen(self, state: Any) -> jax.Array:
        obs = self.task.observe(state)
        return obs if self.entries is None else obs[np.array(self.entries)]


def box(low: list[float], high: list[float]) -> Box:
    """Of a vector, with bounds as numbers of 32 bits, like the observations within them."""
    lows, highs = (tuple(np.array(bound, np.float32).tolist()) for bound in (low, high))
    return Box(shape=(len(lows),), low=lows, high=highs)


def part_of(space: Box, entries: tuple[int, ...]) -> Box:
    low, high = (bound[list(entries)].tolist() for bound in space.bounds)
    return box(low, high)


def start_of_time() -> jax.Array:
    return jnp.int32(0)
