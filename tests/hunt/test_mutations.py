"""With a rule's restrictions removed, the hunt finds the hole."""

import itertools
import random

import pytest

from hunt.catalogue import functions
from hunt.draw import Draw
from hunt.equations import hunt
from hunt.judge import double_precision, primitives_of
from hunt.mutations import ruled, unrestricted

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
}
"""by primitive, functions that make it"""

CHOSEN = random.Random(0).sample(sorted(MAKERS), 20)
MOST = 10_000


@pytest.mark.parametrize("primitive", CHOSEN)
def test_a_hole_is_found(primitive):
    assert primitive in ruled()
    with unrestricted(primitive):
        found = hunt(7, iter(range(MOST)), last=MAKERS[primitive], most_bad=1, shrink=False)
    assert found.bad, f"{found.drawn} draws found nothing wrong with {primitive}"
    print(f"{primitive}: found after {found.drawn} draws")


def test_makers_make_their_primitives():
    import numpy as np

    with double_precision():
        for primitive, names in MAKERS.items():
            for name, seed in itertools.product(names, range(30)):
                draw = Draw(np.random.default_rng([seed]))
                if draw.attempt(name, functions()[name]) and primitive in primitives_of(
                    draw.program()
                ):
                    break
            else:
                pytest.fail(f"{names} do not make {primitive}")
