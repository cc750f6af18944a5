"""The asynchronous runtime: workers at their own pace, and a server that handles their messages.

The graph is that of one worker and the server. The server's program is a handler: it takes one
worker's message and its own state, and returns its next state and an answer. State that it has
per environment is kept by sender.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragflow.errors import RunError
from fragflow.graph.ir import FDG, Value
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.runtime.asynchrony.server_queue import (
    AsyncWorker,
    ServerQueue,
    SlotChannels,
    Submission,
)
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.drivers.codegen import generate
from fragflow.runtime.drivers.driver import Driver
from fragflow.runtime.drivers.threads import POLL_SECONDS, Streams
from fragflow.runtime.drivers.traffic import Sent, together
from fragflow.runtime.drivers.worker import Metrics, Worker
from fragflow.runtime.host_environments.pool import HostPool, close_pools
from fragflow.runtime.lockstep import devices_of
from fragflow.runtime.observer import Devices, Results
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.programs.layout import kind_of
from fragflow.runtime.programs.prepare_workers import Assembly, Progress

GRACE_SECONDS = 5.0
"""time that threads have to end by themselves"""


class AsyncRuntime:
    """Runs several workers and one server in this process."""

    def __init__(
        self,
        fdg: FDG,
        state: Mapping[Value, np.ndarray | jax.Array],
        sources: Mapping[Value, np.ndarray],
        *,
        workers: int,
        bound: int,
        ahead: int,
        pools: Mapping[str, Sequence[HostPool]] | None = None,
        row_kinds: Mapping[Value, Kind] | None = None,
        implementations: Mapping[str, str] | None = None,
        optimisations: Optimisations = ALL_OPTIMISATIONS,
        stall_timeout_seconds: float = 120.0,
        progress: Progress | None = None,
    ):
        """`fdg` is the graph of one worker; `state` and `sources` are those of all workers."""
        assert fdg.server is not None
        self.fdg = fdg
        self._pools = pools or {}
        self._stall_timeout_seconds = stall_timeout_seconds
        self._count = workers
        self._queue = ServerQueue(workers, bound, ahead)
        plan = make_plan(fdg, optimisations)
        self._assembly = Assembly(
            fdg,
            plan,
            state,
            sources,
            row_kinds=row_kinds,
            implementations=implementations,
            progress=progress,
        )
        self._async_drivers: list[Any] = self._start(plan)
        self._slot_channels = SlotChannels()
        self._server = self._worker(fdg.server, 0, self._slot_channels)
        self._server_driver = Driver([self._server], generate(fdg, plan, [fdg.server]))
        self._kept_by_sender = self._server_rows()
        self.num_programs = self._assembly.num_programs
        self.picks = self._assembly.picks
        self.total_iterations = int(sources["total_iterations"])
        self._submissions: list[dict[int, tuple[Metrics, int]]] = [{} for _ in range(workers)]
        """by worker and iteration, the server's metrics of a submission, and its lag"""
        self._failure: tuple[Any, BaseException] | None = None
        self._lock = threading.Lock()
        self._streams = Streams(
            [f"worker {w}" for w in range(workers)],
            [lambda index, w=w: self._work(w, index) for w in range(workers)],
            lambda w, error: self._fail(self._async_drivers[w], error),
        )
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()

    @property
    def sent(self) -> Sent:
        """The traffic of workers: their submissions, and the answers that they were given."""
        return together(driver.sent for driver in self._async_drivers)

    @property
    def devices(self) -> Devices:
        workers = [w for driver in self._async_drivers for w in driver.workers.values()]
        return devices_of([*workers, self._server])

    def run(self, start: int, count: int) -> list[Results]:
        """Returns the results of `count` iterations of every worker; they may go on meanwhile."""
        end = start + count
        self._streams.allow(min(end + count, self.total_iterations))
        return self._rows(start, end)

    def settle(self, made: int) -> list[Results]:
        """Finishes iterations that some workers have begun; returns the results from `made` on."""
        end = self._streams.stop()
        return self._rows(made, end) if end > made else []

    def state(self) -> dict[Value, np.ndarray]:
        """Every state leaf as one array over all environments."""
        leaves: dict[Value, np.ndarray] = {}
        for carry in self.fdg.program.loop.carries:
            name = carry.inside
            kind = kind_of(name, self.fdg.row_kinds)
            if name in self._server.state():
                rows = [kept.get(name) for kept in self._kept_by_sender]
                parts = rows if kind.tag is Tag.VARYING else [self._server.state()[name]]
            else:
                parts = [
                    worker.state()[name]
                    for driver in self._async_drivers
                    for worker in driver.workers.values()
                    if name in worker.state()
                ]
            arrays = [np.asarray(part) for part in parts]
            is_divided = kind.tag is Tag.VARYING and len(arrays) > 1
            leaves[name] = np.concatenate(arrays, kind.axis) if is_divided else arrays[0]
        return leaves

    def close(self) -> None:
        """Ends all threads."""
        self._queue.close()
        self._streams.close(GRACE_SECONDS)
        self._thread.join(GRACE_SECONDS)
        close_pools(self._pools)

    def _start(self, plan: Plan) -> list[Any]:
        """Makes a driver for each asynchronous worker."""
        team = [name for name in self.fdg.fragments if name != self.fdg.server]
        script = generate(self.fdg, plan, team)
        drivers = []
        for w in range(self._count):
            slot_channels = SlotChannels()
            driver = Driver([self._worker(name, w, slot_channels) for name in team], script)
            drivers.append(AsyncWorker(self.fdg, driver, slot_channels))
        return drivers

    def _worker(self, name: str, index: int, channels: Any) -> Worker:
        part = self._assembly.plan.parts[name]
        (layout,) = self._assembly.layouts(name)
        portion = (index, self._count)
        return Worker(
            self.fdg,
            part,
            [0],
            layout,
            self._assembly.programs(name, layout),
            self._assembly.first_values(part, layout, portion, self.fdg.row_kinds),
            channels,
            self._pools[name][index] if name in self._pools else None,
        )

    def _server_rows(self) -> list[dict[Value, jax.Array]]:
        """The server's values with rows of environments, by sender."""
        part, (layout,) = self._server.part, self._assembly.layouts(self._server.name)
        inside = {carry.init: carry.inside for carry in part.fragment.loop.carries}
        names = [
            name
            for name in self._server.values
            if kind_of(inside.get(name, name), self.fdg.row_kinds).tag is Tag.VARYING
        ]
        rows = []
        for w in range(self._count):
            portion = (w, self._count)
            values = self._assembly.first_values(part, layout, portion, self.fdg.row_kinds)
            rows.append({name: values[name] for name in names})
        return rows

    def _work(self, w: int, index: int) -> Mapping[str, Metrics]:
        """Makes one iteration of a worker, with the newest parameters."""
        answers = self._queue.begin(w)
        metrics, payloads = self._async_drivers[w].work(index, answers)
        self._queue.submit(Submission(worker=w, iteration=index, payloads=payloads))
        return metrics

    def _serve(self) -> None:
        try:
            while True:
                submission = self._queue.take()
                kept = self._kept_by_sender[submission.worker]
                self._server.values.update(kept)
                self._slot_channels.lay(submission.payloads)
                metrics = self._server_driver.run(submission.iteration, 1)[self._server]
                kept.update({name: self._server.values[name] for name in kept})
                # Before the answer: then the submission counts as handled, and `_row` reads this.
                made = (metrics, self._queue.lag(submission))
                self._submissions[submission.worker][submission.iteration] = made
                self._queue.answer(submission, self._slot_channels.answers())
        except Closed:
            pass
        except BaseException as error:  # whatever it is, the run must hear of it
            self._fail(self._server_driver, error)

    def _fail(self, driver: Any, error: BaseException) -> None:
        """Ends the run with an error that occurred in `driver`."""
        with self._lock:
            if self._failure is None and not isinstance(error, Closed):
                self._failure = (driver, error)
        self._queue.close()

    def _rows(self, start: int, end: int) -> list[Results]:
        self._await(end)
        return [self._row(index) for index in range(start, end)]

    def _await(self, end: int) -> None:
        before, since = -1, time.monotonic()
        while not (self._queue.have_handled(end, POLL_SECONDS) and self._streams.have_made(end)):
            for driver in self._async_drivers:
                for worker in driver.workers.values():
                    stuck = worker.pool and worker.pool.stuck(self._stall_timeout_seconds)
                    if stuck:
                        self._fail(driver, stuck)
            if self._failure is not None:
                driver, cause = self._failure
                raise driver.error(cause)
            handled = sum(self._queue.handled)
            if handled != before:
                before, since = handled, time.monotonic()
            elif time.monotonic() - since > self._stall_timeout_seconds:
                slowest = min(range(self._count), key=lambda w: self._queue.handled[w])
                raise RunError(
                    f"no message was handled for {self._stall_timeout_seconds:.0f} seconds: worker "
                    f"{slowest} or the server is stuck at iteration "
                    f"{self._queue.handled[slowest]}"
                )

    def _row(self, index: int) -> Results:
        made = [results.pop(index) for results in self._streams.results]
        served = [submissions.pop(index) for submissions in self._submissions]
        row = Results()
        for stack in self.fdg.program.loop.stacks:
            parts = [
                metrics[stack.outside][0]
                for metrics in (*(m for each in made for m in each.values()), *_first(served))
                if stack.outside in metrics
            ]
            kind = kind_of(stack.element, self.fdg.row_kinds)
            is_divided = kind.tag is Tag.VARYING
            array = np.concatenate(parts, kind.axis) if is_divided else np.mean(parts, axis=0)
            row.add(self.fdg.program, stack.outside, array)
        lags = [lag for _, lag in served]
        row.metrics["lag"] = np.asarray(np.mean(lags))
        row.metrics["lag_max"] = np.asarray(max(lags))
        return row


def _first(pairs: Sequence[tuple[Metrics, int]]) -> list[Metrics]:
    return [metrics for metrics, _ in pairs]
