"""Workers in processes run what was planned for them, with few optimisations too."""

import pytest

from equivalence.common import digest
from fragflow.graph.optimisations import all_but
from graph.toy import Toy
from remote.training import in_threads, train

FINE = "single-learner-fine"


@pytest.mark.quick
def test_without_any_the_bits_are_those_of_an_optimised_run_in_threads() -> None:
    found = train(Toy(), FINE, workers=1, optimisations=all_but(["all"]))
    expected = in_threads(Toy(), FINE, workers=1)
    assert digest(found.state) == digest(expected.state)
    assert [row.metrics for row in found.rows] == [row.metrics for row in expected.rows]
    # Messages were not joined either.
    assert found.messages > expected.messages
