"""A little of everything, as a user runs it: what `make smoke`, `matrix` and `newest` try.

Each test is a row of the table in docs/versions.md.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragflow as ff
from fragflow.policies import POLICIES

pytestmark = pytest.mark.quick

SMALL = {"rollout_length": 8, "hidden": (8,)}
PPO = {**SMALL, "epochs": 1, "minibatches": 2}
FOR_AGENTS = {"learner-per-team": 1, "agents": 2}
"""policies for several agents, and how many learners they get"""
TAG = {"agents": 4, "taggers": 2, "neighbours": 2}


def trained(algorithm: str, env: str, hyperparameters: dict[str, Any], **more: Any) -> ff.Result:
    steps = 2 * 8 * hyperparameters["rollout_length"]
    return ff.train(
        algorithm,
        env,
        num_envs=8,
        total_steps=steps,
        hyperparameters=hyperparameters,
        eval_episodes=0,
        quiet=True,
        **more,
    )


@functools.cache
def undivided(algorithm: str = "ppo", env: str = "CartPole-v1") -> ff.Result:
    return trained(algorithm, env, PPO, env_args=TAG if env == "Tag" else None)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of its own, as in a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "fragflow.tools.cli.main", *words], capture_output=True, text=True
    )


def assert_learns_the_same(result: ff.Result, reference: ff.Result) -> None:
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        result.params,
        reference.params,
    )


def assert_keeps_its_word(result: ff.Result, reference: ff.Result) -> None:
    """Which bits come out depends on JAX and the processor; what a run says of them holds."""
    assert_learns_the_same(result, reference)
    assert result.equality.startswith(("bitwise", "rounding"))
    assert result.equality != "bitwise" or result.params_sha256 == reference.params_sha256


def test_demo(tmp_path: Path) -> None:
    """What `make demo` runs."""
    words = ("train", "ppo", "--env", "CartPole-v1", "--total-steps", "524288")
    done = command(*words, "--run-dir", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "demo" / "summary.json").read_text())["eval_return"] >= 400


@pytest.mark.parametrize("policy", POLICIES)
def test_policy(policy: str) -> None:
    if policy in FOR_AGENTS:
        options = {"env_args": TAG, "learners": FOR_AGENTS[policy]}
        result = trained("ippo", "Tag", PPO, policy=policy, workers=2, **options)
        reference = undivided("ippo", "Tag")
    else:
        result = trained("ppo", "CartPole-v1", PPO, policy=policy, workers=2)
        reference = undivided()
    if policy == "split-device":  # one iteration late: it learns something else
        assert result.params_sha256 != reference.params_sha256
    else:
        assert_learns_the_same(result, reference)
    assert (result.messages > 0) == (policy != "gpu-only")


@pytest.mark.probed
def test_processes() -> None:
    coarse = {"policy": "single-learner-coarse", "workers": 2}
    result = trained("ppo", "CartPole-v1", PPO, runtime="processes", **coarse)
    assert_keeps_its_word(result, undivided())


def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = ("train", "ppo", "--env", "CartPole-v1", "--num-envs", "8", "--total-steps", "128")
    words += ("--rollout-length", "8", "--hidden", "8", "--epochs", "1", "--minibatches", "2")
    words += ("--eval-episodes", "0", "--policy", "single-learner-coarse", "--workers", "2")
    hashes = []
    for runtime in ("local", "ray"):
        place = tmp_path / runtime
        done = command(*words, "--runtime", runtime, "--run-dir", str(place))
        assert done.returncode == 0, done.stderr[-2000:]
        hashes.append(json.loads((place / "summary.json").read_text())["params_sha256"])
    assert hashes[0] == hashes[1]


def test_async() -> None:
    result = trained(
        "impala", "CartPole-v1", SMALL, policy="single-learner-coarse", sync="async", workers=2
    )
    assert result.env_steps >= 128


@pytest.mark.parametrize(
    ("name", "env", "hyperparameters"),
    [
        ("dqn", "CartPole-v1", {**SMALL, "batch_size": 16, "buffer_size": 256, "updates": 2}),
        ("sac", "Pendulum-v1", {**SMALL, "batch_size": 16, "buffer_size": 256, "updates": 2}),
        ("recurrent-ppo", "CartPole-positions", {**PPO, "chunk_length": 4}),
    ],
    ids=["dqn", "sac", "recurrent"],
)
def test_algorithm(name: str, env: str, hyperparameters: dict[str, Any]) -> None:
    whole = trained(name, env, hyperparameters)
    cut = trained(name, env, hyperparameters, policy="single-learner-coarse", workers=2)
    assert_learns_the_same(cut, whole)


def test_gymnasium() -> None:
    result = trained("ppo", "gymnasium:CartPole-v1", PPO, workers=2)
    assert result.env_steps >= 128
