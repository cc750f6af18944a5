"""The schedule as a pure state machine: what each instruction means, no threads."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fragflow.errors import GraphError
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG, Parcel, Transfer
from fragflow.graph.passes.collectives import crossings
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment, synchronisation
from fragflow.runtime.drivers.assign_workers import thread_codes
from fragflow.runtime.planning.instructions import Code, Enter, Get, Put, Repeat, Run, routes
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.planning.simulate import (
    Schedule,
    ThreadCode,
    check_order,
    replicas_apart,
    simulate,
    thread_code,
    visits,
)
from graph.toy import Drift, Toy

UP = Transfer(name="up", source="a", target="b", parcels=(Parcel(value="x", collective="gather"),))
DOWN = Transfer(name="down", source="b", target="a", parcels=())


def bare(
    codes: Mapping[str, Code], counts: Mapping[str, int], late: Mapping[str, int] | None = None
) -> tuple[Any, Any]:
    """A graph and a plan of which the schedule sees all that it asks for."""
    fragments = {name: SimpleNamespace(replicas=count) for name, count in counts.items()}
    graph = SimpleNamespace(
        fragments=fragments, transfers=(UP, DOWN), delays=late or {}, server=None
    )
    return graph, Plan(parts={name: SimpleNamespace(code=c) for name, c in codes.items()})  # pyright: ignore[reportArgumentType]


def lines(graph: Any, threads: tuple[ThreadCode, ...], iterations: int = 1) -> list[str]:
    return [
        f"{e.fragment}{e.replicas[0]} {e.kind} {e.what}"
        for e in simulate(graph, threads, iterations)
    ]


def test_a_loop_is_stepped_through():
    code = (Run(0), Enter(0, 2), Run(1), Repeat(0, 2, 2), Run(2))
    assert list(visits(code)) == [
        (Run(0), ()),
        (Run(1), (0,)),
        (Run(1), (1,)),
        (Run(2), ()),
    ]


def test_a_loop_within_a_loop_begins_anew():
    inner = (Enter(1, 2), Run(0), Repeat(1, 2, 2))
    code = (Enter(0, 2), *inner, Run(1), Repeat(0, 2, 1))
    assert [steps for i, steps in visits(code) if i == Run(0)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [steps for i, steps in visits(code) if i == Run(1)] == [(0,), (1,)]


def test_a_loop_of_no_steps_is_left_out():
    assert list(visits((Enter(0, 0), Run(0), Repeat(0, 0, 1), Run(1)))) == [(Run(1), ())]


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
    graph, plan = bare({"a": (Run(0), Put(UP)), "b": (Get(UP),)}, {"a": 2, "b": 1})
    schedule = Schedule.start(graph, replicas_apart(graph, plan), iterations=1)
    assert schedule.ready() == (0, 1)
    for thread in (0, 0, 1):
        schedule = schedule.after(thread)
    assert schedule.ready() == (1,)
    schedule = schedule.after(1)
    assert schedule.ready() == (2,)
    assert schedule.after(2).ready() == ()
    schedule.after(2).check_end()


def test_a_group_that_is_driven_as_one_receives_for_all():
    graph, plan = bare({"a": (Put(UP),), "b": (Get(UP), Run(0))}, {"a": 2, "b": 2})
    together = thread_code(graph, plan, {"b": (0, 1)})
    apart = replicas_apart(graph, plan)
    assert lines(graph, (*apart[:2], together)) == [
        "a0 Put up",
        "a1 Put up",
        "b0 Get up",
        "b0 Run 0",
    ]


@pytest.mark.parametrize("iterations", [1, 3])
def test_waiting_for_one_another_is_found(iterations):
    graph, plan = bare({"a": (Get(DOWN), Put(UP)), "b": (Get(UP), Put(DOWN))}, {"a": 1, "b": 1})
    with pytest.raises(GraphError, match=r"wait for one another: a\[0\].*Get down; b\[0\].*Get up"):
        simulate(graph, replicas_apart(graph, plan), iterations)


def test_a_late_message_is_there_before_the_first_iteration():
    codes = {"a": (Get(DOWN), Run(0), Put(UP)), "b": (Get(UP), Run(0), Put(DOWN))}
    graph, plan = bare(codes, {"a": 1, "b": 1}, {"down": 2})
    threads = replicas_apart(graph, plan)
    assert lines(graph, threads, iterations=3)[:8] == [
        *("a0 Get down", "a0 Run 0", "a0 Put up"),
        *("a0 Get down", "a0 Run 0", "a0 Put up"),
        *("b0 Get up", "b0 Run 0"),
    ]


def test_a_message_that_nobody_receives_is_refused():
    graph, plan = bare({"a": (Put(UP),), "b": ()}, {"a": 1, "b": 1})
    with pytest.raises(GraphError, match=r"nobody receives: \[\('up', 0, 0\)\]"):
        simulate(graph, replicas_apart(graph, plan), 1)


def test_a_late_message_that_is_not_made_again_is_refused():
    graph, plan = bare({"a": (Get(DOWN),), "b": (Run(0),)}, {"a": 1, "b": 1}, {"down": 1})
    with pytest.raises(GraphError, match="nobody receives"):
        simulate(graph, replicas_apart(graph, plan), 1)


def test_a_thread_does_one_thing_after_the_other():
    graph, plan = bare({"a": (Run(0), Put(UP)), "b": (Get(UP), Run(0))}, {"a": 1, "b": 1})
    order = [("a", Run(0)), ("a", Put(UP)), ("b", Get(UP)), ("b", Run(0))]
    thread = thread_code(graph, plan, {"a": (0,), "b": (0,)}, order)
    assert lines(graph, (thread,)) == ["a0 Run 0", "a0 Put up", "b0 Get up", "b0 Run 0"]
    assert [e.is_call for e in simulate(graph, (thread,), 1)] == [True, False, False, True]
    waits = [order[2], order[3], order[0], order[1]]
    with pytest.raises(GraphError, match="wait for one another"):
        simulate(graph, (thread_code(graph, plan, {"a": (0,), "b": (0,)}, waits),), 1)


def test_a_thread_keeps_each_fragment_s_own_order():
    graph, plan = bare({"a": (Run(0), Run(1)), "b": (Run(0),)}, {"a": 1, "b": 1})
    both = {"a": (0,), "b": (0,)}
    wrong = [("a", Run(1)), ("a", Run(0)), ("b", Run(0))]
    with pytest.raises(GraphError, match=r"Run\(segment=1\) of a, whose own next is"):
        thread_code(graph, plan, both, wrong)
    with pytest.raises(GraphError, match=r"leaves out Run\(segment=0\) of b"):
        thread_code(graph, plan, both, [("a", Run(0)), ("a", Run(1))])


def toy(policy: str, workers: int, sync: str | None = None) -> tuple[FDG, Plan]:
    chosen = POLICIES[policy]
    if sync is not None:
        chosen = replace(chosen, synchronisation=synchronisation(sync))
    fdg = cut(tracer(Toy(), Drift(), 8), chosen, Deployment(workers=workers, learners=1))
    return fdg, make_plan(fdg)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_graph_runs_to_its_end_in_any_order(policy, workers):
    fdg, plan = toy(policy, workers)
    choices = (min, max, *(random.Random(seed).choice for seed in range(3)))
    for choose in choices:
        events = simulate(fdg, replicas_apart(fdg, plan), 2, choose)
        sent = Counter(str(e.what) for e in events if e.kind == "Put")
        for transfer in fdg.transfers:
            senders = fdg.fragments[transfer.source].replicas
            assert sent[transfer.name] == 2 * senders * crossings(fdg)[transfer.name]


@pytest.mark.parametrize("divide_groups", [False, True])
@pytest.mark.parametrize("sync", [None, "lag=1", "lag=3"])
@pytest.mark.parametrize("workers", [1, 2])
def test_threads_go_through_what_replicas_would(workers, sync, divide_groups):
    fdg, plan = toy("single-learner-coarse", workers, sync)
    threads = thread_codes(fdg, plan, divide_groups)
    for choose in (min, max, random.Random(0).choice):
        events = simulate(fdg, threads, 4, choose)
        check_order(fdg, replicas_apart(fdg, plan), 4, [replace(e, is_call=True) for e in events])


def test_a_graph_that_would_hang_is_refused():
    fdg, plan = toy("single-learner-coarse", 1)
    learner = plan.parts["learner"]
    deaf = replace(learner, code=tuple(i for i in learner.code if not isinstance(i, Get)))
    with pytest.raises(GraphError, match="nobody receives"):
        simulate(fdg, replicas_apart(fdg, Plan(parts={**plan.parts, "learner": deaf})), 1)


def test_asynchronous_runs_have_no_order():
    fdg, plan = toy("central", 1)
    with pytest.raises(GraphError, match="lockstep, or with a lag"):
        simulate(replace(fdg, server="server"), replicas_apart(fdg, plan), 1)
