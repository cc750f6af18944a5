"""Signals to worker processes in the middle of a run."""

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fragflow.run import Silent


def children(part: str = "") -> list[int]:
    """Worker processes of this one whose names have this part."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        is_ours = b"fragflow.remote.worker.main" in words and parent == os.getpid()
        if is_ours and part.encode() in words:
            found.append(int(entry.name))
    return found


class KillingAll(Silent):
    """Kills all processes of some names at once, after some iterations."""

    def __init__(self, part: str, at: int):
        self._part = part
        self._at = at
        self._is_done = False

    def rows(self, rows: Any) -> None:
        if rows[-1].iteration >= self._at and not self._is_done:
            self._is_done = True
            for process in children(self._part):
                os.kill(process, signal.SIGKILL)


class Signalling(Silent):
    """Sends a signal to a process after some iterations, at a random moment."""

    def __init__(self, part: str, number: int, at: Sequence[int] = (3,), then: str = ""):
        """`then`, to another one, as soon as it is there."""
        self._parts = [part, then] if then else [part]
        self._number = number
        self._at = list(at)

    def started(self, start: Any) -> None:
        del start
        (self._directory,) = Path("/dev/shm").glob(f"fragflow-{os.getpid()}-*")

    def rows(self, rows: Any) -> None:
        if self._at and rows[-1].iteration >= self._at[0]:
            self._at.pop(0)
            timer = threading.Timer(random.uniform(0.0, 0.05), self._signal)
            timer.daemon = True
            timer.start()

    def _signal(self) -> None:
        for part in self._parts:
            while not (found := children(part)) and self._directory.exists():
                time.sleep(0.01)  # it is being replaced
            if found:
                os.kill(found[0], self._number)
