"""Runs are kept within a file only."""

from collections.abc import Iterator

import pytest

from equivalence.common import forget


@pytest.fixture(scope="module", autouse=True)
def forget_runs(forget_programs: None) -> Iterator[None]:
    yield
    forget()
