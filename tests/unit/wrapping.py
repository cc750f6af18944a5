"""Environments to wrap, and how tests play them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fragflow as ff
from fragflow.api import Space
from fragflow.api.host import HostBatch, HostStep
from fragflow.tools.checks.contract import JaxPlayer, sample


def play(
    environment: Any, steps: int, count: int = 3, actions: Any = None
) -> tuple[Any, list[HostStep]]:
    """Random actions in `count` environments with the seeds 1, 2, 3 ..."""
    is_host = isinstance(environment, ff.HostEnvironment)
    batch: Any = environment.open(range(count)) if is_host else JaxPlayer(environment, count)
    rng = np.random.default_rng(0)
    agents = getattr(environment, "num_agents", None)
    rows = (count,) if agents is None else (count, agents)
    try:
        first = batch.reset(np.arange(1, count + 1))
        answers = []
        for t in range(steps):
            if actions is None:
                action = sample(environment.action, rng, math.prod(rows))
                answers.append(batch.step(action.reshape(*rows, *environment.action.shape)))
            else:
                answers.append(batch.step(actions[t]))
        return first, answers
    finally:
        batch.close()


def assert_same(a: tuple[Any, list[HostStep]], b: tuple[Any, list[HostStep]], rtol: float = 0.0):
    np.testing.assert_allclose(a[0], b[0], rtol)
    for t, (x, y) in enumerate(zip(a[1], b[1], strict=True)):
        for name in HostStep._fields:
            left, right = getattr(x, name), getattr(y, name)
            assert (left is None) == (right is None)
            if left is not None:
                assert left.dtype == right.dtype
                atol = 1e-6 if rtol else 0.0
                np.testing.assert_allclose(left, right, rtol, atol, err_msg=f"{name} at {t}")


@dataclass(frozen=True)
class Glide:
    """A point that actions push off a table; images of it are made of bytes."""

    shape: tuple[int, ...] = (2,)
    name = "glide"
    action = ff.Box(shape=(2,), low=(-0.5, -0.25), high=(0.5, 1.0))

    @property
    def observation(self) -> Space:
        if self.shape == (2,):
            return ff.Box(shape=(2,), low=-2.0, high=2.0)
        return ff.Box(shape=self.shape, dtype="uint8", low=0, high=255)

    def _seen(self, place: jax.Array) -> jax.Array:
        if self.shape == (2,):
            return place
        bright = jnp.arange(np.prod(self.shape)).reshape(self.shape) + 97.0 * place.sum()
        return bright.astype(jnp.int32).astype(jnp.uint8)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place = jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)
        return place, self._seen(place)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        place = jnp.clip(state + action, -2.0, 2.0)
        far = jnp.abs(place).max()
        return ff.Step(place, self._seen(place), far, far > 1.0, jnp.bool_(False))


@dataclass(frozen=True)
class OnHost:
    """A JAX environment, stepped from Python like those that are none."""

    environment: Any
    has_mask = False
    draws_apart = True

    @property
    def name(self) -> str:
        return self.environment.name

    @property
    def observation(self) -> Space:
        return self.environment.observation

    @property
    def action(self) -> Space:
        return self.environment.action

    @property
    def num_agents(self) -> int | None:
        return getattr(self.environment, "num_agents", None)

    def open(self, ids: Sequence[int]) -> HostBatch:
        return JaxPlayer(self.environment, len(ids))  # pyright: ignore[reportReturnType]
