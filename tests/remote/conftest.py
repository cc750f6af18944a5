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
    deadline = time.monotonic() + 5
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "worker processes are left"
    assert not list(Path("/dev/shm").glob(f"fragflow-{os.getpid()}-*"))
