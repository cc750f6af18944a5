"""The driver of an asynchronous worker: its messages to and from the server go through slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fragflow.errors import EnvironmentFault, FragflowError
from fragflow.graph.ir import FDG, Transfer
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.protocols import Made, Payload
from fragflow.runtime.traffic import Sent, together


class SlotChannels:
    """The channels of one side: a slot for each message that it receives or sends."""

    def __init__(self) -> None:
        self._payloads: Mapping[str, Payload] = {}
        self._answers: dict[str, Payload] = {}

    def open(self, message: str, sender: int, receiver: int) -> "_Slot":
        del sender, receiver
        return _Slot(self, message)

    def lay(self, payloads: Mapping[str, Payload]) -> None:
        """Sets the payloads that are received from now on; forgets what was sent."""
        self._payloads, self._answers = payloads, {}

    def taken(self, message: str) -> Payload:
        return self._payloads[message]

    def send(self, message: str, payload: Payload) -> None:
        self._answers[message] = payload

    def answers(self) -> Mapping[str, Payload]:
        """The payloads that were sent since `lay`."""
        return self._answers


@dataclass(frozen=True, slots=True)
class _Slot:
    """The slot of one message."""

    at: SlotChannels
    message: str

    def put(self, payload: Payload) -> None:
        self.at.send(self.message, payload)

    def get(self, what: str) -> Payload:
        del what
        return self.at.taken(self.message)


class AsyncDriver:
    """Runs a worker's iterations, each with the server's newest answers."""

    replacements = restarts = 0
    """a thread is not replaced"""

    def __init__(self, fdg: FDG, driver: ThreadDriver, slot_channels: SlotChannels):
        self.driver = driver
        self._slot_channels = slot_channels
        self._exchanged = Sent()
        """with the server"""
        self._down: Sequence[Transfer] = [t for t in fdg.transfers if t.source == fdg.server]

    @property
    def workers(self) -> Mapping[str, Worker]:
        return self.driver.workers

    @property
    def sent(self) -> Sent:
        return together([self._exchanged, self.driver.sent])

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        """Makes one iteration; returns metrics and a submission."""
        assert count == 1
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
        made = self.driver.run(start, 1)
        submission = self._slot_channels.answers()
        for payload in submission.values():
            self._exchanged.add(payload)
        return Made(metrics=made.metrics, submission=submission)

    def stuck(self, seconds: float) -> EnvironmentFault | None:
        return self.driver.stuck(seconds)

    def error(self, cause: BaseException) -> FragflowError:
        return self.driver.error(cause)
