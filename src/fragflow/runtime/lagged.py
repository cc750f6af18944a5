"""The local runtime for graphs with late messages: fragments that run ahead of one another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fragflow.graph.ir import Transfer
from fragflow.runtime.drivers.threads import Streams
from fragflow.runtime.drivers.worker import Metrics, Worker
from fragflow.runtime.lockstep import GRACE_SECONDS, LocalRuntime
from fragflow.runtime.observer import Results
from fragflow.runtime.planning.message_pieces import fan, is_sent


class LaggedRuntime(LocalRuntime):
    """Preloads late messages, so that their receivers need not wait for the latest."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.lag = max(self.fdg.delays.values())
        for transfer in self.fdg.transfers:
            for _ in range(self.fdg.delays.get(transfer.name, 0)):
                self._preload(transfer)
        self._streams = Streams(
            [f"fragment {'+'.join(driver.workers)}" for driver in self._drivers],
            [
                lambda index, driver=driver: self._drive(driver, index, 1)
                for driver in self._drivers
            ],
            lambda k, error: self._fail(self._drivers[k], error),
        )

    def run(self, start: int, count: int) -> list[Results]:
        """Returns the results of `count` iterations; meanwhile threads may make as many more."""
        end = start + count
        self._streams.allow(min(end + count, self.total_iterations))
        return self._rows(start, end)

    def settle(self, made: int) -> list[Results]:
        """Finishes iterations that some threads have begun; returns the results from `made` on."""
        end = self._streams.stop()
        return self._rows(made, end) if end > made else []

    def close(self) -> None:
        self._channels.close()
        self._streams.close(GRACE_SECONDS)
        super().close()

    def _rows(self, start: int, end: int) -> list[Results]:
        while not self._streams.have_made(end) and self._failure is None:
            self._is_stuck()
        self._raise_failure()
        collected: dict[Worker, Metrics] = {worker: {} for worker in self._workers}
        for results in self._streams.results:
            for index in range(start, end):
                made: Mapping[Worker, Metrics] = results.pop(index)
                for worker, metrics in made.items():
                    for name, values in metrics.items():
                        collected[worker].setdefault(name, []).extend(values)
        rows = self._metrics([collected[w] for w in self._workers], end - start)
        for index, row in zip(range(start, end), rows, strict=True):
            row.metrics["lag"] = np.asarray(min(index, self.lag))
        return rows

    def _preload(self, transfer: Transfer) -> None:
        """Puts a message with the first values into each of the transfer's channels."""
        target = self.fdg.fragments[transfer.target]
        mirrors = {c.next: c.inside for c in target.loop.carries}
        ends = fan(self.fdg, transfer)
        for sender, receiver in ends.routes:
            worker = next(
                w for w in self._workers if w.name == target.name and receiver in w.replicas
            )
            payload = [
                worker.piece(mirrors[parcel.value], receiver)
                if is_sent(parcel, sender, ends)
                else None
                for parcel in transfer.parcels
            ]
            self._channels.open(transfer.name, sender, receiver).put(payload)
