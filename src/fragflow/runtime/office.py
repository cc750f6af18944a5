"""Where workers post messages to an asynchronous server, and find the newest parameters."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fragflow.runtime.channels import Closed, Payload
from fragflow.runtime.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """All that a worker sends in one iteration."""

    worker: int
    iteration: int
    payloads: Mapping[str, Payload]
    """by message"""


class Office:
    """The queue between asynchronous workers and their server, shared by all threads.

    It is bounded: a worker blocks while its letters are unhandled.
    """

    def __init__(self, workers: int, bound: int, ahead: int):
        self.handled = [0] * workers
        """letters of each worker that were handled"""
        self.newest: Mapping[str, Payload] | None = None
        """what the server answered last; None before its first answer"""
        self._posted = [0] * workers
        self._ahead = ahead
        self._waiting: list[Letter] = []
        self._ledger = Ledger(bound=bound)
        self._is_closed = False
        self._change = threading.Condition()

    def begin(self, worker: int) -> Mapping[str, Payload] | None:
        """The newest parameters, when enough of the worker's letters were handled."""
        with self._change:
            self._wait_for(lambda: self._posted[worker] - self.handled[worker] <= self._ahead)
            self._ledger = self._ledger.begin(worker)
            return self.newest

    def post(self, letter: Letter) -> None:
        with self._change:
            self._posted[letter.worker] += 1
            self._waiting.append(letter)
            self._change.notify_all()

    def take(self) -> Letter:
        """The next letter for the server."""
        chosen: int | None = None

        def choose() -> bool:
            nonlocal chosen
            chosen = self._ledger.choose([letter.worker for letter in self._waiting])
            return chosen is not None

        with self._change:
            self._wait_for(choose)
            letter = next(letter for letter in self._waiting if letter.worker == chosen)
            self._waiting.remove(letter)
            return letter

    def lag(self, letter: Letter) -> int:
        """The lag, in versions, of what the server handles now and has not answered yet."""
        with self._change:
            return self._ledger.handle(letter.worker)[1]

    def answer(self, letter: Letter, answer: Mapping[str, Payload]) -> None:
        """Publishes the server's new parameters."""
        with self._change:
            self._ledger, _ = self._ledger.handle(letter.worker)
            self.newest = answer
            self.handled[letter.worker] += 1
            self._change.notify_all()

    def have_handled(self, count: int, timeout_seconds: float) -> bool:
        """Whether `count` letters of every worker were handled; waits a while for it."""
        with self._change:
            self._change.wait_for(
                lambda: self._is_closed or min(self.handled) >= count, timeout=timeout_seconds
            )
            return min(self.handled) >= count

    def close(self) -> None:
        """Wakes everyone who waits."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._change.wait_for(lambda: self._is_closed or condition())
        if self._is_closed:
            raise Closed


class Desk:
    """The channels of one side: what has come lies on it, what is to go is collected."""

    def __init__(self) -> None:
        self._payloads: Mapping[str, Payload] = {}
        self._answers: dict[str, Payload] = {}

    def open(self, message: str, sender: int, receiver: int) -> "_Slot":
        del sender, receiver
        return _Slot(self, message)

    def get(self, source: "_Slot", what: str) -> Payload:
        del what
        return self._payloads[source.message]

    def lay(self, payloads: Mapping[str, Payload]) -> None:
        """What `get` gives from now on."""
        self._payloads, self._answers = payloads, {}

    def send(self, message: str, payload: Payload) -> None:
        self._answers[message] = payload

    def answers(self) -> Mapping[str, Payload]:
        """What was sent since."""
        return self._answers


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where one message is put or taken."""

    at: Any
    message: str

    def put(self, payload: Payload) -> None:
        self.at.send(self.message, payload)
