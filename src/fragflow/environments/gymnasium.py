"""Environments of Gymnasium 1.x (Towers et al. 2024), stepped on the host."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragflow.api.host import HostBatch, HostStep
from fragflow.api.spaces import Box, Discrete, Space
from fragflow.errors import ConfigError, unknown

VECTORIZATIONS = ("auto", "vector", "sync")


@dataclasses.dataclass(frozen=True)
class GymnasiumEnvironment:
    """One kind of Gymnasium environment.

    `vector` uses the environment's own implementation for many at once, which may draw random
    numbers for all of them together; `sync` steps one after the other.
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
        """Whether an environment's randomness is its own, whatever shares its batch."""
        return self.vectorization != "vector"

    def open(self, ids: Sequence[int]) -> HostBatch:
        gym = importlib.import_module("gymnasium")
        arguments = dict(self.arguments)
        if self.vectorization == "vector":
            mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
            env = gym.make_vec(self.name, num_envs=len(ids), vectorization_mode=mode, **arguments)
            return VectorBatch(env, self.observation)
        make = _maker(self.name, arguments)
        return SyncBatch([make() for _ in ids], self.observation)


class SyncBatch:
    """Environments stepped one after the other."""

    def __init__(self, environments: Sequence[Any], observation: Space):
        self._environments = environments
        self._shape = (len(environments), *observation.shape)
        self._dtype = np.dtype(observation.dtype)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        obs = np.empty(self._shape, self._dtype)
        for i, (env, seed) in enumerate(zip(self._environments, seeds, strict=True)):
            with _Indexed(i):
                obs[i] = _fitting(env.reset(seed=int(seed))[0], self._shape[1:])
        return obs

    def step(self, action: np.ndarray) -> HostStep:
        # New arrays each time: JAX may still read the last ones.
        count = len(self._environments)
        obs = np.empty(self._shape, self._dtype)
        reward = np.empty(count, np.float32)
        terminated = np.empty(count, np.bool_)
        truncated = np.empty(count, np.bool_)
        fresh: list[tuple[int, Any]] = []
        i = 0
        try:
            for i, env in enumerate(self._environments):
                seen, reward[i], ended, cut, _ = env.step(action[i])
                obs[i] = seen if type(seen) is np.ndarray else _fitting(seen, self._shape[1:])
                terminated[i] = ended
                truncated[i] = cut and not ended
                if ended or cut:
                    fresh.append((i, env.reset()[0]))
        except Exception as error:
            error.environment_index = i  # pyright: ignore[reportAttributeAccessIssue]
            raise
        if not fresh:
            return HostStep(obs, obs, reward, terminated, truncated)
        next_obs = obs.copy()
        for i, first in fresh:
            obs[i] = first
        return HostStep(obs, next_obs, reward, terminated, truncated)

    def close(self) -> None:
        for env in self._environments:
            env.close()


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


class _Indexed:
    """Marks an exception with the environment it came from."""

    def __init__(self, index: int):
        self._index = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is not None:
            error.environment_index = self._index  # pyright: ignore[reportAttributeAccessIssue]


def _fitting(obs: Any, shape: tuple[int, ...]) -> np.ndarray:
    """One observation, refused if it has another shape than the space says."""
    array = np.asarray(obs)
    if array.shape != shape:
        raise ValueError(f"an observation has shape {list(array.shape)}, expected {list(shape)}")
    return array


def make(name: str, *, vectorization: str = "auto", **arguments: Any) -> GymnasiumEnvironment:
    """The environment registered as `name`; `arguments` go to `gymnasium.make`."""
    gym = _gymnasium()
    if vectorization not in VECTORIZATIONS:
        raise ConfigError(unknown("vectorization", vectorization, VECTORIZATIONS))
    if name not in gym.registry:
        raise ConfigError(unknown("Gymnasium environment", name, gym.registry))
    env = _maker(name, arguments)()
    try:
        observation = space_of(name, "observations", env.observation_space)
        action = space_of(name, "actions", env.action_space)
    finally:
        env.close()
    if vectorization == "vector" and not gym.spec(name).vector_entry_point:
        raise ConfigError(f"{name} has no implementation for many at once: use vectorization=sync")
    if vectorization == "auto":
        vectorization = "vector" if gym.spec(name).vector_entry_point else "sync"
    identity = tuple(sorted(arguments.items()))
    return GymnasiumEnvironment(name, identity, vectorization, observation, action)


def names() -> tuple[str, ...]:
    """Every environment that `make` knows, in its newest version."""
    return tuple(_gymnasium().registry)


def _maker(name: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    gym = _gymnasium()

    def make_one() -> Any:
        try:
            return gym.make(name, disable_env_checker=True, **arguments)
        except gym.error.DependencyNotInstalled as error:
            raise ConfigError(f"{name} needs a package that is not installed: {error}") from error
        except TypeError as error:
            raise ConfigError(f"cannot make {name}: {error}") from error

    return make_one


def _gymnasium() -> Any:
    return importlib.import_module("gymnasium")


def space_of(name: str, what: str, space: Any) -> Space:
    """A Gymnasium space as ours."""
    match type(space).__name__:
        case "Discrete":
            if int(space.start) != 0:
                raise ConfigError(
                    f"{name} has {what} that count from {space.start}: only counting from 0 is "
                    "supported"
                )
            return Discrete(n=int(space.n))
        case "Box":
            return Box(
                shape=tuple(space.shape),
                dtype=_dtype(space.dtype),
                low=_bound(space.low),
                high=_bound(space.high),
            )
        case other:
            raise ConfigError(
                f"{name} has {what} of type {other}: only Box and Discrete are supported"
            )


def _dtype(dtype: Any) -> str:
    """JAX computes in 32 bits."""
    name = np.dtype(dtype).name
    return {"float64": "float32", "int64": "int32"}.get(name, name)


def _bound(bound: np.ndarray) -> float | tuple[float, ...]:
    array = np.asarray(bound, np.float64)
    if np.all(array == array.flat[0]):
        return float(array.flat[0])
    return tuple(array.ravel().tolist())
