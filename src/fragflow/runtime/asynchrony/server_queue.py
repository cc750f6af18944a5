"""The queue between an asynchronous run's workers and their server."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fragflow.runtime.asynchrony.ledger import Ledger
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.protocols import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """All that a worker sends in one iteration."""

    worker: int
    iteration: int
    payloads: Mapping[str, Payload]
    """by message"""


class ServerQueue:
    """The queue between asynchronous workers and their server, shared by all threads.

    It is bounded: a worker blocks while more than `ahead` of its submissions are unhandled.
    """

    def __init__(self, workers: int, bound: int, ahead: int):
        self.handled = [0] * workers
        """submissions of each worker that were handled"""
        self.newest: Mapping[str, Payload] | None = None
        """the server's last answer; None before its first"""
        self._submitted = [0] * workers
        self._ahead = ahead
        self._waiting: list[Submission] = []
        self._ledger = Ledger(bound=bound)
        self._is_closed = False
        self._change = threading.Condition()

    def begin(self, worker: int) -> Mapping[str, Payload] | None:
        """Waits until enough of the worker's submissions are handled; returns the last answer."""
        with self._change:
            self._wait_for(lambda: self._submitted[worker] - self.handled[worker] <= self._ahead)
            self._ledger = self._ledger.begin(worker)
            return self.newest

    def submit(self, submission: Submission) -> None:
        with self._change:
            self._submitted[submission.worker] += 1
            self._waiting.append(submission)
            self._change.notify_all()

    def take(self) -> Submission:
        """Waits for the next submission that the server may handle."""
        chosen: int | None = None

        def choose() -> bool:
            nonlocal chosen
            chosen = self._ledger.choose([submission.worker for submission in self._waiting])
            return chosen is not None

        with self._change:
            self._wait_for(choose)
            submission = next(
                submission for submission in self._waiting if submission.worker == chosen
            )
            self._waiting.remove(submission)
            return submission

    def lag(self, submission: Submission) -> int:
        """The lag, in versions, of the submission that the server handles and has not answered."""
        with self._change:
            return self._ledger.handle(submission.worker)[1]

    def answer(self, submission: Submission, answer: Mapping[str, Payload]) -> None:
        """Publishes the server's new parameters."""
        with self._change:
            self._ledger, _ = self._ledger.handle(submission.worker)
            self.newest = answer
            self.handled[submission.worker] += 1
            self._change.notify_all()

    def have_handled(self, count: int, timeout_seconds: float) -> bool:
        """True if `count` submissions of every worker were handled; waits a while for it."""
        with self._change:
            self._change.wait_for(
                lambda: self._is_closed or min(self.handled) >= count, timeout=timeout_seconds
            )
            return min(self.handled) >= count

    def close(self) -> None:
        """Wakes all threads that wait."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._change.wait_for(lambda: self._is_closed or condition())
        if self._is_closed:
            raise Closed
