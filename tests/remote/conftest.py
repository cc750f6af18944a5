"""Every test of processes leaves nothing behind."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.ray_nodes import nodes, wide_nodes
from remote.signals import children

__all__ = ["nodes", "wide_nodes"]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process, no directory, also after faults."""
    yield
    deadline = time.monotonic() + 10
    while left := [*children(), *Path("/dev/shm").glob(f"fragflow-{os.getpid()}-*")]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)
