"""Environments of MuJoCo Playground (Zakka et al. 2025)."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fragflow.api.environment import Step
from fragflow.api.spaces import Box
from fragflow.errors import ConfigError, did_you_mean, unknown


@dataclasses.dataclass(frozen=True)
class PlaygroundEnvironment:
    """One task of Playground, with the time limit of its configuration.

    Where a task has several observations, agents get the one for policies, `state`.
    """

    name: str
    arguments: tuple[tuple[str, Any], ...]
    """settings that differ from the task's configuration, sorted"""
    episode_length: int
    action_repeat: int
    observation: Box
    action: Box
    _environment: Any = dataclasses.field(repr=False, compare=False)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self._environment.reset(key)
        return (_small(state), jnp.int32(0)), _seen(state.obs)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        del key  # a task keeps a key of its own in its state
        before, steps = state
        after, reward = self._repeated(before, action)
        steps = steps + self.action_repeat
        terminated = after.done.astype(bool)
        truncated = (steps >= self.episode_length) & ~terminated
        return Step((_small(after), steps), _seen(after.obs), reward, terminated, truncated)

    def _repeated(self, state: Any, action: jax.Array) -> tuple[Any, jax.Array]:
        """The state after `action_repeat` steps, and the sum of their rewards."""

        def once(state: Any, _: None) -> tuple[Any, jax.Array]:
            after = self._environment.step(state, action)
            return _small(after), after.reward

        after, rewards = jax.lax.scan(once, state, None, self.action_repeat)
        return after, jnp.sum(rewards)


def _small(state: Any) -> Any:
    """Without metrics, which only training code of Playground reads."""
    return state.replace(metrics={name: jnp.zeros_like(v) for name, v in state.metrics.items()})


def _seen(obs: Any) -> jax.Array:
    return obs["state"] if isinstance(obs, Mapping) else obs


def make(name: str, /, *, impl: str = "jax", **arguments: Any) -> PlaygroundEnvironment:
    """The task `name`; `arguments` replace what its configuration says (`episode_length`, say)."""
    _refuse_other_engines(name, impl, arguments)
    playground = _playground()
    known = names()
    if name not in known:
        raise ConfigError(f"unknown task of Playground {name!r}.{did_you_mean(name, known)}")
    if name not in playground.dm_control_suite.ALL_ENVS:
        _require_robots(name)
    config = playground.registry.get_default_config(name).lock()
    for argument in arguments:
        if argument.partition(".")[0] not in config:
            raise ConfigError(unknown(f"setting of {name}", argument, config))
    try:
        config.update_from_flattened_dict({"impl": impl, **arguments})
        environment = playground.registry.load(name, config=config)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot make {name}: {error}") from error
    seen = _seen(jax.eval_shape(environment.reset, jax.random.key(0)).obs)
    return PlaygroundEnvironment(
        name,
        tuple(sorted(arguments.items())),
        config.episode_length,
        config.action_repeat,
        Box(shape=seen.shape),
        Box(shape=(environment.action_size,), low=-1.0, high=1.0),
        environment,
    )


def names() -> tuple[str, ...]:
    """Every task that `make` knows."""
    return tuple(_playground().registry.ALL_ENVS)


def _refuse_other_engines(name: str, impl: str, arguments: Mapping[str, Any]) -> None:
    """Warp's calls are foreign to XLA: a process that has not made them itself cannot run them."""
    if impl != "jax":
        raise ConfigError(
            f"{name} with impl={impl}: only impl=jax, MuJoCo written in JAX, can be cut and sent "
            "to workers. Leave impl out"
        )
    if arguments.get("vision"):
        raise ConfigError(
            f"{name} with vision: images are drawn by warp, and only impl=jax can be cut and sent "
            "to workers. Leave vision out"
        )


def _require_robots(name: str) -> None:
    """Playground would clone a repository of robots when a task that has one is made."""
    files = importlib.import_module("mujoco_playground._src.mjx_env")
    if not files.MENAGERIE_PATH.exists():
        raise ConfigError(
            f"{name} needs the robots of MuJoCo Menagerie, which are not in {files.MENAGERIE_PATH}."
            " Playground downloads them, once: python -c 'from mujoco_playground._src import "
            "mjx_env; mjx_env.ensure_menagerie_exists()'"
        )


def _playground() -> Any:
    try:
        return importlib.import_module("mujoco_playground")
    except ImportError as error:
        raise ConfigError(
            "environments of MuJoCo Playground need the package playground: "
            "pip install 'fragflow[playground]'"
        ) from error
