"""A hundred drawn programs; two thousand are part of `make prove`."""

from dataclasses import replace

import numpy as np
import pytest

from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES
from fragflow.run import Experiment, run
from graph.toy import Drift
from hunt.program import Program, Ref, Step
from hunt.programs import Case, Drawn, hunt, judge, operands, play, report
from hunt.relations import Sizes

PROGRAMS, SECONDS = 100, 240
FLOOR = 30
"""programs that the time must be enough for, on a slow machine"""
SIZES = Sizes(3, 2)


@pytest.mark.timeout(1800)
def test_no_cut_is_wrong():
    found = hunt(1, iter(range(PROGRAMS)), seconds=SECONDS)
    print(report(found))
    assert found.drawn >= FLOOR
    assert found.outcomes["played"] >= FLOOR // 10
    assert not found.wrong, report(found)


def case(function: str, *args: object, closing: str = "all_mean", place: str = "glue") -> Case:
    program = Program(SIZES, tuple(operands(SIZES.local)), (Step(function, args),), (1,))
    return Case(Drawn(program, place, closing), "gpu-only", SIZES)


@pytest.mark.parametrize("place", ["glue", "component", "scan", "branch"])
def test_a_right_program_is_accepted_and_plays_alike(place):
    assert judge(case("jax.numpy.sin", Ref(0), place=place), [0]).outcome == "played"


def test_what_is_refused_would_play_differently():
    """The player tells right from wrong without the analysis."""
    wrong = case("jax.numpy.sort", Ref(0), 0, closing="rows")
    source = tracer(wrong.algorithm, Drift(), SIZES.whole)
    assert play(source, SIZES, np.random.default_rng(0))
    right = case("jax.numpy.sort", Ref(0), 1, closing="rows")
    source = tracer(right.algorithm, Drift(), SIZES.whole)
    assert not play(source, SIZES, np.random.default_rng(0))


@pytest.mark.parametrize("policy", ["gpu-only", "single-learner-coarse"])
def test_an_accepted_program_runs_alike(policy):
    accepted = replace(case("jax.numpy.tanh", Ref(0)), policy=policy)
    assert judge(accepted, [0]).outcome in ("played", "accepted")
    experiment = Experiment(
        algorithm=accepted.algorithm,
        environment=Drift(),
        num_envs=SIZES.whole,
        total_steps=4 * SIZES.whole,
    )
    one, two = (
        run(experiment, POLICIES[policy], workers=workers).state.params for workers in (1, 2)
    )
    np.testing.assert_allclose(one, two, rtol=1e-5)
