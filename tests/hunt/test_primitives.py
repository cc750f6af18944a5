"""Every primitive of JAX is drawn, or a line says why it is not."""

import numpy as np
import pytest

from hunt.catalogue import functions
from hunt.draw import Draw
from hunt.judge import double_precision, primitives_of
from hunt.primitives import DRAWN_BY_SOME, MAKERS_OF_THE_RARE, NOT_DRAWN, all_primitives

TRIES = (6, 30)
"""draws of each function's arguments, some of which it does not take; more if that is too few"""


@pytest.fixture(scope="module")
def drawn() -> set[str]:
    """The primitives that the generator's functions make, until none is missing."""
    found: set[str] = set()
    wanted = all_primitives() - NOT_DRAWN.keys()
    with double_precision():
        for tries in TRIES:
            first = MAKERS_OF_THE_RARE if tries > TRIES[0] else ()
            order = sorted(functions(), key=lambda name: (name not in first, _rank(name)))
            for name in order:
                arguments = functions()[name]
                if wanted <= found:
                    return found
                for seed in range(tries):
                    draw = Draw(np.random.default_rng([len(name), seed]))
                    if draw.attempt(name, arguments):
                        found |= primitives_of(draw.program())
                        if _rank(name)[0] > 1:  # the first ones choose among primitives
                            break
    return found


def _rank(name: str) -> tuple[int, str]:
    """Functions that are primitives come first: most of what there is to find is theirs."""
    module = name.rpartition(".")[0]
    order = ("jax.lax", "hunt.forms", "jax.lax.linalg", "jax.random", "jax.numpy")
    return (order.index(module) if module in order else len(order)), name


@pytest.mark.timeout(3600)
def test_every_primitive_has_a_case_or_a_reason(drawn):
    missing = all_primitives() - drawn - NOT_DRAWN.keys()
    assert not missing, f"neither drawn nor with a reason in hunt/primitives.py: {sorted(missing)}"


@pytest.mark.timeout(3600)
def test_reasons_are_of_what_is_not_drawn(drawn):
    both = drawn & NOT_DRAWN.keys() - DRAWN_BY_SOME
    assert not both, f"drawn, though hunt/primitives.py says why not: {sorted(both)}"
