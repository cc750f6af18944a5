"""Environments of EnvPool (Weng et al. 2022): stepped by threads in C++, on the host."""

import dataclasses
import importlib
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow.api.environment import Timestep
from fragflow.api.host import AsyncBatch, HostBatch, HostStep
from fragflow.api.spaces import Space
from fragflow.environments.on_host.gymnasium_spaces import space_of
from fragflow.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class EnvpoolEnvironment:
    """One kind of EnvPool environment. A step is spent on starting an episode, and masked."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    threads: int
    observation: Space
    action: Space
    compiles: bool
    """True if a compiled program on the CPU can step them by itself"""
    has_mask: bool = True
    answers_one_by_one: bool = True
    draws_apart: bool = True
    time_limit: float = math.inf
    """steps after which we cut an episode; many environments ignore EnvPool's setting for it"""

    def with_time_limit(self, steps: int) -> "EnvpoolEnvironment":
        # Restarts of our own are made between steps: a compiled program has no place for them.
        return dataclasses.replace(self, time_limit=min(steps, self.time_limit), compiles=False)

    def open(self, ids: Sequence[int]) -> HostBatch:
        return EnvpoolBatch(self, len(ids))

    def open_one_by_one(self, ids: Sequence[int]) -> AsyncBatch:
        return EnvpoolAsync(self, len(ids))


class EnvpoolBatch:
    """A pool, made when its seeds are known."""

    _settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, environment: EnvpoolEnvironment, count: int):
        self._environment = environment
        self._count = count
        self._pool: Any = None
        self._obs_type = np.dtype(environment.observation.dtype)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        e = self._environment
        self._pool = _make(
            e.name,
            num_envs=self._count,
            num_threads=min(e.threads, self._count),
            seed=[int(seed) for seed in seeds],
            **self._settings,
            **dict(e.arguments),
        )
        self._was_done = np.zeros(self._count, np.bool_)
        self._was_cut = np.zeros(self._count, np.bool_)
        self._steps = np.zeros(self._count, np.int64)
        with _quietly():
            self._action_type = self._pool.spec.action_array_spec["action"].dtype
            obs = self._first_observations()
        return obs.astype(self._obs_type)

    def _first_observations(self) -> np.ndarray:
        return self._pool.reset()[0]

    def step(self, action: np.ndarray) -> HostStep:
        action = action.astype(self._action_type, copy=False)
        if self._was_cut.any():
            obs, reward, terminated, truncated = self._step_and_restart(action)
        else:
            obs, reward, terminated, truncated, _ = self._pool.step(action)
        return self._answer(slice(None), obs, reward, terminated, truncated)

    def _answer(
        self,
        rows: slice | np.ndarray,
        obs: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> HostStep:
        """The answers of some environments, as our contract has them."""
        # EnvPool hands out new arrays at every step.
        obs = obs.astype(self._obs_type, copy=False)
        mask = ~self._was_done[rows]
        steps = np.where(mask, self._steps[rows] + 1, 0)
        was_cut = (steps >= self._environment.time_limit) & ~(terminated | truncated)
        truncated = (truncated & ~terminated) | was_cut
        self._steps[rows], self._was_cut[rows] = steps, was_cut
        self._was_done[rows] = terminated | truncated
        return HostStep(obs, obs, reward, terminated, truncated, mask)

    def _step_and_restart(self, action: np.ndarray) -> list[np.ndarray]:
        """Starts episodes where we cut the last one, as EnvPool does where it ended by itself."""
        cut, others = np.flatnonzero(self._was_cut), np.flatnonzero(~self._was_cut)
        obs, info = self._pool.reset(cut)
        nothing = (np.zeros(len(cut), t) for t in (np.float32, np.bool_, np.bool_))
        parts = [(obs, *nothing, info["env_id"])]
        if len(others):
            *stepped, info = self._pool.step(action[others], others)
            parts.append((*stepped, info["env_id"]))
        *rows, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
        return [row[np.argsort(ids)] for row in rows]

    def compiled_step(self, action: jax.Array) -> Timestep:
        # MuJoCo's numbers have 64 bits, which JAX makes 32 of unless told.
        with jax.enable_x64(True), _quietly():
            handle, _, _, step = self._pool.xla()
            _, (obs, reward, terminated, truncated, info) = step(
                jnp.asarray(handle), lax.convert_element_type(action, self._action_type)
            )
            obs = lax.convert_element_type(obs, self._obs_type)
            reward = lax.convert_element_type(reward, np.float32)
        # The first observation of an episode comes after no step.
        mask = info["elapsed_step"] != 0
        return Timestep(obs, obs, reward, terminated, truncated & ~terminated, mask)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EnvpoolAsync(EnvpoolBatch):
    """A pool whose environments answer one by one.

    EnvPool waits for a fixed number of answers. Any but one would not come out even at a rollout's
    end, when fewer and fewer environments are under way.
    """

    _settings: ClassVar[dict[str, Any]] = {"batch_size": 1}

    def _first_observations(self) -> np.ndarray:
        self._pool.async_reset()
        rows, (obs, *_) = self._answers(self._count)
        return obs[np.argsort(rows)]

    def send(self, rows: np.ndarray, action: np.ndarray) -> None:
        action = action.astype(self._action_type, copy=False)
        is_cut = self._was_cut[rows]
        if is_cut.any():
            # Our own cuts are restarted by us: a step is spent on it, as EnvPool does.
            self._pool._reset(rows[is_cut].astype(np.int32))
            rows, action = rows[~is_cut], action[~is_cut]
        if len(rows):
            self._pool.send(action, rows)

    def receive(self, count: int) -> tuple[np.ndarray, HostStep]:
        rows, answers = self._answers(count)
        return rows, self._answer(rows, *answers)

    def _answers(self, count: int) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        # What `recv` does, but naming the parts of an answer once for all of them.
        parts = [self._pool._recv() for _ in range(count)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        *answers, info = self._pool._to(columns, False, True)
        return info["env_id"], answers


def make(name: str, /, *, threads: int | None = None, **arguments: Any) -> EnvpoolEnvironment:
    """The environment that EnvPool calls `name`; `arguments` are its own settings."""
    known = names()
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"unknown EnvPool environment {name!r}.{hint}")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}: expected at least 1")
    try:
        pool = _make(name, num_envs=1, num_threads=1, **arguments)
    except TypeError as error:
        raise ConfigError(f"cannot make {name}: {error}") from error
    with _quietly():
        observation = space_of(name, "observations", pool.observation_space)
        action = space_of(name, "actions", pool.action_space)
    compiles = _compiles(pool)
    pool.close()
    return EnvpoolEnvironment(
        name=name,
        arguments=tuple(sorted(arguments.items())),
        threads=threads or os.cpu_count() or 1,
        observation=observation,
        action=action,
        compiles=compiles,
    )


def names() -> tuple[str, ...]:
    """Every environment that `make` knows; none if EnvPool is not installed."""
    return tuple(_envpool().list_all_envs())


def _compiles(pool: Any) -> bool:
    try:
        pool.xla()
    except RuntimeError:  # EnvPool's word for observations without a fixed size
        return False
    return True


def _make(name: str, **settings: Any) -> Any:
    with _quietly():
        return _envpool().make(name, env_type="gymnasium", **settings)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings that bounds in 64 bits are told in 32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered.*")
        yield


def _envpool() -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise ConfigError(
            "environments of EnvPool need the package envpool: pip install 'fragflow[envpool]'"
        ) from error
