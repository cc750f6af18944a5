"""Names that users give have no meaning: whatever they are, nothing is read into them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow.errors import ReplicaError
from fragflow.graph.cut import cut
from fragflow.graph.ir import EpisodeStat
from fragflow.graph.tracing.trace import leaf_labels, tracer
from fragflow.policies import Deployment, Place, Policy, named_policy, synchronisation
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.planning.message_pieces import incoming, wholes
from graph.toy import Drift, Toy

pytestmark = pytest.mark.quick
ITERATIONS = 3
NUM_ENVS = 8
STEPS = {
    "x": 1.0,
    "x#0": 2.0,
    "x@init": 3.0,
    "x@final": 4.0,
    "y#1": 5.0,
    "a.b": 6.0,
    "a": {"b": 7.0},
    "init:x": 8.0,
}
"""by how much rows of these names grow in an iteration"""
REPORTED = {
    "1.0.episodes": 3.0,
    "0.reward": 4.0,
    "episodes": 5.0,
    "1": {"0": {"return_sum": 6.0}},
    "a.b": 7.0,
    "a": {"b": 8.0},
}


class State(NamedTuple):
    params: Any
    env_state: Any
    obs: Any
    notes: Any


@dataclass(frozen=True)
class Named(Toy):
    """Keeps rows of many names beside what it learns, which the learner reads."""

    def init(self, env: ff.Environments, key: jax.Array) -> Any:
        state = super().init(env, key)
        notes = jax.tree.map(lambda _: state.obs[:, 0], STEPS)
        return State(*state, notes | {"first": state.obs[:, 0]})

    def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> Any:
        weighed = ff.all_mean(self.weigh(state.notes).mean())
        notes = self.note(state.notes)
        inner, metrics = super().step(env, state, clock)
        metrics |= REPORTED | {"weighed": weighed}
        return State(inner.params, inner.env_state, inner.obs, notes), metrics

    @ff.component("actor.note")
    def note(self, notes: Any) -> Any:
        return notes | jax.tree.map(lambda x, step: x + step, without_first(notes), STEPS)

    @ff.component("learner.weigh")
    def weigh(self, notes: Any) -> jax.Array:
        weighed = jax.tree.map(lambda x, step: x * step, without_first(notes), STEPS)
        return jnp.sum(jnp.stack(jax.tree.leaves(weighed)), 0)


def without_first(notes: Any) -> Any:
    return {name: notes[name] for name in STEPS}


COARSE = named_policy("single-learner-coarse")
SERVED = Policy(
    name="served",
    places=(
        Place(name="worker", components=("environment", "actor"), replicas="workers", device="cpu"),
        Place(name="server", components=("learner", "actor.note")),
    ),
)
"""the server has the rows, by sender"""


def train(algorithm: Any, policy: Policy = COARSE, sync: str = "lockstep", **how: Any) -> Outcome:
    experiment = Experiment(
        algorithm=algorithm,
        environment=Drift(),
        num_envs=NUM_ENVS,
        total_steps=ITERATIONS * NUM_ENVS * 4,
        seed=7,
    )
    return run(experiment, replace(policy, synchronisation=synchronisation(sync)), **how)


@pytest.mark.parametrize(
    ("policy", "sync", "runtime"),
    [
        (COARSE, "lockstep", "eager"),
        (COARSE, "lockstep", "local"),
        (COARSE, "lockstep", "processes"),
        (COARSE, "lag=1", "local"),
        (SERVED, "async", "local"),
    ],
)
def test_state_and_metrics_may_have_any_names(policy: Policy, sync: str, runtime: Any) -> None:
    workers = 1 if runtime == "eager" else 2
    outcome = train(Named(), policy, sync, workers=workers, runtime=runtime)
    notes = outcome.state.notes
    first = np.asarray(notes["first"])
    assert first.shape == (NUM_ENVS,)

    def compare(found: Any, step: float) -> None:
        np.testing.assert_allclose(found, first + ITERATIONS * step, rtol=1e-5)

    jax.tree.map(compare, without_first(notes), STEPS)
    steps = np.asarray(jax.tree.leaves(STEPS))
    for index, row in enumerate(outcome.rows):
        weighed = np.mean(first) * steps.sum() + index * (steps**2).sum()
        assert row.metrics["weighed"] == pytest.approx(weighed, rel=1e-4)
        labels = dict(zip(leaf_labels(REPORTED), jax.tree.leaves(REPORTED), strict=True))
        assert {label: row.metrics[label] for label in labels} == labels
        assert set(row.metrics) - set(labels) - {"lag", "lag_max"} == {"reward", "weighed"}


def test_metrics_are_no_episodes() -> None:
    plain, named = (train(algorithm, workers=2).rows for algorithm in (Toy(), Named()))
    assert sum(row.episodes for row in plain) > 0
    for ours, theirs in zip(plain, named, strict=True):
        assert (ours.episodes, ours.return_sum) == (theirs.episodes, theirs.return_sum)


def test_a_metric_like_episode_statistics_must_be_reduced_too() -> None:
    @dataclass(frozen=True)
    class Unreduced(Toy):
        def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> Any:
            inner, metrics = super().step(env, state, clock)
            return inner, {"1": {"episodes": metrics["reward"]}}

    source = tracer(Unreduced(report=lambda rewards: rewards[0]), Drift(), NUM_ENVS)
    with pytest.raises(ReplicaError, match=r"the metric 1\.episodes still has the environment"):
        cut(source, named_policy("gpu-only"), Deployment(workers=2))


def test_leaves_have_names_of_their_own() -> None:
    labels = leaf_labels({"a.b": 1, "a": {"b": 2}, "c": 3})
    assert len(set(labels)) == 3
    assert "c" in labels
    assert str(EpisodeStat(0, "episodes")) == "1.0.episodes"


def test_pieces_of_messages_are_known_by_their_values() -> None:
    source = tracer(Named(), Drift(), NUM_ENVS)
    fdg = cut(source, COARSE, Deployment(workers=2))
    pieces = wholes(fdg, "learner")
    up = [t for t in fdg.transfers if t.target == "learner"]
    assert up
    for transfer in up:
        for parcel, names in zip(transfer.parcels, incoming(fdg, transfer), strict=True):
            assert {pieces[name] for name in names} == {parcel.value}
            assert len(names) == 2
            assert not set(names) & set(fdg.program.avals[fdg.program.extent])


def test_joined_fragments_know_their_places() -> None:
    policy = Policy(
        name="own",
        places=(
            Place(name="worlds", components=("environment",), replicas="workers", device="cpu"),
            Place(name="acts", components=("actor",), replicas="workers", paired_with="worlds"),
            Place(name="notes", components=("actor.note",), replicas="workers", paired_with="acts"),
            Place(name="act", components=("learner",)),
        ),
    )
    fdg = cut(tracer(Named(), Drift(), NUM_ENVS), policy, Deployment(workers=2))
    places = {name: fragment.places for name, fragment in fdg.fragments.items()}
    assert places == {"worlds+acts+notes": ("worlds", "acts", "notes"), "act": ("act",)}
    joined, known = (train(Named(), p, workers=2) for p in (policy, COARSE))
    jax.tree.map(np.testing.assert_array_equal, joined.state, known.state)
    assert [row.metrics for row in joined.rows] == [row.metrics for row in known.rows]
