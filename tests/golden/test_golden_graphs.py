"""The printed graph of PPO under every policy: a refactoring shows no difference here."""

from pathlib import Path

import pytest

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.show import FORMATS, Format, render
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment

HERE = Path(__file__).parent
ONE_TEAM = [name for name in POLICIES if name not in ("learner-per-team", "agents")]
"""the others are `single-learner-coarse` to them"""
SUFFIX = {"text": "txt", "mermaid": "mmd", "json": "json"}


@pytest.fixture(scope="module")
def ppo() -> Tracer:
    return tracer(PPO(), make_environment("CartPole-v1"), 16)


CASES = [("text", 1), *((format, 2) for format in FORMATS)]


@pytest.mark.parametrize(("format", "workers"), CASES)
@pytest.mark.parametrize("policy", ONE_TEAM)
def test_golden_graph(ppo: Tracer, policy: str, workers: int, format: Format, update_golden: bool):
    graph = cut(ppo, POLICIES[policy], Deployment(workers=workers, learners=1))
    found = render(graph, format, "ppo on CartPole-v1")
    path = HERE / f"ppo-{policy}-{workers}.{SUFFIX[format]}"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found


@pytest.mark.parametrize("policy", ["single-learner-coarse"])
def test_only_the_actors_parameters_go_to_the_actors(ppo: Tracer, policy: str):
    graph = cut(ppo, POLICIES[policy], Deployment(workers=2))
    text = render(graph, "text")
    assert "params.actor" in text
    assert "params.critic" not in text
