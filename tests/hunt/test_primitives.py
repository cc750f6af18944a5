"""Every primitive of JAX is drawn, or a line says why it is not."""

import numpy as np
import pytest

from hunt.catalogue import functions
from hunt.draw import Draw
from hunt.judge import double_precision, primitives_of
from hunt.primitives import NOT_DRAWN, all_primitives

TRIES = 12
"""draws of each function's arguments, some of which it does not take"""


@pytest.fixture(scope="module")
def drawn() -> set[str]:
    """The primitives that the generator's functions make."""
    found: set[str] = set()
    with double_precision():
        for position, (name, arguments) in enumerate(sorted(functions().items())):
            for seed in range(TRIES):
                draw = Draw(np.random.default_rng([position, seed]))
                if draw.attempt(name, arguments):
                    new = primitives_of(draw.program())
                    is_known = new <= found
                    found |= new
                    if is_known and seed > 2:
                        break
    return found


@pytest.mark.timeout(1200)
def test_every_primitive_has_a_case_or_a_reason(drawn):
    missing = all_primitives() - drawn - NOT_DRAWN.keys()
    assert not missing, f"neither drawn nor with a reason in hunt/primitives.py: {sorted(missing)}"


@pytest.mark.timeout(1200)
def test_reasons_are_of_what_is_not_drawn(drawn):
    both = drawn & NOT_DRAWN.keys()
    assert not both, f"drawn, though hunt/primitives.py says why not: {sorted(both)}"
