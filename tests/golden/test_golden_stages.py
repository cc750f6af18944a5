"""A small loop after every stage: a change of a pass shows where it was made, under every JAX."""

import re
from pathlib import Path

import pytest

from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from fragflow.runtime.planning.print_plan import STAGE_NAMES, text_after
from graph.toy import Drift, Toy

HERE = Path(__file__).parent / "stages"
POLICY = "single-learner-fine"


@pytest.fixture(scope="module")
def toy() -> Tracer:
    return tracer(Toy(), Drift(), 8)


def printed(source: Tracer, stage: str) -> str:
    return text_after(stage, source, POLICIES[POLICY], Deployment(workers=2))


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_golden_stage(toy: Tracer, stage: str, update_golden: bool):
    found = printed(toy, stage)
    path = HERE / f"toy-{POLICY}-{stage}.txt"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_lines_are_short_and_hold_no_addresses(toy: Tracer, stage: str):
    text = printed(toy, stage)
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"0x[0-9a-f]{6}", text)
