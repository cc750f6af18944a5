"""Algorithms that are a user's, not the library's, learn the same under every policy."""

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equivalence.common import digest, relative_error
from equivalence.own.ppg import PPG
from equivalence.own.td3 import TD3
from equivalence.own.world_model import Dreamer
from fragflow.environments import make_environment
from fragflow.policies import named_policy
from fragflow.policies.synchronisation import LOCKSTEP
from fragflow.run import Experiment, Outcome, run

pytestmark = [pytest.mark.probed, pytest.mark.quick]

CASES = {
    "td3": (TD3(), "Pendulum-v1"),
    "ppg": (PPG(), "CartPole-v1"),
    "world model": (Dreamer(), "CartPole-v1"),
}
ONE_LEARNER = ("single-learner-coarse", "single-learner-fine", "learner-per-team")
SEVERAL_LEARNERS = ("multi-learner", "gpu-only", "environments", "central", "split-device")
NAMES = (*CASES, "muzero")
ANY_NUMBER = ("single-learner-coarse", "single-learner-fine", "multi-learner")
"""policies that are tried with one worker, with two and with four"""
OFTEN = [
    ("ppg", "multi-learner", 2),
    ("world model", "multi-learner", 2),
]
"""of all combinations, those that are tried every time; searches take long to compile"""
NUM_ENVS, ITERATIONS = 8, 3


def algorithm_of(case: str) -> tuple[Any, str]:
    """An algorithm, and the environment that it learns."""
    if case == "muzero":
        pytest.importorskip("mctx")
        from equivalence.own.muzero import MuZero

        return MuZero(), "CartPole-v1"
    return CASES[case]


@functools.cache
def train(case: str, policy: str, workers: int) -> Outcome:
    """In lockstep; where a policy asks for a number of learners, as many as workers."""
    algorithm, environment = algorithm_of(case)
    steps = algorithm.rollout_length * getattr(algorithm, "rollouts", 1)
    experiment = Experiment(
        algorithm=algorithm,
        environment=make_environment(environment),
        num_envs=NUM_ENVS,
        total_steps=ITERATIONS * steps * NUM_ENVS,
        seed=0,
    )
    together = replace(named_policy(policy), synchronisation=LOCKSTEP)
    return run(experiment, together, workers=workers, learners=workers)


@pytest.fixture(autouse=True)
def nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def combinations() -> Iterator[Any]:
    for case in NAMES:
        for policy in (*ONE_LEARNER, *SEVERAL_LEARNERS):
            for workers in (1, 2, 4) if policy in ANY_NUMBER else (2,):
                combination = (case, policy, workers)
                marks = [] if combination in OFTEN else pytest.mark.slow
                yield pytest.param(*combination, marks=marks)


@pytest.mark.parametrize(("case", "policy", "workers"), list(combinations()))
def test_workers_learn_what_one_program_does(case, policy, workers):
    whole, cut = train(case, "gpu-only", 1), train(case, policy, workers)
    assert len(whole.rows) == len(cut.rows) == ITERATIONS
    assert whole.start.equality == "bitwise"
    assert_learnt_something(whole)
    if policy in SEVERAL_LEARNERS and workers > 1:
        assert cut.start.equality.startswith("rounding: ")
    if cut.start.equality == "bitwise":
        assert digest(cut.state) == digest(whole.state)
        assert [row.metrics for row in cut.rows] == [row.metrics for row in whole.rows]
    else:
        assert cut.start.equality.startswith("rounding: ")
        assert_equal_but_for_rounding(cut, whole)


def test_a_run_of_few_environments_is_probed():
    start = train("ppg", "single-learner-coarse", 2).start
    assert re.match(r"[4-9] states", start.probe)


def assert_equal_but_for_rounding(cut: Outcome, whole: Outcome) -> None:
    """All of the state, the buffer included, and the metrics."""
    # Biases were zero before a few steps of Adam, which make much of the last digits of gradients.
    assert relative_error(cut.state.params, whole.state.params, least=1e-2) < 1e-4
    assert jax.tree.structure(cut.state) == jax.tree.structure(whole.state)
    for a, b in zip(jax.tree.leaves(cut.state), jax.tree.leaves(whole.state), strict=True):
        if jnp.issubdtype(b.dtype, jnp.floating):
            assert relative_error(a, b) < 1e-3  # squares of small gradients, of an optimiser
        else:
            np.testing.assert_array_equal(a, b)
    for a, b in zip(cut.rows, whole.rows, strict=True):
        assert a.metrics == pytest.approx(b.metrics, rel=1e-4, abs=1e-5)
        assert (a.episodes, a.length_sum) == (b.episodes, b.length_sum)


def assert_learnt_something(outcome: Outcome) -> None:
    """Biases were zero at first; else there would be little to compare."""
    assert all(np.any(leaf) for leaf in jax.tree.leaves(outcome.state.params))
    assert all(np.isfinite(list(row.metrics.values())).all() for row in outcome.rows)
