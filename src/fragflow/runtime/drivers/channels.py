"""Channels between fragments of one process: messages are passed on without a copy."""

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from fragflow.errors import RunError
from fragflow.runtime.drivers.traffic import Sent, size_of, together

Payload = Sequence[Any]


class Channels(Protocol):
    """The interface that a worker sends and receives messages through."""

    def open(self, message: str, sender: int, receiver: int) -> Any:
        """Opens the channel of one route, whose `put` sends and which `get` receives from."""
        ...

    def get(self, source: Any, what: str) -> Payload: ...


class Closed(Exception):
    """Raised to stop a fragment when another one has failed, or the run is over."""


class QueueChannel:
    """The queue of one (message, sender, receiver), and its traffic."""

    __slots__ = ("_messages", "_size", "queue")

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Payload | None] = queue.SimpleQueue()
        self._messages = self._size = 0

    def put(self, payload: Payload) -> None:
        if not self._messages:
            self._size = size_of(payload)  # the same for all; asking JAX takes microseconds
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
        """Waits for the next payload; an error names it by `what`."""
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
        """Wakes all threads that wait."""
        self.is_closed = True
        for channel in self._channels.values():
            channel.queue.put(None)
