"""Environments of Brax (Freeman et al. 2021)."""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp

from fragflow.api.environment import Step
from fragflow.api.spaces import Box
from fragflow.errors import ConfigError, did_you_mean

EPISODE_LENGTH = 1000


@dataclasses.dataclass(frozen=True)
class BraxEnvironment:
    """One Brax environment, with the time limit that Brax's own training gives it."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    episode_length: int
    observation: Box
    action: Box
    _environment: Any = dataclasses.field(repr=False, compare=False)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self._environment.reset(key)
        return (_small(state), jnp.int32(0)), state.obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        del key  # Brax is deterministic
        before, steps = state
        after = self._environment.step(before, action)
        steps = steps + 1
        terminated = after.done.astype(bool)
        truncated = (steps >= self.episode_length) & ~terminated
        return Step((_small(after), steps), after.obs, after.reward, terminated, truncated)


def _small(state: Any) -> Any:
    """Without metrics and notes, which only training code of Brax reads."""
    return state.replace(metrics={name: jnp.zeros_like(v) for name, v in state.metrics.items()})


def make(
    name: str, /, *, episode_length: int = EPISODE_LENGTH, **arguments: Any
) -> BraxEnvironment:
    """The Brax environment `name`; `arguments` go to its constructor (`backend`, say)."""
    known = names()
    if name not in known:
        raise ConfigError(f"unknown Brax environment {name!r}.{did_you_mean(name, known)}")
    try:
        environment = _envs().get_environment(name, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cannot make {name}: {error}") from error
    return BraxEnvironment(
        name,
        tuple(sorted(arguments.items())),
        episode_length,
        Box(shape=(environment.observation_size,)),
        Box(shape=(environment.action_size,), low=-1.0, high=1.0),
        environment,
    )


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return tuple(_envs()._envs)


def _envs() -> Any:
    try:
        return importlib.import_module("brax.envs")
    except ImportError as error:
        raise ConfigError(
            "environments of Brax need the package brax: pip install 'fragflow[brax]'"
        ) from error
