"""Advantage estimates against a plain loop, and against an independent implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops

pytestmark = pytest.mark.usefixtures("explicit_promotion")

GAMMA, LAMBDA = 0.97, 0.9


def gae(data: dict[str, np.ndarray], gamma: float = GAMMA, gae_lambda: float = LAMBDA) -> jax.Array:
    arrays = {name: jnp.asarray(array) for name, array in data.items()}
    return ops.gae(**arrays, gamma=gamma, gae_lambda=gae_lambda)


def rollout(steps: int, envs: int, ends: float, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    terminated = random.random((steps, envs)) < ends / 2
    truncated = (random.random((steps, envs)) < ends / 2) & ~terminated
    numbers = {
        name: random.normal(size=(steps, envs)) for name in ("reward", "value", "next_value")
    }
    return {
        **{name: array.astype(np.float32) for name, array in numbers.items()},
        "terminated": terminated,
        "done": terminated | truncated,
    }


def gae_by_loop(reward, value, next_value, terminated, done) -> np.ndarray:
    advantages = np.zeros_like(reward)
    for env in range(reward.shape[1]):
        later = 0.0
        for t in reversed(range(reward.shape[0])):
            if done[t, env]:
                later = 0.0
            successor = 0.0 if terminated[t, env] else next_value[t, env]
            delta = reward[t, env] + GAMMA * successor - value[t, env]
            later = delta + GAMMA * LAMBDA * later
            advantages[t, env] = later
    return advantages


@pytest.mark.parametrize("ends", [0.0, 0.2, 1.0])
def test_gae_equals_the_definition(ends: float) -> None:
    data = rollout(steps=23, envs=5, ends=ends, seed=1)
    advantages = gae(data)
    np.testing.assert_allclose(advantages, gae_by_loop(**data), rtol=1e-5, atol=1e-5)


def test_gae_bootstraps_through_truncation_only() -> None:
    data = {
        "reward": np.ones((1, 2), np.float32),
        "value": np.zeros((1, 2), np.float32),
        "next_value": np.full((1, 2), 10.0, np.float32),
        "terminated": np.array([[True, False]]),
        "done": np.array([[True, True]]),
    }
    advantages = gae(data, gamma=0.5, gae_lambda=1.0)
    np.testing.assert_allclose(advantages, [[1.0, 6.0]])


def test_gae_with_one_environment_is_the_same_column() -> None:
    data = rollout(steps=11, envs=3, ends=0.3, seed=2)
    together = gae(data)
    alone = gae({name: array[:, 1:2] for name, array in data.items()})
    np.testing.assert_array_equal(together[:, 1:2], alone)
