"""A minute of the hunt for false claims; the long one is `make prove`."""

import itertools
import re

import jax
import numpy as np
import pytest

from fragflow.graph.replicas.kinds import UNIFORM, partial, varying
from hunt.equations import command, drawn, hunt, replay, report
from hunt.judge import double_precision, judge
from hunt.lockstep import Lockstep
from hunt.program import Program, Ref, Step
from hunt.relations import Operand, Sizes, broken, holding, size_of, values

SECONDS = 60
"""of this process' time: a busy machine draws as many"""
FLOOR = 300
"""draws that a minute must be enough for, on a slow machine"""
SEED = 1


@pytest.mark.timeout(1800)
def test_no_claim_is_false():
    found = hunt(SEED, itertools.count(), seconds=SECONDS)
    print(report(found, SECONDS))
    assert found.drawn >= FLOOR
    assert found.claims >= FLOOR // 2
    first = next(iter(found.bad.items()), None)
    assert first is None, (
        f"{len(found.bad)} false claims, the first:\n{command(first[0])}\n{first[1]}"
    )


def test_draws_repeat():
    with double_precision():
        assert [str(drawn(3, i)) for i in range(5)] == [str(drawn(3, i)) for i in range(5)]


SIZES = Sizes(3, 2)
KINDS = [
    UNIFORM,
    varying(0),
    varying(1, outer=2, inner=1),
    varying(0, degree=-1),
    partial("", degree=1),
    partial("", degree=0),
    partial("", degree=0, reduction="max"),
]


def test_what_cancels_out_leaves_the_rounding_of_what_it_was_made_from():
    large = np.array([20.0, -30.0, np.inf], np.float32)
    assert size_of([large, np.arange(99)]) == 30.0
    assert size_of([np.float32(0.5)]) == 1.0
    residue = np.array([3e-6, -2e-6])
    assert broken(UNIFORM, residue, [0 * residue] * 2, SIZES, 1e-4)
    assert not broken(UNIFORM, residue, [0 * residue] * 2, SIZES, 1e-4, size=30.0)
    assert broken(UNIFORM, residue + 1e-3, [residue] * 2, SIZES, 1e-4, size=30.0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_operands_have_the_relation_of_their_kind_and_no_other(kind):
    operand = Operand(kind, (6, 6))
    rng = np.random.default_rng(0)
    if kind.tag.value == "varying":
        operand = Operand(kind, (3, 6) if kind.axis == 0 else (4, 6))
    whole, parts = values(operand, SIZES, rng)
    assert not broken(kind, whole, parts, SIZES, 1e-9)
    same = [k for k in KINDS if kind == UNIFORM and k.degree == 0 and k.axis < 0]
    others = [k for k in KINDS if k != kind and k not in same]  # equal parts are their own mean
    assert all(broken(k, whole, parts, SIZES, 1e-9) for k in others)
    assert holding(whole + rng.normal(size=whole.shape), parts, SIZES, 1e-9) == ""


@pytest.mark.timeout(1800)
def test_numpy_computes_what_jax_does():
    compared = 0
    with double_precision():
        for index in range(30):
            program = drawn(5, index)
            if program is None:
                continue
            compared += _is_as_jax(program, index)
    assert compared > 15


def _is_as_jax(program: Program, index: int) -> bool:
    rng = np.random.default_rng(index)
    args = [jax.numpy.asarray(values(o, program.sizes, rng)[0]) for o in program.operands]
    closed = jax.make_jaxpr(lambda *a: program.run(a, program.sizes.whole))(*args)
    if any(e.primitive.name == "all_reduce" for e in closed.jaxpr.eqns):
        return False
    ours, theirs = Lockstep().run(closed, [args])[0], program.run(args, program.sizes.whole)
    is_narrow = re.search(r"\b(f32|f16|bf16|c64)\[", str(closed)) is not None
    tolerance = 1e-3 if is_narrow else 1e-9  # a number that was narrow once stays rounded
    for a, b in zip(ours, theirs, strict=True):
        assert not broken(UNIFORM, a, [b], Sizes(1, 1), tolerance), str(program)
    return True


def test_a_false_claim_is_found_and_made_small(monkeypatch):
    """An analysis that says 'uniform' of everything."""
    monkeypatch.setattr("hunt.judge.analyse", lambda a, *_: [UNIFORM] * len(a.jaxpr.outvars))
    found = hunt(SEED, itertools.count(), most_bad=3)
    assert len(found.bad) == 3
    for number, text in found.bad.items():
        assert text.count(" = ") <= 3, text  # the sizes, and one call
        seed, index = map(int, number.split(":"))
        assert "claimed" in replay(seed, index)


def test_a_right_claim_stands():
    sizes = Sizes(3, 2)
    program = Program(
        sizes, (Operand(varying(0), (3, 4)),), (Step("jax.numpy.sin", (Ref(0),)),), (1,)
    )
    with double_precision():
        verdict = judge(program, [0])
    assert not verdict.is_bad
    assert verdict.tried == 1
