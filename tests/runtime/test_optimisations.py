"""Every optimisation can be switched off, and what is learned stays the same to the last bit."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

import fragflow as ff
from equivalence.common import digest
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import ConfigError
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, OPTIMISATIONS, all_but
from fragflow.graph.passes.collectives import crossings
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import Deployment, Place, Policy, named_policy
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.drivers.codegen import fragments_by_thread
from fragflow.runtime.drivers.thread_workers import ThreadWorkers
from fragflow.runtime.planning import plan as plans
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.programs.prepare_workers import Assembly
from graph.toy import Drift, State, Toy
from runtime.test_host import HostDrift, still

FINE = "single-learner-fine"
ACTOR_APART = Policy(
    name="actor-apart",
    places=(
        Place(name="learner", components=("environment", "learner")),
        Place(name="actor", components=("actor",)),
    ),
)


@dataclass(frozen=True)
class Cooled(Toy):
    """Acts with parameters that the learner makes anew before each rollout."""

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        params = state.params | {"cooled": self.cool(state.params["w"])}
        return super().step(env, state._replace(params=params), clock)

    def acting(self, params: Any) -> jax.Array:
        return params["cooled"]

    def remember(self, params: Any, w: jax.Array) -> Any:
        return {"w": w, "unused": params["unused"]}

    @ff.component("learner.cool")
    def cool(self, w: jax.Array) -> jax.Array:
        return 0.5 * w


def messages(fdg: FDG, _: Plan) -> int:
    return sum(crossings(fdg).values())


def values_sent(fdg: FDG, _: Plan) -> int:
    return sum(crossings(fdg)[transfer.name] * len(transfer.parcels) for transfer in fdg.transfers)


def unpacked_outputs(_: FDG, plan: Plan) -> int:
    return -sum(len(part.packed_avals) for part in plan.parts.values())


def copied_values(_: FDG, plan: Plan) -> int:
    segments = [s for part in plan.parts.values() for s in part.segments]
    in_place = sum(len(part.in_place) for part in plan.parts.values())
    return -in_place - sum(len(segment.donated) for segment in segments)


def outputs_of_programs(_: FDG, plan: Plan) -> int:
    return -sum(len(loop.rows) for part in plan.parts.values() for loop in part.loops)


def threads(fdg: FDG, plan: Plan) -> int:
    return len(fragments_by_thread(fdg, plan))


def stepwise_fragments(_: FDG, plan: Plan) -> int:
    return sum(not part.fused for part in plan.parts.values())


def large_programs(_: FDG, plan: Plan) -> int:
    return sum(not s.is_small for part in plan.parts.values() for s in part.segments)


Measure = Callable[[FDG, Plan], int]
MORE_OF: list[tuple[str, str, Policy | str, Measure]] = [
    ("hoist", "toy", ACTOR_APART, values_sent),
    ("sink", "toy", FINE, values_sent),
    ("coalesce", "toy", FINE, messages),
    ("pack", "toy", FINE, unpacked_outputs),
    ("donate", "toy", FINE, copied_values),
    ("donate", "toy", "gpu-only", copied_values),
    ("share_threads", "toy", FINE, threads),
    ("small_programs", "toy", FINE, large_programs),
    ("whole_chunks", "toy", "gpu-only", stepwise_fragments),
    ("host_rows", "host", FINE, outputs_of_programs),
    ("all", "toy", FINE, threads),
    ("all", "toy", "gpu-only", stepwise_fragments),
]
"""what there is more of if an optimisation is switched off, in runs that it concerns"""
EPOCHS = PPO(rollout_length=4, epochs=2, minibatches=2, hidden=(8,))
REPLAY = DQN(
    rollout_length=4, updates=2, batch_size=16, buffer_size=64, learning_starts=32, hidden=(8,)
)
LARGER = [
    pytest.param(name, algorithm, policy, marks=pytest.mark.slow)
    for algorithm in ("ppo", "dqn", "host-ppo")
    for policy in (FINE, "single-learner-coarse", "central", "gpu-only")
    if (algorithm, policy) != ("host-ppo", "gpu-only")
    for name in (*OPTIMISATIONS, "all")
]


@functools.cache
def problem(name: str) -> tuple[Any, Any]:
    match name:
        case "toy":
            return Cooled(), Drift()
        case "host":
            return Cooled(disturb=still), HostDrift()
        case "ppo":
            return EPOCHS, make_environment("CartPole-v1")
        case "host-ppo":
            return EPOCHS, HostDrift()
    return REPLAY, make_environment("CartPole-v1")


def chosen(policy: Policy | str) -> Policy:
    return named_policy(policy) if isinstance(policy, str) else policy


@pytest.fixture(autouse=True)
def all_state_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LARGE_BYTES", 1)


def train(name: str, policy: Policy | str, without: str = "") -> Outcome:
    algorithm, environment = problem(name)
    experiment = Experiment(
        algorithm=algorithm, environment=environment, num_envs=8, total_steps=5 * 4 * 8, seed=3
    )
    optimisations = all_but([without] if without else [])
    return run(experiment, chosen(policy), optimisations=optimisations)


@functools.cache
def optimised(name: str, policy: Policy | str) -> Outcome:
    return train(name, policy)


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    yield
    optimised.cache_clear()


def assert_same_bits(name: str, policy: Policy | str, without: str) -> None:
    before, after = optimised(name, policy), train(name, policy, without)
    assert digest(before.state) == digest(after.state)
    assert [row.metrics for row in before.rows] == [row.metrics for row in after.rows]


def test_all_of_them_are_tried() -> None:
    assert {name for name, *_ in MORE_OF} == {*OPTIMISATIONS, "all"}


@pytest.mark.parametrize(("without", "name", "policy", "measure"), MORE_OF)
def test_one_that_is_switched_off_is_not_made(
    without: str, name: str, policy: Policy | str, measure: Measure
) -> None:
    source = tracer(*problem(name), 8)

    def measured(*names: str) -> int:
        optimisations = all_but(names)
        fdg = cut(source, chosen(policy), Deployment(), optimisations)
        return measure(fdg, make_plan(fdg, optimisations))

    assert measured(without) > measured()
    if without != "all":
        assert measured(*(other for other in OPTIMISATIONS if other != without)) < measured("all")


@pytest.mark.parametrize(("without", "name", "policy"), [case[:3] for case in MORE_OF])
def test_without_it_the_bits_are_the_same(without: str, name: str, policy: Policy | str) -> None:
    assert_same_bits(name, policy, without)


@pytest.mark.parametrize(("without", "name", "policy"), LARGER)
def test_larger_programs_have_the_same_bits_too(
    without: str, name: str, policy: Policy | str
) -> None:
    assert_same_bits(name, policy, without)


def test_the_page_has_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")
    section = page.partition("## Optimisations")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.M)) == OPTIMISATIONS


@pytest.mark.probed
def test_bits_are_compared_as_the_run_is_optimised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what was compared before is not known
    made: list[bool] = []

    start = ThreadWorkers.start

    def noted(self: ThreadWorkers, assembly: Assembly) -> None:
        made.append(assembly.plan.optimisations.share_threads)
        start(self, assembly)

    monkeypatch.setattr(ThreadWorkers, "start", noted)
    assert train("toy", FINE).equality == "bitwise"
    assert train("toy", FINE, "share_threads").equality == "bitwise"
    # Each time this run's fragments, the undivided program, and the run itself.
    assert made == [True, True, True, False, True, False]


@pytest.mark.probed
def test_one_fragment_step_by_step_is_compared_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compared: list[Any] = []
    monkeypatch.setattr("fragflow.run.other_bits", lambda *given, **_: compared.append(given))
    assert train("toy", "gpu-only").equality == "bitwise"
    assert not compared
    assert train("toy", "gpu-only", "whole_chunks").equality == "bitwise"
    assert len(compared) == 1


def test_names_are_looked_up() -> None:
    assert all_but([]) == ALL_OPTIMISATIONS
    assert all_but(["pack", "host-rows"]) == all_but(["host_rows", " pack"])
    assert not all_but(["share_threads"]).share_threads
    assert not any(getattr(all_but(["all"]), name) for name in OPTIMISATIONS)
    with pytest.raises(ConfigError, match=r"unknown optimisation 'pcak'\. Did you mean 'pack'\?"):
        all_but(["pcak"])
