"""How messages travel between fragments of one process: hand-over without a copy."""

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from fragflow.errors import RunError

Payload = Sequence[Any]


class Lanes(Protocol):
    """What a worker sends and receives through."""

    def open(self, message: str, sender: int, receiver: int) -> Any:
        """Where one message is put, and what `get` takes it from."""
        ...

    def get(self, source: Any, what: str) -> Payload: ...


class Closed(Exception):
    """Another fragment has failed or the run is over: stop."""


class Channels:
    """One queue for every (message, sender, receiver); every wait has a deadline."""

    def __init__(self, timeout_seconds: float):
        self.timeout_seconds = timeout_seconds
        self._queues: dict[tuple[str, int, int], queue.SimpleQueue[Payload | None]] = {}
        self.is_closed = False

    def open(self, message: str, sender: int, receiver: int) -> "queue.SimpleQueue[Payload | None]":
        """The queue of one route; made before any worker runs."""
        return self._queues.setdefault((message, sender, receiver), queue.SimpleQueue())

    def get(self, source: "queue.SimpleQueue[Payload | None]", what: str) -> Payload:
        """The next payload, or an error that names what was waited for."""
        try:
            payload = source.get(timeout=self.timeout_seconds)
        except queue.Empty:
            raise RunError(
                f"{what} did not come within {self.timeout_seconds:.0f} seconds: "
                "its sender is stuck"
            ) from None
        if payload is None:
            raise Closed
        return payload

    def close(self) -> None:
        """Wakes everyone who waits."""
        self.is_closed = True
        for source in self._queues.values():
            source.put(None)
