"""One asynchronous worker: takes the newest parameters, and hands in what it has made with them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fragflow.graph.ir import FDG, Transfer
from fragflow.runtime.channels import Payload
from fragflow.runtime.crew import Crew
from fragflow.runtime.office import Desk
from fragflow.runtime.sent import Sent, together
from fragflow.runtime.worker import Metrics


class Hand:
    """A crew whose messages to and from the server go over a desk."""

    def __init__(self, fdg: FDG, crew: Crew, desk: Desk):
        self.crew = crew
        self._desk = desk
        self._exchanged = Sent()
        """with the server"""
        self._down: Sequence[Transfer] = [t for t in fdg.transfers if t.source == fdg.server]

    @property
    def sent(self) -> Sent:
        return together([self._exchanged, self.crew.sent])

    @property
    def workers(self) -> Mapping[str, Any]:
        return self.crew.workers

    def error(self, cause: BaseException) -> Any:
        return self.crew.error(cause)

    def work(
        self, index: int, answers: Mapping[str, Payload] | None
    ) -> tuple[Mapping[str, Metrics], Mapping[str, Payload]]:
        """One iteration, with the server's last answers; its metrics, and what it hands in."""
        held: dict[str, Payload] = {}
        for transfer in self._down:
            worker = self.crew.workers[transfer.target]
            mirrors = {c.next: c.inside for c in worker.part.fragment.loop.carries}
            names = [mirrors[parcel.value] for parcel in transfer.parcels]
            if answers is not None:
                self._exchanged.add(answers[transfer.name])
                for name, array in zip(names, answers[transfer.name], strict=True):
                    worker.adopt(name, array)
            held[transfer.name] = [worker.values[name] for name in names]
        self._desk.lay(held)
        metrics = self.crew.run(index, 1)
        for payload in self._desk.answers().values():
            self._exchanged.add(payload)
        return {worker.name: found for worker, found in metrics.items()}, self._desk.answers()
