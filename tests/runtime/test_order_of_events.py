"""Real runs, in threads and in processes, make their events in an order that the schedule allows.

Generated drivers were not written from the schedule: both are made from the same instructions. If
one of them gives an instruction another meaning, a thread's own events are not those expected.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import GraphError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment, synchronisation
from fragflow.run import Experiment, RuntimeName
from fragflow.runtime.drivers.assign_workers import thread_codes
from fragflow.runtime.planning.plan import make_plan
from fragflow.runtime.planning.simulate import Event, check_order, simulate
from graph.toy import Drift, Toy
from remote.plain_drift import PlainDrift
from runtime.recorded import Recorded, recorded
from runtime.test_turns import Shuffled

pytestmark = pytest.mark.quick

COARSE, FINE = "single-learner-coarse", "single-learner-fine"


@dataclass(frozen=True)
class Twice(Toy):
    """Goes through its rows twice, from the last one to the first: a loop within a loop."""

    def learn(self, w: jax.Array, seen: Any, actions: Any, rewards: Any) -> jax.Array:
        def one(w: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            grads = self.gradient(w, seen[row], actions[row], rewards[row])
            return self.update(w, self.reduce(grads)), None

        def through(w: jax.Array, _: None) -> tuple[jax.Array, None]:
            return lax.scan(one, w, jnp.arange(self.length), reverse=True)[0], None

        return lax.scan(through, w, None, length=2)[0]


ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "ppo": (
        PPO(rollout_length=4, epochs=1, minibatches=2, hidden=(4,)),
        make_environment("CartPole-v1"),
    ),
    "ippo": (
        IPPO(rollout_length=4, epochs=1, minibatches=2, hidden=(4,)),
        make_environment("Tag"),
    ),
    "toy": (Toy(), Drift()),
    "toy twice": (Twice(), Drift()),
    "toy on the host": (Toy(), PlainDrift()),
    "toy out of order": (Toy(), Shuffled()),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run to be recorded."""

    policy: str
    sync: str = "lockstep"
    algorithm: str = "ppo"
    runtime: RuntimeName = "local"
    workers: int = 2
    first: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}-{self.policy}-{self.sync}-{self.runtime}-{self.workers}"


LAGGED = (COARSE, "learner-per-team", "split-device")
"""policies that permit a lag; and, with several agents, `agents`"""
FAST = [
    *(Case(policy=p) for p in (COARSE, FINE, "multi-learner", "environments", "central")),
    Case(policy="gpu-only", algorithm="toy"),  # one program: no events
    Case(policy=COARSE, sync="lag=1"),
    Case(policy="split-device", sync="lag=1"),
    Case(policy=FINE, algorithm="toy", workers=1),  # two fragments in one thread
    Case(policy="central", algorithm="toy twice"),
    Case(policy=COARSE, sync="lag=2", algorithm="toy"),
    Case(policy=FINE, algorithm="toy on the host"),
    Case(policy=COARSE, sync="lag=1", algorithm="toy on the host"),
    Case(policy=COARSE, algorithm="toy out of order", first=1),
    Case(policy=FINE, algorithm="toy", runtime="processes"),
    Case(policy=COARSE, sync="lag=1", algorithm="toy", workers=1, runtime="processes"),
]
IN_THREADS = [
    *(Case(policy=p) for p in POLICIES if p != "agents"),
    *(Case(policy=p, sync="lag=1") for p in LAGGED),
    *(Case(policy=p, algorithm="ippo") for p in POLICIES),
    *(Case(policy=p, algorithm="ippo", sync="lag=1") for p in (*LAGGED, "agents")),
    *(case for case in FAST if case.runtime == "local"),
]
IN_PROCESSES = [replace(case, runtime="processes") for case in IN_THREADS if case.first is None]
SLOW = [case for case in dict.fromkeys([*IN_THREADS, *IN_PROCESSES]) if case not in FAST]
CASES = [
    *(pytest.param(case, id=str(case)) for case in FAST),
    *(pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in SLOW),
]


@functools.cache
def record(case: Case) -> Recorded:
    algorithm, environment = ALGORITHMS[case.algorithm]
    length = getattr(algorithm, "rollout_length", 4)
    experiment = Experiment(
        algorithm=algorithm, environment=environment, num_envs=4, total_steps=3 * 4 * length, seed=1
    )
    policy = replace(
        POLICIES[case.policy], synchronisation=synchronisation(case.sync), first=case.first
    )
    learners = case.workers if case.policy == "agents" else 1
    return recorded(experiment, policy, case.runtime, workers=case.workers, learners=learners)


def calls(run: Recorded, choose: Callable[[Sequence[int]], int]) -> list[Event]:
    return [e for e in simulate(run.fdg, run.threads, run.iterations, choose) if e.is_call]


@pytest.mark.parametrize("case", CASES)
def test_each_thread_does_what_is_simulated(case: Case) -> None:
    run = record(case)
    assert run.iterations == 3
    simulated = calls(run, random.Random(0).choice)
    assert len(run.by_thread) == len(run.threads)
    for made in run.by_thread:
        own = [timed.event for timed in made]
        drives = {(event.fragment, event.replicas) for event in own}
        assert own == [e for e in simulated if (e.fragment, e.replicas) in drives]
    assert sum(map(len, run.by_thread)) == len(simulated)
    check_order(run.fdg, run.threads, run.iterations, run.events)


def test_a_loop_within_a_loop_is_noted_step_by_step() -> None:
    run = record(Case(policy="central", algorithm="toy twice"))
    sent = [
        e.steps for e in run.events if (e.fragment, e.kind, e.iteration) == ("server", "Put", 1)
    ]
    assert [steps for steps in sent if len(steps) == 2] == [
        (a, b) for a in (0, 1) for b in range(4)
    ]


def refused(run: Recorded, events: Sequence[Event], why: str) -> None:
    with pytest.raises(GraphError, match=why):
        check_order(run.fdg, run.threads, run.iterations, events)


def places(events: Sequence[Event], fragment: str, kind: str) -> list[int]:
    """Where a fragment's first replica does this."""
    return [
        k
        for k, e in enumerate(events)
        if (e.fragment, e.replicas, e.kind) == (fragment, (0,), kind)
    ]


def test_two_events_that_are_swapped_are_found() -> None:
    run = record(Case(policy=FINE))
    events = run.events
    sends, receives = (places(events, "environment", kind) for kind in ("Put", "Get"))
    a = sends[5]
    b = min(k for k in receives if k > a)
    events[a], events[b] = events[b], events[a]
    refused(run, events, r"environment\[0\], iteration . in step .: Get .*: expected .*Put")


@pytest.mark.parametrize("kind", ["Get", "Put", "Run"])
def test_an_event_that_is_left_out_is_found(kind: str) -> None:
    run = record(Case(policy=FINE))
    events = run.events
    del events[places(events, "learner", kind)[3]]
    refused(run, events, "expected learner|is not sent yet")


def test_a_last_event_that_is_left_out_is_found() -> None:
    run = record(Case(policy=FINE))
    refused(run, run.events[:-1], "events are missing")


@pytest.mark.parametrize("again", [0, -1])
def test_a_message_that_is_sent_twice_is_found(again: int) -> None:
    run = record(Case(policy=COARSE))
    events = run.events
    twice = places(events, "learner", "Put")[again]
    events.insert(twice + 1, events[twice])
    refused(run, events, "learner.*Put .*: expected")


def test_an_iteration_too_many_is_found() -> None:
    run = record(Case(policy=COARSE))
    more = calls(replace(run, iterations=run.iterations + 1), min)
    refused(run, more, "expected no more")


def test_a_message_that_is_received_before_it_is_sent_is_found() -> None:
    run = record(Case(policy=COARSE))
    events = run.events
    early = events.pop(places(events, "learner", "Get")[0])
    refused(run, [early, *events], "learner.*Get .*is not sent yet")


def test_who_runs_further_ahead_than_the_lag_is_found() -> None:
    def ahead(lag: int) -> Recorded:
        """Who acts does so as early as it may."""
        policy = replace(POLICIES[COARSE], synchronisation=synchronisation(f"lag={lag}"))
        fdg = cut(tracer(*ALGORITHMS["toy"], 4), policy, Deployment(workers=2))
        plan = make_plan(fdg)
        return Recorded(
            fdg=fdg, plan=plan, threads=thread_codes(fdg, plan), iterations=5, by_thread=()
        )

    far, near = ahead(2), ahead(1)
    assert next(iter(near.fdg.fragments)) == "environment+actor"  # which `min` prefers
    check_order(far.fdg, far.threads, 5, calls(far, min))
    check_order(far.fdg, far.threads, 5, calls(near, min))
    refused(near, calls(far, min), "environment.*iteration 1: Get .*is not sent yet")
    in_step = ahead(1)
    in_step = replace(in_step, fdg=replace(in_step.fdg, delays={}))
    refused(in_step, calls(near, min), "environment.*iteration 0: Get .*is not sent yet")


def test_what_no_thread_drives_is_found() -> None:
    run = record(Case(policy=COARSE))
    events = [replace(e, replicas=(7,)) for e in run.events]
    refused(run, events, "no thread of this run drives that")


def test_fragments_that_are_one_program_have_no_events() -> None:
    run = record(Case(policy="gpu-only", algorithm="toy"))
    assert all(part.fused for part in run.plan.parts.values())
    assert run.events == []
