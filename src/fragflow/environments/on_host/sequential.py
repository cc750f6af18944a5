"""Steps Gymnasium environments one after the other. No JAX: worker processes import only this."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Arrays(NamedTuple):
    """Arrays that answers are written to, one row per environment."""

    obs: np.ndarray
    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @staticmethod
    def types(shape: tuple[int, ...], dtype: str) -> "list[tuple[tuple[int, ...], np.dtype[Any]]]":
        """Shape and type of each array, per environment."""
        flag = ((), np.dtype(np.bool_))
        return [(shape, np.dtype(dtype))] * 2 + [((), np.dtype(np.float32)), flag, flag]

    @staticmethod
    def new(count: int, shape: tuple[int, ...], dtype: str) -> "Arrays":
        return Arrays(*(np.empty((count, *s), t) for s, t in Arrays.types(shape, dtype)))


class Failed(Exception):
    """An environment raised, or returned something unusable."""

    def __init__(self, index: int, cause: str):
        super().__init__(cause)
        self.environment_index = index


def make_environment(name: str, arguments: Mapping[str, Any]) -> Any:
    """One environment, without Gymnasium's own checks: ours are made on the whole batch."""
    gym = importlib.import_module("gymnasium")
    env = gym.make(name, disable_env_checker=True, **arguments)
    if type(env.observation_space).__name__ in ("Dict", "Tuple", "MultiDiscrete", "MultiBinary"):
        # One vector, in the order of the space; choices become one-hot.
        env = gym.wrappers.FlattenObservation(env)
    return env


def reset_all(environments: Sequence[Any], seeds: np.ndarray, obs: np.ndarray) -> None:
    """Starts an episode in every environment."""
    i = 0
    try:
        for i, (env, seed) in enumerate(zip(environments, seeds, strict=True)):
            _store(obs, i, env.reset(seed=int(seed))[0])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also sys.exit: it is an environment that says so, not the user
        raise Failed(i, f"{type(error).__name__}: {error}") from error


def step_all(environments: Sequence[Any], action: np.ndarray, out: Arrays) -> None:
    """One step of every environment; an episode that ends is followed by a new one."""
    obs, next_obs, reward, terminated, truncated = out
    is_same = next_obs is obs
    i = 0
    try:
        for i, env in enumerate(environments):
            seen, reward[i], ended, cut, _ = env.step(action[i])
            terminated[i] = ended
            truncated[i] = cut and not ended
            _store(next_obs, i, seen)
            if ended or cut:
                seen = env.reset()[0]
            if not is_same:
                _store(obs, i, seen)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also sys.exit: it is an environment that says so, not the user
        raise Failed(i, f"{type(error).__name__}: {error}") from error


def _store(rows: np.ndarray, i: int, value: Any) -> None:
    # numpy would stretch a value of fewer entries over the row.
    if np.shape(value) != rows.shape[1:]:
        raise ValueError(
            f"an observation has shape {list(np.shape(value))}, expected {list(rows.shape[1:])}"
        )
    rows[i] = value
