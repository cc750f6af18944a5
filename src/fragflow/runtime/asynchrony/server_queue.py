"""The queue of an asynchronous run's server, and the workers that submit to it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fragflow.graph.ir import FDG, Transfer
from fragflow.runtime.asynchrony.ledger import Ledger
from fragflow.runtime.drivers.channels import Closed, Payload
from fragflow.runtime.drivers.driver import Driver
from fragflow.runtime.drivers.traffic import Sent, together
from fragflow.runtime.drivers.worker import Metrics


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


class SlotChannels:
    """The channels of one side: a slot for each message that it receives or sends."""

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
        """Sets the payloads that `get` returns from now on; forgets what was sent."""
        self._payloads, self._answers = payloads, {}

    def send(self, message: str, payload: Payload) -> None:
        self._answers[message] = payload

    def answers(self) -> Mapping[str, Payload]:
        """The payloads that were sent since `lay`."""
        return self._answers


@dataclass(frozen=True, slots=True)
class _Slot:
    """The slot of one message."""

    at: Any
    message: str

    def put(self, payload: Payload) -> None:
        self.at.send(self.message, payload)


class AsyncWorker:
    """A driver whose messages to and from the server go through slots."""

    def __init__(self, fdg: FDG, driver: Driver, slot_channels: SlotChannels):
        self.driver = driver
        self._slot_channels = slot_channels
        self._exchanged = Sent()
        """with the server"""
        self._down: Sequence[Transfer] = [t for t in fdg.transfers if t.source == fdg.server]

    @property
    def sent(self) -> Sent:
        return together([self._exchanged, self.driver.sent])

    @property
    def workers(self) -> Mapping[str, Any]:
        return self.driver.workers

    def error(self, cause: BaseException) -> Any:
        return self.driver.error(cause)

    def work(
        self, index: int, answers: Mapping[str, Payload] | None
    ) -> tuple[Mapping[str, Metrics], Mapping[str, Payload]]:
        """Makes an iteration with the server's last answers; returns metrics and a submission."""
        held: dict[str, Payload] = {}
        for transfer in self._down:
            worker = self.driver.workers[transfer.target]
            mirrors = {c.next: c.inside for c in worker.part.fragment.loop.carries}
            names = [mirrors[parcel.value] for parcel in transfer.parcels]
            if answers is not None:
                self._exchanged.add(answers[transfer.name])
                for name, array in zip(names, answers[transfer.name], strict=True):
                    worker.adopt(name, array)
            held[transfer.name] = [worker.values[name] for name in names]
        self._slot_channels.lay(held)
        metrics = self.driver.run(index, 1)
        for payload in self._slot_channels.answers().values():
            self._exchanged.add(payload)
        return {
            worker.name: found for worker, found in metrics.items()
        }, self._slot_channels.answers()
