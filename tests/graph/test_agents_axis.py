"""Fragments replicated over agents: what crosses, what is learnt, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops
from fragflow.errors import PolicyError, ReplicaError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.show import render
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment, Place, Policy
from fragflow.run import Experiment, run
from graph.crowd import Apart, Crowd, Served, Shared
from graph.toy import Drift, Toy

TWO_TEAMS = Crowd(teams=(4, 8))


def build(
    algorithm, environment: Any = TWO_TEAMS, workers=2, learners=2, policy=POLICIES["agents"]
):
    deployment = Deployment(workers=workers, learners=learners)
    return cut(tracer(algorithm, environment, 4), policy, deployment)


def collectives(graph: FDG, source: str) -> set[str]:
    return {p.collective for t in graph.transfers if t.source == source for p in t.parcels}


@pytest.mark.parametrize(
    ("workers", "learners", "up", "down"),
    [
        (2, 2, {"exchange"}, {"broadcast"}),
        (1, 2, {"scatter"}, {"pick"}),
        (2, 1, {"gather"}, {"broadcast"}),
        (4, 2, {"exchange"}, {"broadcast"}),
    ],
)
def test_what_crosses_between_environments_and_agents(workers, learners, up, down):
    graph = build(Shared(), workers=workers, learners=learners)
    assert collectives(graph, "environment+actor") == up
    assert collectives(graph, "learner") == down


def test_both_axes_are_shown():
    text = render(build(Shared()), "text")
    assert "a part in 2 of their agents each" in text
    assert "4 envs, 8 agents" in text


def test_parameters_of_each_agent_stay_with_their_learner():
    graph = build(Apart(), Crowd(), learners=4)
    learner = graph.fragments["learner"]
    assert not learner.group
    assert graph.program.avals[learner.extent]["state:params"].shape == (2, 2)
    # Every worker acts for all agents, so it gets what all learners have.
    assert collectives(graph, "learner") == {"gather"}


def train(algorithm, environment, policy: Policy, workers=1, learners=1, **settings):
    experiment = Experiment(
        algorithm=algorithm, environment=environment, num_envs=4, total_steps=3 * 16
    )
    return run(experiment, policy, workers=workers, learners=learners, **settings).state.params


@pytest.mark.parametrize(("workers", "learners"), [(1, 2), (2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [(Shared(), Crowd()), (Shared(), TWO_TEAMS), (Apart(), Crowd())],
    ids=["one team", "two teams", "each agent"],
)
def test_dividing_agents_does_not_change_learning(algorithm, environment, workers, learners):
    whole = train(algorithm, environment, POLICIES["gpu-only"])
    divided = train(algorithm, environment, POLICIES["agents"], workers, learners)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(divided), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)


def test_in_processes_it_is_the_same():
    threads = train(Apart(), Crowd(), POLICIES["agents"], 2, 2)
    processes = train(Apart(), Crowd(), POLICIES["agents"], 2, 2, runtime="processes")
    np.testing.assert_array_equal(threads, processes)


def test_statistics_of_some_agents():
    with pytest.raises(ReplicaError, match="one replica's agents only") as error:
        build(Shared(centre=lambda x: x - x.mean()))
    assert "test_agents_axis.py" in str(error.value)


def test_gradients_of_some_agents():
    with pytest.raises(ReplicaError, match="all_mean"):
        build(Shared(reduce=lambda grads: grads))


def test_agents_that_are_compared_with_one_another():
    def in_order(x):
        return jnp.sort(x, axis=2)

    with pytest.raises(ReplicaError, match="sorts along the agents' axis"):
        build(Shared(centre=in_order))


def test_noise_from_a_shared_key():
    def noisy(x):
        return x + jax.random.normal(jax.random.key(0), x.shape[2:])

    with pytest.raises(ReplicaError, match="draw them where all agents are"):
        build(Shared(centre=noisy))


def test_a_part_of_a_team():
    def without_the_first(tree, team):
        return ops.members(tree, slice(team.start + 1, team.stop), 2)

    with pytest.raises((ReplicaError, TraceError)):
        build(Shared(select=without_the_first))


def test_a_loop_over_agents():
    def one_by_one(x):
        return sum(x[:, :, k : k + 1] for k in range(x.shape[2])) + x

    with pytest.raises(ReplicaError, match="how many agents are here"):
        build(Shared(centre=one_by_one))


def test_numbers_that_do_not_divide():
    with pytest.raises(PolicyError, match="teams of 4 and 8 cannot be divided among 3: use 2"):
        build(Shared(), learners=3)


def test_one_agent():
    with pytest.raises(PolicyError, match="this environment has a single agent"):
        build(Toy(), Drift())


def test_a_world_cannot_be_divided_by_agents():
    parts = Place(
        name="all",
        components=("environment", "actor", "learner"),
        replicas="learners",
        over="agents",
    )
    policy = Policy(name="own", places=(parts,))
    with pytest.raises(PolicyError, match="share one world"):
        build(Shared(), policy=policy)


def test_what_some_agents_give_is_reduced_on_its_way():
    policy = Policy(
        name="own",
        places=(
            Place(name="worker", components=("environment", "actor"), replicas="workers"),
            Place(
                name="gradient",
                components=("learner.gradient",),
                replicas="learners",
                over="agents",
            ),
            Place(name="server", components=("learner.update",)),
        ),
    )
    graph = build(Served(), policy=policy)
    assert collectives(graph, "worker") == {"exchange"}
    assert collectives(graph, "gradient") == {"reduce-mean"}
    whole = train(Served(), TWO_TEAMS, POLICIES["gpu-only"])
    divided = train(Served(), TWO_TEAMS, policy, 2, 2)
    for a, b in zip(whole, divided, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)
