"""Large state is written into, and what is learned stays the same."""

import pytest

from equivalence.common import digest
from fragflow import ops
from fragflow.algorithms.dqn import DQN
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import Deployment, named_policy
from fragflow.run import Experiment, run
from fragflow.runtime.planning import plan as plans
from fragflow.runtime.planning.plan import make_plan

SHORT = DQN(rollout_length=4, updates=2, batch_size=16, buffer_size=64, learning_starts=32)
POLICIES = [("gpu-only", 1), ("gpu-only", 2), ("single-learner-coarse", 2), ("central", 2)]
OFTEN = [("single-learner-coarse", 2)]


@pytest.mark.parametrize(
    ("policy", "workers"),
    [p if p in OFTEN else pytest.param(*p, marks=pytest.mark.slow) for p in POLICIES],
)
def test_writing_into_state_changes_no_bit(policy, workers, monkeypatch):
    def train(threshold: int) -> str:
        monkeypatch.setattr(plans, "LARGE_BYTES", threshold)
        experiment = Experiment(
            algorithm=SHORT,
            environment=make_environment("CartPole-v1"),
            num_envs=8,
            total_steps=256,
        )
        return digest(run(experiment, named_policy(policy), workers=workers).state)

    assert train(1) == train(1 << 60)


@pytest.mark.parametrize(("policy", "workers"), POLICIES)
def test_the_buffer_is_written_into_by_who_has_it(policy, workers):
    source = tracer(DQN(buffer_size=2_000_000), make_environment("CartPole-v1"), 16)
    fdg = cut(source, named_policy(policy), Deployment(workers=workers))
    written = [v for part in make_plan(fdg).parts.values() for v in part.in_place]
    assert len(written) == len(ops.Transition._fields)


def test_what_is_sent_is_not_written_into(monkeypatch):
    monkeypatch.setattr(plans, "LARGE_BYTES", 1)
    source = tracer(SHORT, make_environment("CartPole-v1"), 16)
    fdg = cut(source, named_policy("single-learner-coarse"), Deployment(workers=2))
    sent = {parcel.value for transfer in fdg.transfers for parcel in transfer.parcels}
    plan = make_plan(fdg)
    for name in plan.parts:
        written = plans.large_state(fdg, fdg.fragments[name])
        assert not sent & (set(written) | set(written.values()))
    assert plan.parts["learner"].in_place
