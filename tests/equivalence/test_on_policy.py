"""Distribution does not change learning: A2C, IMPALA and recurrent PPO under every policy."""

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
from fragflow.algorithms.a3c import A2C
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.recurrent_ppo import RecurrentPPO

RECURRENT = RecurrentPPO(rollout_length=16, chunk_length=4, epochs=2, minibatches=2, units=32)
CASES = {
    "a2c": (A2C(rollout_length=8), "CartPole-v1"),
    "impala": (IMPALA(rollout_length=8), "Pendulum-v1"),
    "recurrent-ppo": (RECURRENT, "CartPole-positions"),
}

SAME_BITS = [
    *((policy, workers) for policy in ONE_LEARNER for workers in (1, 2, 4)),
    *((policy, 1) for policy in ("multi-learner", "central")),
]


@pytest.mark.parametrize(("case", "policy", "workers"), graded(SAME_BITS, CASES))
def test_replicated_actors_and_environments_give_the_same_bits(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=64, iterations=3)
    cut = train(*CASES[case], policy, workers, num_envs=64, iterations=3)
    assert fused.messages == 0
    assert cut.messages > 0
    assert_as_said(cut, fused)


@pytest.mark.quick
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("case", "policy"), one_of_each(CASES, REPLICATED))
def test_replicated_learners_agree_to_rounding(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=64, iterations=3)
    cut = train(*CASES[case], policy, workers, num_envs=64, iterations=3)
    assert cut.start.equality.startswith("rounding")
    assert relative_error(cut.state.params, fused.state.params) < 1e-4
