"""Channels between fragments of one process: messages are passed on without a copy."""

import queue

from fragflow.errors import RunError
from fragflow.runtime.protocols import Payload
from fragflow.runtime.traffic import Sent, size_of, together


class Closed(Exception):
    """Raised to stop a fragment when another one has failed, or the run is over."""


class QueueChannel:
    """The queue of one (message, sender, receiver), and its traffic."""

    __slots__ = ("_messages", "_size", "_timeout_seconds", "queue")

    def __init__(self, timeout_seconds: float) -> None:
        self.queue: queue.SimpleQueue[Payload | None] = queue.SimpleQueue()
        self._timeout_seconds = timeout_seconds
        self._messages = self._size = 0

    def put(self, payload: Payload) -> None:
        if not self._messages:
            self._size = size_of(payload)  # the same for all; asking JAX takes microseconds
        self._messages += 1
        self.queue.put(payload)

    def get(self, what: str) -> Payload:
        """Waits for the next payload; an error names it by `what`."""
        try:
            payload = self.queue.get(timeout=self._timeout_seconds)
        except queue.Empty:
            raise RunError(
                f"{what} did not come within {self._timeout_seconds:.0f} seconds: "
                "its sender is stuck"
            ) from None
        if payload is None:
            raise Closed
        return payload

    @property
    def sent(self) -> Sent:
        return Sent(messages=self._messages, bytes=self._messages * self._size)


class QueueChannels:
    """One channel for every (message, sender, receiver); every wait has a deadline."""

    def __init__(self, timeout_seconds: float):
        self.timeout_seconds = timeout_seconds
        self._channels: dict[tuple[str, int, int], QueueChannel] = {}

    @property
    def sent(self) -> Sent:
        return together(channel.sent for channel in self._channels.values())

    def open(self, message: str, sender: int, receiver: int) -> QueueChannel:
        """The channel of one route; made before any worker runs."""
        return self._channels.setdefault(
            (message, sender, receiver), QueueChannel(self.timeout_seconds)
        )

    def close(self) -> None:
        """Wakes all threads that wait."""
        for channel in self._channels.values():
            channel.queue.put(None)
