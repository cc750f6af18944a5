"""Environments of JaxMARL (Rutherford et al. 2024): several agents, in JAX."""

import contextlib
import dataclasses
import importlib
import io
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api.environment import Step
from fragflow.api.spaces import Box, Discrete, Space
from fragflow.environments.agents import Agents, WithAgents, agents_of
from fragflow.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class JaxmarlEnvironment(WithAgents):
    """One JaxMARL environment; agents are in its own order, and end together."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    agents: Agents
    _environment: Any = dataclasses.field(repr=False, compare=False)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = self._environment.reset(key)
        return state, self._stacked(obs)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        actions = {name: action[k] for k, name in enumerate(self._environment.agents)}
        # Not JaxMARL's own `step`: it starts a new episode at the end of one.
        obs, state, reward, done, _ = self._environment.step_env(key, state, actions)
        ended = jnp.broadcast_to(done["__all__"], (self.num_agents,))
        limit = getattr(self._environment, "max_steps", None)
        is_cut = jnp.asarray(False) if limit is None else jnp.all(_steps(state) >= limit)
        return Step(
            state,
            self._stacked(obs),
            jnp.stack([reward[name] for name in self._environment.agents]),
            ended & ~is_cut,
            ended & is_cut,
        )

    def _stacked(self, by_agent: dict[str, jax.Array]) -> jax.Array:
        rows = [self.agents.padded(by_agent[name], jnp) for name in self._environment.agents]
        return jnp.stack(rows).astype(self.observation.dtype)


def _steps(state: Any) -> jax.Array:
    """Steps of an episode so far; games count them as `step` or `time`, or in an inner state."""
    while not (hasattr(state, "step") or hasattr(state, "time")) and hasattr(state, "state"):
        state = state.state
    return state.step if hasattr(state, "step") else state.time


def make(name: str, /, *, apart: bool = False, **arguments: Any) -> JaxmarlEnvironment:
    """The JaxMARL environment `name`; `arguments` go to its constructor.

    `apart`, every agent is a team of its own.
    """
    library = _library()
    if name not in library.registered_envs:
        hint = did_you_mean(name, library.registered_envs)
        raise ConfigError(f"unknown JaxMARL environment {name!r}.{hint}")
    try:
        environment = library.make(name, **arguments)
    except TypeError as error:
        raise ConfigError(f"cannot make {name}: {error}") from error
    agents = environment.agents
    seen = {a: _space(name, environment.observation_space(a)) for a in agents}
    done = {a: _space(name, environment.action_space(a)) for a in agents}
    return JaxmarlEnvironment(
        name,
        tuple(sorted(arguments.items())),
        agents_of(name, seen, done, apart),
        environment,
    )


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return tuple(_library().registered_envs)


def _space(name: str, space: Any) -> Space:
    if type(space).__name__ == "Discrete":
        return Discrete(n=int(space.n))
    if type(space).__name__ == "Box":
        low, high = (float(np.min(space.low)), float(np.max(space.high)))
        shape = tuple(map(int, np.atleast_1d(space.shape)))  # Hanabi's is one number
        return Box(shape=shape, dtype=np.dtype(space.dtype).name, low=low, high=high)
    raise ConfigError(f"{name} has a space of type {type(space).__name__}: not supported")


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """JaxMARL prints while it is imported, and leaves Python's first streams in place of others.

    Neither belongs into the output of `fragflow show --format json`, or into a notebook.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sys.stdout = silence = io.StringIO()
    setattr(sys, "__stdout__", silence)  # noqa: B010
    try:
        yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


def _library() -> Any:
    try:
        with _silenced():
            return importlib.import_module("jaxmarl.registration")
    except ImportError as error:
        raise ConfigError(
            "environments of JaxMARL need the package jaxmarl: pip install 'fragflow[jaxmarl]'"
        ) from error
