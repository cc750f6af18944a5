"""Environments of gymnax 1.x (Lange 2022)."""

import dataclasses
import importlib
from types import ModuleType
from typing import Any

import jax
import numpy as np

from fragflow.api.environment import Step
from fragflow.api.spaces import Box, Discrete, Space
from fragflow.errors import ConfigError, unknown

# Known without importing gymnax: what a name means must not depend on whether it is installed, and
# its import starts JAX and so fixes the number of devices.
NAMES = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "MNISTBandit-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)


@dataclasses.dataclass(frozen=True)
class GymnaxEnvironment:
    """One gymnax environment with fixed parameters."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    """settings that differ from gymnax's defaults, sorted; these and the name are its identity"""
    observation: Space
    action: Space
    _environment: Any = dataclasses.field(repr=False, compare=False)
    _params: Any = dataclasses.field(repr=False, compare=False)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = self._environment.reset_env(key, self._params)
        return state, self._seen(obs)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        # Not gymnax's own `step`: it resets at the end of an episode.
        obs, state, reward, terminated, _ = self._environment.step_env(
            key, state, action, self._params
        )
        truncated = self._environment.is_truncated(state, self._params)
        return Step(state, self._seen(obs), reward, terminated, truncated)

    def _seen(self, obs: jax.Array) -> jax.Array:
        return jax.numpy.asarray(obs, self.observation.dtype)


def make(name: str, /, **arguments: Any) -> GymnaxEnvironment:
    """The gymnax environment `name`; `arguments` replace fields of its `EnvParams`."""
    registration = _registration()
    if name not in registration.registered_envs:
        raise ConfigError(unknown("gymnax environment", name, names()))
    environment, params = registration.make(name)
    known = [field.name for field in dataclasses.fields(params)]
    for argument, value in arguments.items():
        if argument not in known:
            raise ConfigError(unknown(f"argument of {name}", argument, known))
        if isinstance(getattr(params, argument), int | float) and not isinstance(
            value, int | float
        ):
            raise ConfigError(f"{argument} of {name} is {value!r}: expected a number")
    params = dataclasses.replace(params, **arguments)
    # gymnax computes bounds with jnp; they must be numbers also where somebody is tracing.
    with jax.ensure_compile_time_eval():
        observation = _space(name, "observations", environment.observation_space(params))
        action = _space(name, "actions", environment.action_space(params))
    identity = tuple(sorted(arguments.items()))
    return GymnaxEnvironment(name, identity, observation, action, environment, params)


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return NAMES


def _space(name: str, what: str, space: Any) -> Space:
    match type(space).__name__:
        case "Discrete":
            return Discrete(n=int(space.n))
        case "Box":
            return Box(
                shape=tuple(space.shape),
                dtype=np.dtype(space.dtype).name,
                low=_bound(space.low, space.shape),
                high=_bound(space.high, space.shape),
            )
        case other:
            raise ConfigError(
                f"{name} has {what} of type {other}: only Box and Discrete are supported"
            )


def _bound(bound: Any, shape: tuple[int, ...]) -> float | tuple[float, ...]:
    array = np.asarray(bound, np.float64)
    # gymnax writes "unbounded" as the largest float.
    array = np.where(np.abs(array) >= np.finfo(np.float32).max, np.copysign(np.inf, array), array)
    if np.all(array == array.flat[0]):
        return float(array.flat[0])
    return tuple(np.broadcast_to(array, shape).ravel().tolist())


def _registration() -> ModuleType:
    try:
        return importlib.import_module("gymnax.registration")
    except ImportError as error:
        raise ConfigError(
            f"environments of gymnax need the package gymnax ({error}): "
            "pip install 'fragflow[gymnax]'"
        ) from error
