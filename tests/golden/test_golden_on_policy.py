"""The printed graphs of A2C, IMPALA and recurrent PPO: what crosses, and nothing else."""

import functools

import pytest

from fragflow.algorithms import algorithm_class
from fragflow.algorithms.ippo import IPPO
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.show import render
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from golden.test_golden_graphs import HERE, ONE_TEAM

ENVIRONMENTS = {
    "a2c": "CartPole-v1",
    "impala": "CartPole-v1",
    "recurrent-ppo": "CartPole-positions",
}


@functools.cache
def program(name: str) -> Tracer:
    return tracer(algorithm_class(name)(), make_environment(ENVIRONMENTS[name]), 16)


def printed(name: str, policy: str) -> str:
    graph = cut(program(name), POLICIES[policy], Deployment(workers=2, learners=1))
    return render(graph, "text", f"{name} on {ENVIRONMENTS[name]}")


@pytest.mark.parametrize("policy", ONE_TEAM)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_golden_graph(name: str, policy: str, update_golden: bool):
    found = printed(name, policy)
    path = HERE / f"{name}-{policy}-2.txt"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_only_the_actors_parameters_go_to_the_actors(name: str):
    text = printed(name, "single-learner-coarse")
    assert "params.actor" in text
    assert "params.critic" not in text


def test_workers_and_the_server_exchange_gradients_and_parameters_only():
    """So that an asynchronous server can answer each worker by itself."""
    text = printed("a2c", "central")
    up, down = text.split("\nmessage ")[1:]
    crossing = [line.split()[-1] for line in up.splitlines()[1:] if line.startswith("  ")]
    assert all(name.startswith("learner.gradient:") for name in crossing)
    crossing = [line.split()[-1] for line in down.splitlines()[1:] if line.startswith("  ")]
    assert all(name.startswith("params.") for name in crossing)
    assert "2 crossings" in text


@pytest.mark.parametrize("policy", POLICIES)
def test_golden_graph_of_two_teams(policy: str, update_golden: bool):
    source = tracer(IPPO(rollout_length=16), make_environment("Tag", agents=10), 16)
    learners = 2 if policy == "agents" else 1
    graph = cut(source, POLICIES[policy], Deployment(workers=2, learners=learners))
    found = render(graph, "text", "ippo on Tag")
    path = HERE / f"ippo-{policy}-2.txt"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found
