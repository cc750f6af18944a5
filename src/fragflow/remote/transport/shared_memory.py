"""Shared memory for large messages between two processes of one host: a few slots, used in turn."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fragflow.errors import RunError

SLOTS = 3
"""one being read, one waiting, one being written"""
_ALIGNMENT = 64
_MIN_PAUSE, _MAX_PAUSE = 20e-6, 1e-3


class SharedSlots:
    """Slots in a file that both processes map. Its first word counts the messages taken."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int):
        self._memory = memory
        self._slot_bytes = slot_bytes
        self._done = np.frombuffer(memory, np.uint64, 1)

    @classmethod
    def create(cls, path: Path, message_bytes: int, first: int = 0) -> "SharedSlots":
        """Creates a file, which must not exist yet, for messages from number `first` on."""
        slot = -(-message_bytes // _ALIGNMENT) * _ALIGNMENT
        size = _ALIGNMENT + SLOTS * slot
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # better an error here than a signal later
            slots = cls(mmap.mmap(descriptor, size), slot)
            slots._done[0] = first  # the replacement of a lost process does not begin with 0
            return slots
        except OSError as error:
            raise RunError(f"no room for {size:,} bytes of shared memory: {error}") from error
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path) -> "SharedSlots":
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            return cls(mmap.mmap(descriptor, size), (size - _ALIGNMENT) // SLOTS)
        finally:
            os.close(descriptor)

    def write(
        self,
        number: int,
        parts: list[memoryview],
        timeout_seconds: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Puts message `number` into its slot, once the reader has taken the one in it."""
        self._await_room(number, timeout_seconds, meanwhile)
        position = self._position(number)
        for part in parts:
            self._memory[position : position + part.nbytes] = part
            position += part.nbytes

    def read(self, number: int, sizes: list[int]) -> list[np.ndarray]:
        """Copies message `number` out, so that its slot is free again."""
        position = self._position(number)
        if sum(sizes) > self._slot_bytes:
            raise RunError(f"a message of {sum(sizes):,} bytes is larger than its shared memory")
        arrays = []
        for size in sizes:
            arrays.append(np.frombuffer(self._memory, np.uint8, size, position).copy())
            position += size
        self._done[0] = number + 1
        return arrays

    def _position(self, number: int) -> int:
        return _ALIGNMENT + number % SLOTS * self._slot_bytes

    def _await_room(
        self, number: int, timeout_seconds: float, meanwhile: Callable[[], None]
    ) -> None:
        deadline, pause = time.monotonic() + timeout_seconds, _MIN_PAUSE
        while number - int(self._done[0]) >= SLOTS:
            if time.monotonic() > deadline:
                raise RunError(
                    f"nobody has taken {SLOTS} messages within {timeout_seconds:.0f} seconds: "
                    "their receiver is stuck"
                )
            meanwhile()
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
