"""With a restriction of a rule removed, the hunt finds the hole."""

import itertools
import random
from collections.abc import Iterator
from contextlib import nullcontext

import jax
import numpy as np
import pytest

from hunt.catalogue import functions
from hunt.draw import Draw
from hunt.equations import drawn
from hunt.judge import Uncomputable, double_precision, judge, primitives_of
from hunt.mutations import restrictions, ruled, unrestricted
from hunt.program import Program

MAKERS = {
    "sort": ["jax.numpy.sort"],
    "cumsum": ["jax.numpy.cumsum"],
    "cumprod": ["jax.numpy.cumprod"],
    "cummax": ["jax.lax.cummax"],
    "reduce_prod": ["jax.numpy.prod"],
    "argmax": ["jax.numpy.argmax"],
    "rev": ["jax.numpy.flip"],
    "slice": ["hunt.forms.slice_first", "jax.lax.slice_in_dim"],
    "concatenate": ["jax.numpy.concatenate"],
    "gather": ["hunt.forms.index", "jax.numpy.take"],
    "scatter": ["hunt.forms.at"],
    "dot_general": ["jax.numpy.matmul", "hunt.forms.product"],
    "exp": ["jax.numpy.exp"],
    "sin": ["jax.numpy.sin"],
    "mul": ["jax.numpy.multiply"],
    "max": ["jax.numpy.maximum"],
    "select_n": ["jax.numpy.where"],
    "pad": ["jax.numpy.pad"],
    "dynamic_slice": ["jax.lax.dynamic_slice_in_dim"],
    "top_k": ["jax.lax.top_k"],
    "square": ["jax.numpy.square"],
    "abs": ["jax.numpy.abs"],
    "reduce_max": ["jax.numpy.max"],
    "tanh": ["jax.numpy.tanh"],
    "floor": ["jax.numpy.floor"],
    "sign": ["jax.numpy.sign"],
    "cos": ["jax.numpy.cos"],
    "div": ["jax.numpy.divide"],
    "reduce_sum": ["jax.numpy.sum"],
}
"""by primitive, functions that make it"""

_luck = random.Random(0)
_rules = sorted(p for p in MAKERS if restrictions(p))
CHOSEN = [(p, _luck.choice(restrictions(p))) for p in _luck.sample(_rules, 20)]
"""rules, and of each a restriction to remove"""
MOST = 10_000


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    """Thousands of small programs take more memory maps than a process may have."""
    yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("primitive", "what"), CHOSEN)
def test_a_hole_is_found(primitive, what):
    """A program about which something false is claimed, and nothing with the rule as it is."""
    assert primitive in ruled()
    with double_precision():
        for index in range(MOST):
            program = drawn(7, index, MAKERS[primitive])
            if program is None or not _is_wrong(program, index, primitive, what):
                continue
            if not _is_wrong(program, index):
                print(f"{primitive}, {what}: found after {index + 1} draws")
                return
    pytest.fail(f"{MOST} draws found nothing wrong with {primitive} of {what}")


def _is_wrong(program: Program, index: int, *removed: str) -> bool:
    with unrestricted(*removed) if removed else nullcontext():
        try:
            return judge(program, [7, index]).is_bad
        except Uncomputable:
            return False


def test_makers_make_their_primitives():
    with double_precision():
        for primitive, names in MAKERS.items():
            for name, seed in itertools.product(names, range(200)):
                draw = Draw(np.random.default_rng([seed]))
                fits = draw.attempt(name, functions()[name])
                if fits and primitive in primitives_of(draw.program()):
                    break
            else:
                pytest.fail(f"{names} do not make {primitive}")
