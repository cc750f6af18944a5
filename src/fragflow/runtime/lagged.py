"""The runtime of late messages: fragments run ahead of one another."""

from collections.abc import Sequence

import numpy as np

from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.runtime.drivers.threads import GRACE_SECONDS, Streams
from fragflow.runtime.failure import FirstFailure
from fragflow.runtime.gather import appended, in_order, report_on, results_of, state_of
from fragflow.runtime.observer import Results
from fragflow.runtime.planning.message_pieces import fan, is_sent
from fragflow.runtime.protocols import DrivenWorker, Made, WorkerReport, WorkerSet


class LaggedRuntime:
    """Preloads late messages, so that their receivers need not wait for the latest."""

    def __init__(
        self,
        fdg: FDG,
        workers: WorkerSet,
        total_iterations: int,
        stall_timeout_seconds: float = 120.0,
    ):
        """`workers` have been started; they are ended here."""
        self.lag = max(fdg.delays.values())
        self._fdg = fdg
        self._worker_set = workers
        self._workers = in_order(fdg, workers.drivers)
        self._total_iterations = total_iterations
        self._stall_timeout_seconds = stall_timeout_seconds
        self._failure = FirstFailure(workers.drivers, workers.stop)
        preload(fdg, workers)
        drivers = workers.drivers
        self._streams: Streams[Made] = Streams(
            [f"fragment {'+'.join(driver.workers)}" for driver in drivers],
            [lambda index, driver=driver: driver.run(index, 1) for driver in drivers],
            lambda k, error: self._failure.add(drivers[k], error),
        )

    def run(self, start: int, count: int) -> list[Results]:
        """Returns the results of `count` iterations; meanwhile threads may make as many more."""
        end = start + count
        self._streams.allow(min(end + count, self._total_iterations))
        return self._rows(start, end)

    def settle(self, made: int) -> list[Results]:
        """Finishes iterations that some threads have begun; returns the results from `made` on."""
        end = self._streams.stop()
        return self._rows(made, end) if end > made else []

    def state(self) -> dict[Value, np.ndarray]:
        return state_of(self._fdg, [worker for _, worker in self._workers])

    def report(self) -> WorkerReport:
        return report_on(self._worker_set, [worker for _, worker in self._workers])

    def close(self) -> None:
        """Ends all threads and workers."""
        self._worker_set.stop()
        self._streams.close(GRACE_SECONDS)
        self._worker_set.close()

    def _rows(self, start: int, end: int) -> list[Results]:
        while not self._streams.have_made(end) and not self._failure:
            self._failure.find_stuck(self._stall_timeout_seconds)
        self._failure.raise_first()
        made = [
            appended([results.pop(index) for index in range(start, end)])
            for results in self._streams.results
        ]
        rows = results_of(self._fdg, self._workers, made, end - start)
        for index, row in zip(range(start, end), rows, strict=True):
            row.metrics["lag"] = np.asarray(min(index, self.lag))
        return rows


def preload(fdg: FDG, workers: WorkerSet) -> None:
    """Puts messages with the first values on the routes of all late messages."""
    everyone = [w for driver in workers.drivers for w in driver.workers.values()]
    for transfer in fdg.transfers:
        for _ in range(fdg.delays.get(transfer.name, 0)):
            _preload(fdg, transfer, workers, everyone)


def _preload(
    fdg: FDG, transfer: Transfer, workers: WorkerSet, everyone: Sequence[DrivenWorker]
) -> None:
    target = fdg.fragments[transfer.target]
    mirrors = {c.next: c.inside for c in target.loop.carries}
    ends = fan(fdg, transfer)
    for sender, receiver in ends.routes:
        worker = next(w for w in everyone if w.name == target.name and receiver in w.replicas)
        payload = [
            worker.piece(mirrors[parcel.value], receiver) if is_sent(parcel, sender, ends) else None
            for parcel in transfer.parcels
        ]
        workers.preload(transfer.name, sender, receiver, payload)
