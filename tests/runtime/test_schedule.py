"""The schedule as a pure state machine: events in, state out, no threads."""

import pytest

from fragflow.errors import GraphError
from fragflow.graph.cut import cut
from fragflow.graph.ir import Parcel, Transfer
from fragflow.graph.passes.collectives import crossings
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment
from fragflow.runtime.planning.instructions import Enter, Get, Put, Repeat, Run, routes
from fragflow.runtime.planning.plan import FragmentPlan, Plan, make_plan
from graph.toy import Drift, Toy
from runtime.simulate import Cursor, Done, Schedule, advance, record

UP = Transfer(name="up", source="a", target="b", parcels=(Parcel(value="x", collective="gather"),))
DOWN = Transfer(name="down", source="b", target="a", parcels=())


def test_a_loop_is_stepped_through():
    code = (Run(0), Enter(0, 2), Run(1), Repeat(0, 2, 2), Run(2))
    at, visited = Cursor(), []
    while at.position < len(code):
        visited.append((at.position, at.steps))
        at = advance(code, at)
    assert visited == [(0, ()), (1, ()), (2, (0,)), (3, (0,)), (2, (1,)), (3, (1,)), (4, ())]
    assert at == Cursor(5)


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        (2, 2, ((0, 0), (1, 1))),
        (4, 2, ((0, 0), (1, 0), (2, 1), (3, 1))),
        (1, 3, ((0, 0), (0, 1), (0, 2))),
    ],
)
def test_who_sends_to_whom(sources, targets, expected):
    assert routes(sources, targets) == expected


def test_a_receiver_waits_for_all_senders():
    schedule = Schedule.start({"a": (Run(0), Put(UP)), "b": (Get(UP),)}, {"a": 2, "b": 1})
    assert schedule.ready() == (("a", 0), ("a", 1))
    for replica in (("a", 0), ("a", 0), ("a", 1)):
        schedule = schedule.handle(Done(replica=replica))
    assert not schedule.is_ready(("b", 0))
    schedule = schedule.handle(Done(replica=("a", 1)))
    assert schedule.ready() == (("b", 0),)
    assert schedule.handle(Done(replica=("b", 0))).ready() == ()
    assert schedule.handle(Done(replica=("b", 0))).stuck() == ()


def test_waiting_for_one_another_is_found():
    schedule = Schedule.start(
        {"a": (Get(DOWN), Put(UP)), "b": (Get(UP), Put(DOWN))}, {"a": 1, "b": 1}
    )
    assert schedule.ready() == ()
    assert set(schedule.stuck()) == {("a", 0), ("b", 0)}


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_graph_runs_to_its_end_in_any_order(policy, workers):
    deployment = Deployment(workers=workers, learners=1)
    fdg = cut(tracer(Toy(), Drift(), 8), POLICIES[policy], deployment)
    plan = make_plan(fdg)
    for seed in (None, 0, 1, 2, 3):
        result = record(fdg, plan, seed)
        for transfer in fdg.transfers:
            senders = fdg.fragments[transfer.source].replicas
            assert result.messages[transfer.name] == senders * crossings(fdg)[transfer.name]


def test_the_null_runtime_refuses_a_graph_that_would_hang():
    fdg = cut(tracer(Toy(), Drift(), 8), POLICIES["single-learner-coarse"], Deployment())
    plan = make_plan(fdg)
    learner = plan.parts["learner"]
    without_sends = FragmentPlan(
        fragment=learner.fragment,
        segments=learner.segments,
        loops=learner.loops,
        code=tuple(i for i in learner.code if not isinstance(i, Get)),
        fused=False,
    )
    with pytest.raises(GraphError, match="nobody receives"):
        record(fdg, Plan(parts={**plan.parts, "learner": without_sends}))
