"""Environments in C++ that compiled programs step by themselves."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import EnvironmentFault, PolicyError
from fragflow.policies.named import named_policy
from fragflow.run import Experiment, Outcome, run

pytestmark = pytest.mark.quick

pytest.importorskip("envpool", reason="EnvPool is an extra")


@functools.cache
def trained(env: str, policy: str, deterministic: bool = False) -> Outcome:
    experiment = Experiment(
        algorithm=PPO(rollout_length=32, epochs=2),
        environment=make_environment(f"envpool:{env}"),
        num_envs=8,
        total_steps=12 * 8 * 32,
        seed=3,
    )
    return run(experiment, named_policy(policy), deterministic=deterministic)


def same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("env", ["CartPole-v1", "HalfCheetah-v4"])
def test_one_program_learns_what_a_worker_that_calls_them_does(env: str) -> None:
    one, driven = trained(env, "gpu-only"), trained(env, "single-learner-coarse")
    assert one.messages == 0
    assert one.start.programs == 1
    same(one.state, driven.state)
    for a, b in zip(one.rows, driven.rows, strict=True):
        assert (a.episodes, a.return_sum, a.length_sum) == (b.episodes, b.return_sum, b.length_sum)
    assert env != "CartPole-v1" or one.episodes > 0


def test_canonical_blocks_leave_them_whole() -> None:
    one = trained("CartPole-v1", "gpu-only", deterministic=True)
    driven = trained("CartPole-v1", "single-learner-coarse", deterministic=True)
    same(one.state, driven.state)


def test_images_too() -> None:
    experiment = Experiment(
        algorithm=PPO(rollout_length=2, epochs=1, minibatches=1),
        environment=make_environment("envpool:Pong-v5"),
        num_envs=2,
        total_steps=2 * 2 * 2,
    )
    one = run(experiment, named_policy("gpu-only"))
    same(one.state, run(experiment, named_policy("single-learner-coarse")).state)


def test_devices_cannot_share_them() -> None:
    experiment = Experiment(
        algorithm=PPO(),
        environment=make_environment("envpool:CartPole-v1"),
        num_envs=8,
        total_steps=1,
    )
    with pytest.raises(PolicyError, match=r"over 2 devices, but .*CartPole-v1 .*--workers 1"):
        run(experiment, named_policy("gpu-only"), workers=2)


def test_one_that_does_not_answer_ends_the_run() -> None:
    experiment = Experiment(
        algorithm=PPO(rollout_length=8_000, minibatches=1, epochs=1),
        environment=make_environment("envpool:HalfCheetah-v4"),
        num_envs=4,
        total_steps=1,
    )
    with pytest.raises(EnvironmentFault, match=r"HalfCheetah-v4.*have not answered for 1 second"):
        run(experiment, named_policy("gpu-only"), stall_timeout_seconds=1.0)
