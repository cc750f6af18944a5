"""Distribution does not change learning: DQN and SAC under every policy, buffers included."""

from typing import Any

import pytest

from equivalence.common import (
    ONE_LEARNER,
    REPLICATED,
    assert_as_said,
    graded,
    one_of_each,
    relative_error,
    train,
)
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.sac import SAC

# Five iterations: the ring is full after two, learning starts after one.
SHORT: dict[str, Any] = {"rollout_length": 4, "updates": 3, "batch_size": 32, "buffer_size": 128}
SHORT |= {"learning_starts": 64, "hidden": (64,)}
RAINBOW: dict[str, Any] = {"n_step": 3, "dueling": True, "prioritised": True}
CASES = {
    "dqn": (DQN(**SHORT, target_period=2, n_step=1), "CartPole-v1"),
    "prioritised dqn": (DQN(**SHORT, target_period=2, **RAINBOW), "CartPole-v1"),
    "sac": (SAC(**SHORT), "Pendulum-v1"),
}

SAME_BITS = [
    *((policy, workers) for policy in ONE_LEARNER for workers in (1, 2)),
    ("single-learner-coarse", 4),
    *((policy, 1) for policy in ("multi-learner", "central")),
]


@pytest.mark.parametrize(("case", "policy", "workers"), graded(SAME_BITS, CASES))
def test_replicated_actors_and_environments_give_the_same_bits(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=16, iterations=5)
    cut = train(*CASES[case], policy, workers, num_envs=16, iterations=5)
    assert fused.messages == 0
    assert cut.messages > 0
    assert_as_said(cut, fused)  # Pendulum with four environments per worker rounds differently


@pytest.mark.quick
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("case", "policy"), one_of_each(CASES, REPLICATED))
def test_replicated_learners_agree_to_rounding(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=16, iterations=5)
    cut = train(*CASES[case], policy, workers, num_envs=16, iterations=5)
    assert cut.start.equality.startswith("rounding")
    assert relative_error(cut.state.params, fused.state.params) < 1e-4
