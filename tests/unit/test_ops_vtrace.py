"""V-trace against its definition, an independent implementation, and where it must equal GAE."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops
from shapes import as_others_write

pytestmark = pytest.mark.usefixtures("explicit_promotion")

GAMMA = 0.97


def rollout(ends: float, seed: int = 0, steps: int = 17, envs: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    terminated = random.random((steps, envs)) < ends / 2
    truncated = (random.random((steps, envs)) < ends / 2) & ~terminated
    numbers = {
        name: random.normal(size=(steps, envs)).astype(np.float32)
        for name in ("log_ratio", "reward", "value", "next_value")
    }
    return {**numbers, "terminated": terminated, "done": terminated | truncated}


def vtrace(data: dict[str, np.ndarray], **settings: Any) -> ops.VTrace:
    arrays = {name: jnp.asarray(array) for name, array in data.items()}
    return ops.vtrace(**arrays, gamma=GAMMA, **settings)


def target_by_definition(data, env: int, start: int, clip_rho: float, clip_c: float) -> float:
    """Equation 1 of the paper, up to the end of the episode or of the data."""
    ratio = np.exp(data["log_ratio"][:, env])
    total, weight = data["value"][start, env], 1.0
    for t in range(start, len(ratio)):
        successor = 0.0 if data["terminated"][t, env] else data["next_value"][t, env]
        difference = data["reward"][t, env] + GAMMA * successor - data["value"][t, env]
        total += weight * min(clip_rho, ratio[t]) * difference
        if data["done"][t, env]:
            break
        weight *= GAMMA * min(clip_c, ratio[t])
    return total


@pytest.mark.parametrize("ends", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("clip_rho", "clip_c"), [(1.0, 1.0), (2.0, 0.5)])
def test_targets_equal_the_definition(ends: float, clip_rho: float, clip_c: float) -> None:
    data = rollout(ends)
    target = vtrace(data, clip_rho=clip_rho, clip_c=clip_c).target
    steps, envs = target.shape
    expected = [
        [target_by_definition(data, n, t, clip_rho, clip_c) for n in range(envs)]
        for t in range(steps)
    ]
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clip_rho", "trace_lambda"), [(1.0, 1.0), (1.5, 0.9)])
def test_targets_and_advantages_equal_those_of_rlax(clip_rho: float, trace_lambda: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        import rlax

    data = rollout(ends=0.3)
    # rlax knows no truncation: there every end is the end, and a successor is the next step.
    data["terminated"] = data["done"]
    data["next_value"][:-1] = data["value"][1:]
    oracle: Any = rlax.vtrace_td_error_and_advantage
    with as_others_write():
        theirs = jax.vmap(oracle, (1, 1, 1, 1, 1, None, None, None), 1)(
            *(data[name] for name in ("value", "next_value", "reward")),
            np.where(data["done"], 0.0, GAMMA).astype(np.float32),
            np.exp(data["log_ratio"]),
            trace_lambda,
            clip_rho,
            clip_rho,
        )
    ours = vtrace(data, clip_rho=clip_rho, trace_lambda=trace_lambda)
    np.testing.assert_allclose(ours.target - data["value"], theirs.errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.advantage, theirs.pg_advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trace_lambda", [0.0, 0.9, 1.0])
def test_for_the_policy_that_acted_it_is_gae(trace_lambda: float) -> None:
    data = rollout(ends=0.3)
    data["next_value"][:-1] = np.where(
        data["done"][:-1], data["next_value"][:-1], data["value"][1:]
    )
    data["log_ratio"] = np.zeros_like(data["reward"])
    ours = vtrace(data, trace_lambda=trace_lambda)
    del data["log_ratio"]
    arrays = {name: jnp.asarray(array) for name, array in data.items()}
    expected = ops.gae(**arrays, gamma=GAMMA, gae_lambda=trace_lambda)
    np.testing.assert_allclose(ours.advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.target, expected + data["value"], rtol=1e-4, atol=1e-5)


def test_a_truncated_episode_is_worth_what_it_is_without_the_next_one() -> None:
    data = rollout(ends=0.0)
    data["done"][6] = True
    whole = vtrace(data)
    parts = [
        vtrace({name: array[rows] for name, array in data.items()})
        for rows in (slice(0, 7), slice(7, None))
    ]
    for ours, *pieces in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(ours, np.concatenate(pieces), rtol=1e-5, atol=1e-6)
    data["terminated"][6] = True
    assert not np.allclose(whole.target[6], vtrace(data).target[6])
