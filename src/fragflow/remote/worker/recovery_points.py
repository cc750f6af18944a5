"""Recovery points of an expendable process, from which another one can go on in its place.

After every iteration it sends the coordinator the state that nobody else has: that of its
environments. Senders keep the messages that it received. A replacement begins some points back and
makes the same messages again, so receivers drop those that they have already.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fragflow.graph.analyses.replaceable import mirrors
from fragflow.graph.ir import Transfer
from fragflow.remote.protocol.jobs import Job, RecoveryPoint
from fragflow.remote.transport.mailbox import SocketChannels
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.planning.message_pieces import incoming
from fragflow.runtime.traffic import together


class RecoveryPoints:
    """Runs the driver of an expendable process, one iteration at a time."""

    def __init__(
        self,
        job: Job,
        driver: ThreadDriver,
        channels: SocketChannels,
        tell: Callable[[str, Any], None],
    ):
        self._fdg = job.fdg
        self._driver = driver
        self._channels = channels
        self._tell = tell
        self._forgotten: Mapping[int, int] | None = None
        self._behind: list[Transfer] = []
        """messages of which the last must be taken again: it brought state, which is lost"""
        if job.resume is not None:
            self._take_over(job, job.resume)

    def run(self, start: int, count: int) -> None:
        for transfer in self._behind:
            self._take_again(transfer)
        self._behind = []
        for index in range(start, start + count):
            made = self._driver.run(index, 1)
            self._tell_point(index, made.metrics)

    def forget(self, counts: Mapping[int, int]) -> None:
        """Notes that a replacement will begin with these counts or later ones; from any thread."""
        self._forgotten = counts

    def _take_over(self, job: Job, counts: Mapping[int, int]) -> None:
        counts = dict(counts)
        for transfer in self._fdg.transfers:
            worker = self._driver.workers.get(transfer.target)
            if worker is None:
                continue
            brought = mirrors(self._fdg, worker.part.fragment)
            routes = [route.number for route in job.routes if route.key[0] == transfer.name]
            has_state = any(parcel.value in brought for parcel in transfer.parcels)
            if has_state and any(counts[number] for number in routes):
                self._behind.append(transfer)
                counts |= {number: max(0, counts[number] - 1) for number in routes}
        self._channels.resume(counts)

    def _take_again(self, transfer: Transfer) -> None:
        worker = self._driver.workers[transfer.target]
        brought = mirrors(self._fdg, worker.part.fragment)
        names = [name for pieces in incoming(self._fdg, transfer) for name in pieces]
        for name, value in zip(names, worker.receiver(transfer)(), strict=True):
            if name in brought:
                worker.values[brought[name]] = value

    def _tell_point(self, index: int, metrics: Mapping[str, Any]) -> None:
        state = {}
        for name, worker in self._driver.workers.items():
            elsewhere = set(mirrors(self._fdg, worker.part.fragment).values())
            own = {v: a for v, a in worker.state().items() if v not in elsewhere}
            state[name] = {v: np.asarray(a) for v, a in own.items()}
        counts = self._channels.counts()
        sent = together([self._channels.sent, self._driver.sent])
        recovery_point = RecoveryPoint(
            iteration=index + 1, state=state, counts=counts, metrics=metrics, sent=sent
        )
        self._tell("recovery point", recovery_point)
        forgotten, self._forgotten = self._forgotten, None
        if forgotten is not None:
            # The message before may still be wanted: it may have brought state.
            wanted = {number: max(0, count - 1) for number, count in forgotten.items()}
            self._channels.acknowledge(wanted)
