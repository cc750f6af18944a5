"""The asynchronous runtime: workers at their own pace, and a server that handles their messages.

The graph is that of one worker and the server.
"""

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from fragflow.errors import RunError
from fragflow.graph.ir import FDG, Value
from fragflow.graph.replicas.kinds import Tag
from fragflow.runtime.asynchrony.server import Server
from fragflow.runtime.asynchrony.server_queue import ServerQueue, Submission
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.drivers.threads import GRACE_SECONDS, POLL_SECONDS, Streams
from fragflow.runtime.failure import FirstFailure
from fragflow.runtime.gather import joined, report_on
from fragflow.runtime.observer import Results
from fragflow.runtime.programs.layout import kind_of
from fragflow.runtime.protocols import DrivenWorker, Metrics, WorkerReport, WorkerSet


class AsyncRuntime:
    """Runs several workers, each in a thread of its own, and one server."""

    def __init__(
        self,
        fdg: FDG,
        workers: WorkerSet,
        server: Server,
        total_iterations: int,
        *,
        bound: int,
        ahead: int,
        stall_timeout_seconds: float = 120.0,
    ):
        """`workers` have been started; they are ended here."""
        self._fdg = fdg
        self._worker_set = workers
        self._server = server
        self._total_iterations = total_iterations
        self._stall_timeout_seconds = stall_timeout_seconds
        drivers, names = workers.drivers, range(len(workers.drivers))
        self._queue = ServerQueue(len(drivers), bound, ahead)
        self._failure = FirstFailure(drivers, self._queue.close)
        self._submissions: list[dict[int, tuple[Metrics, int]]] = [{} for _ in drivers]
        """by worker and iteration, the server's metrics of a submission, and its lag"""
        self._streams: Streams[Mapping[str, Metrics]] = Streams(
            [f"worker {w}" for w in names],
            [lambda index, w=w: self._work(w, index) for w in names],
            lambda w, error: self._failure.add(drivers[w], error),
        )
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()

    def run(self, start: int, count: int) -> list[Results]:
        """Returns the results of `count` iterations of every worker; they may go on meanwhile."""
        end = start + count
        self._streams.allow(min(end + count, self._total_iterations))
        return self._rows(start, end)

    def settle(self, made: int) -> list[Results]:
        """Finishes iterations that some workers have begun; returns the results from `made` on."""
        end = self._streams.stop()
        return self._rows(made, end) if end > made else []

    def state(self) -> dict[Value, np.ndarray]:
        leaves: dict[Value, np.ndarray] = {}
        for carry in self._fdg.program.loop.carries:
            name = carry.inside
            kind = kind_of(name, self._fdg.row_kinds)
            server = self._server.worker.state()
            if name not in server:
                parts = [w.state()[name] for w in self._workers() if name in w.state()]
            elif kind.tag is Tag.VARYING:
                parts = [kept[name] for kept in self._server.kept_by_sender]
            else:
                parts = [server[name]]
            leaves[name] = joined(parts, kind)
        return leaves

    def report(self) -> WorkerReport:
        return report_on(self._worker_set, [*self._workers(), self._server.worker])

    def close(self) -> None:
        """Ends all threads and workers."""
        self._worker_set.stop()
        self._queue.close()
        self._streams.close(GRACE_SECONDS)
        self._thread.join(GRACE_SECONDS)
        self._worker_set.close()

    def _workers(self) -> list[DrivenWorker]:
        return [w for driver in self._worker_set.drivers for w in driver.workers.values()]

    def _work(self, w: int, index: int) -> Mapping[str, Metrics]:
        """Makes one iteration of a worker, with the newest parameters."""
        answers = self._queue.begin(w)
        made = self._worker_set.drivers[w].run(index, 1, answers)
        self._queue.submit(Submission(worker=w, iteration=index, payloads=made.submission))
        return made.metrics

    def _serve(self) -> None:
        try:
            while True:
                submission = self._queue.take()
                metrics, answers = self._server.handle(submission)
                # Before the answer: then the submission counts as handled, and `_row` reads this.
                made = (metrics, self._queue.lag(submission))
                self._submissions[submission.worker][submission.iteration] = made
                self._queue.answer(submission, answers)
        except BaseException as error:  # whatever it is, the run must hear of it
            if not isinstance(error, Closed):
                self._failure.add(self._server.driver, error)

    def _rows(self, start: int, end: int) -> list[Results]:
        self._await(end)
        return [self._row(index) for index in range(start, end)]

    def _await(self, end: int) -> None:
        before, since = -1, time.monotonic()
        while not (self._queue.have_handled(end, POLL_SECONDS) and self._streams.have_made(end)):
            self._failure.find_stuck(self._stall_timeout_seconds)
            self._failure.raise_first()
            handled = self._queue.handled
            if sum(handled) != before:
                before, since = sum(handled), time.monotonic()
            elif time.monotonic() - since > self._stall_timeout_seconds:
                slowest = min(range(len(handled)), key=handled.__getitem__)
                raise RunError(
                    f"no message was handled for {self._stall_timeout_seconds:.0f} seconds: worker "
                    f"{slowest} or the server is stuck at iteration {handled[slowest]}"
                )

    def _row(self, index: int) -> Results:
        made = [results.pop(index) for results in self._streams.results]
        served = [submissions.pop(index) for submissions in self._submissions]
        everyone: Sequence[Metrics] = [
            *(metrics for each in made for metrics in each.values()),
            *(metrics for metrics, _ in served),
        ]
        row = Results()
        for stack in self._fdg.program.loop.stacks:
            parts = [m[stack.outside][0] for m in everyone if stack.outside in m]
            kind = kind_of(stack.element, self._fdg.row_kinds)
            array = joined(parts, kind) if kind.tag is Tag.VARYING else np.mean(parts, axis=0)
            row.add(self._fdg.program, stack.outside, np.asarray(array))
        lags = [lag for _, lag in served]
        row.metrics["lag"] = np.asarray(np.mean(lags))
        row.metrics["lag_max"] = np.asarray(max(lags))
        return row
