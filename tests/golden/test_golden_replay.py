"""The printed graphs of the algorithms with replay buffers."""

import functools

import pytest

from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.sac import SAC
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.show import render
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from golden.test_golden_graphs import HERE, ONE_TEAM

CASES = {
    "dqn": (DQN(), "CartPole-v1"),
    "dqn-prioritised": (DQN(prioritised=True), "CartPole-v1"),
    "sac": (SAC(), "Pendulum-v1"),
}


@functools.cache
def program(case: str) -> Tracer:
    algorithm, env = CASES[case]
    return tracer(algorithm, make_environment(env), 16)


@pytest.mark.parametrize("policy", ONE_TEAM)
@pytest.mark.parametrize("case", CASES)
def test_golden_graph(case: str, policy: str, update_golden: bool):
    graph = cut(program(case), POLICIES[policy], Deployment(workers=2, learners=1))
    found = render(graph, "text", f"{case} on {CASES[case][1]}")
    path = HERE / f"{case}-{policy}-2.txt"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found


def test_only_the_actors_parameters_go_to_the_actors():
    graph = cut(program("sac"), POLICIES["single-learner-coarse"], Deployment(workers=2))
    text = render(graph, "text")
    assert "params.actor" in text
    assert "params.critic" not in text
    assert "target" not in text


@pytest.mark.parametrize("case", CASES)
def test_only_steps_go_to_the_buffer(case: str):
    """What the buffer holds never travels, and batches stay where it is."""
    graph = cut(program(case), POLICIES["single-learner-coarse"], Deployment(workers=2))
    crossing = [
        message for message in render(graph, "text").split("\n\n") if message.startswith("message")
    ]
    assert len(crossing) == 2
    assert not any("buffer" in message for message in crossing)
