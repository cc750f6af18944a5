"""Distribution does not change learning: IPPO and MAPPO under every policy."""

import pytest

from equivalence.common import (
    ONE_LEARNER,
    REPLICATED,
    assert_as_said,
    digest,
    graded,
    relative_error,
    train,
)
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.mappo import MAPPO
from fragflow.environments import make_environment

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves

TAG = make_environment("Tag", agents=6, taggers=2, neighbours=3)
SPREAD = "jaxmarl:MPE_simple_spread_v3"
RECURRENT = MAPPO(rollout_length=8, chunk_length=4, epochs=1, minibatches=2, units=16, hidden=(32,))
CASES = {
    "ippo": (IPPO(rollout_length=8, epochs=2, minibatches=2), TAG),
    "mappo": (RECURRENT, TAG),
}
"""in a game whose steps round the same in any batch; those of JaxMARL's do not"""
QUICK = [("ippo", "multi-learner")]
"""of the many combinations, those that are tried every time"""
SAME_BITS = [
    *((policy, workers) for policy in ONE_LEARNER for workers in (2, 4)),
    *((policy, 1) for policy in (*ONE_LEARNER, "multi-learner", "central")),
]


@pytest.mark.parametrize(("policy", "workers"), graded(SAME_BITS))
@pytest.mark.parametrize("case", ["ippo", pytest.param("mappo", marks=pytest.mark.slow)])
def test_replicated_actors_and_environments_give_the_same_bits(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=64, iterations=2)
    cut = train(*CASES[case], policy, workers, num_envs=64, iterations=2)
    assert cut.messages > 0
    assert_as_said(cut, fused)


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.quick)]
)
def test_a_learner_for_each_team_gives_the_same_bits(workers):
    fused = train(*CASES["ippo"], "gpu-only", 1, num_envs=64, iterations=2)
    cut = train(*CASES["ippo"], "learner-per-team", workers, num_envs=64, iterations=2)
    assert cut.start.fdg is not None
    assert list(cut.start.fdg.fragments)[1:] == ["learner-team0", "learner-team1"]
    assert cut.start.equality == "bitwise"
    assert digest(cut.state) == digest(fused.state)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("learners", "workers"), [(2, 2), pytest.param(1, 2, marks=pytest.mark.slow)]
)
def test_learners_that_have_some_of_the_agents_agree_to_rounding(learners, workers):
    fused = train(*CASES["ippo"], "gpu-only", 1, num_envs=64, iterations=2)
    how = {"num_envs": 64, "iterations": 2, "learners": learners}
    cut = train(*CASES["ippo"], "agents", workers, **how)
    assert cut.start.fdg is not None
    assert cut.start.fdg.fragments["learner"].extent.parts == learners
    if learners == 1:
        assert digest(cut.state) == digest(fused.state)
    assert relative_error(cut.state.params["actor"], fused.state.params["actor"]) < 1e-4


@pytest.mark.quick
@pytest.mark.slow
def test_a_learner_for_each_agent_learns_the_same():
    alone = make_environment("pettingzoo:simple_spread_v3", apart=True)
    assert alone.teams == (1, 1, 1)
    learner = IPPO(rollout_length=8, epochs=1, minibatches=2, hidden=(16,))
    whole = train(learner, alone, "single-learner-coarse", 1, num_envs=16, iterations=2)
    cut = train(learner, alone, "learner-per-team", 2, num_envs=16, iterations=2)
    assert cut.start.fdg is not None
    assert list(cut.start.fdg.fragments)[1:] == [f"learner-team{k}" for k in range(3)]
    assert relative_error(cut.state.params["actor"], whole.state.params["actor"]) < 1e-3


@pytest.mark.legacy
def test_where_steps_round_differently_it_is_said():
    learner = IPPO(rollout_length=8, epochs=1, minibatches=1, hidden=(16,))
    fused = train(learner, SPREAD, "gpu-only", 1, num_envs=64, iterations=2)
    cut = train(learner, SPREAD, "single-learner-coarse", 2, num_envs=64, iterations=2)
    same = digest(cut.state) == digest(fused.state)
    assert same or "environment.step may round differently" in cut.start.equality
    assert relative_error(cut.state.params["actor"], fused.state.params["actor"]) < 1e-3


@pytest.mark.quick
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("case", "policy"),
    [
        pytest.param(case, policy, marks=[] if (case, policy) in QUICK else pytest.mark.slow)
        for case in CASES
        for policy in REPLICATED
    ],
)
def test_replicated_learners_agree_to_rounding(case, policy, workers):
    fused = train(*CASES[case], "gpu-only", 1, num_envs=64, iterations=2)
    cut = train(*CASES[case], policy, workers, num_envs=64, iterations=2)
    assert cut.start.equality.startswith("rounding")
    assert relative_error(cut.state.params["actor"], fused.state.params["actor"]) < 1e-4
