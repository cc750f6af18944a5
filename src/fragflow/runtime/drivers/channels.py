"""How messages travel between fragments of one process: hand-over without a copy."""

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from fragflow.errors import RunError
from fragflow.runtime.drivers.traffic import Sent, size_of, together

Payload = Sequence[Any]


class Channels(Protocol):
    """What a worker sends and receives through."""

    def open(self, message: str, sender: int, receiver: int) -> Any:
        """Where one message is put, and what `get` takes it from."""
        ...

    def get(self, source: Any, what: str) -> Payload: ...


class Closed(Exception):
    """Another fragment has failed or the run is over: stop."""


class QueueChannel:
    """One (message, sender, receiver), and what was sent by it."""

    __slots__ = ("_messages", "_size", "queue")

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Payload | None] = queue.SimpleQueue()
        self._messages = self._size = 0

    def put(self, payload: Payload) -> None:
        if not self._messages:
            self._size = size_of(payload)  # all are alike, and to ask JAX takes microseconds
        self._messages += 1
        self.queue.put(payload)

    @property
    def sent(self) -> Sent:
        return Sent(messages=self._messages, bytes=self._messages * self._size)


class QueueChannels:
    """One channel for every (message, sender, receiver); every wait has a deadline."""

    def __init__(self, timeout_seconds: float):
        self.timeout_seconds = timeout_seconds
        self._channels: dict[tuple[str, int, int], QueueChannel] = {}
        self.is_closed = False

    @property
    def sent(self) -> Sent:
        return together(channel.sent for channel in self._channels.values())

    def open(self, message: str, sender: int, receiver: int) -> QueueChannel:
        """The channel of one route; made before any worker runs."""
        return self._channels.setdefault((message, sender, receiver), QueueChannel())

    def get(self, source: QueueChannel, what: str) -> Payload:
        """The next payload, or an error that names what was waited for."""
        try:
            payload = source.queue.get(timeout=self.timeout_seconds)
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
        for channel in self._channels.values():
            channel.queue.put(None)
