"""Recovery from lost processes: replaces those that can be replaced, and goes on with the run."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fragflow.errors import RunError
from fragflow.graph.analyses.replaceable import Recovery, recovery_of
from fragflow.graph.ir import FDG, Value
from fragflow.remote.coordinator.processes import ProcessSpec, WorkerProcesses
from fragflow.remote.coordinator.remote_driver import RemoteDriver, RemoteWorker
from fragflow.remote.protocol.jobs import FragmentJob, Job, RecoveryPoint
from fragflow.remote.protocol.process_client import WorkerLost
from fragflow.runtime.drivers.channels import Closed, Payload
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.drivers.worker import Metrics

MAX_REPLACEMENTS = 3
"""of one process; if it keeps dying, the cause is one that a restart will not cure"""
BACK_OFF_SECONDS = 1.0


def recovery_in(fdg: FDG, spec: ProcessSpec) -> Recovery | None:
    """The way to replace a process, if it is the same for all of its workers; else None."""
    ways: set[Recovery | None] = {
        recovery_of(fdg, fdg.fragments[worker.fragment]) for worker in spec.workers
    }
    return ways.pop() if len(ways) == 1 else None


class _Replaceable(RemoteDriver):
    """Drives the workers of a process that is replaced when it is lost, a few times."""

    def __init__(self, processes: WorkerProcesses, spec: ProcessSpec, job: Job):
        super().__init__(processes.process(spec), job)
        self.replacements = 0
        self._processes = processes
        self._spec = spec
        self._job = job

    def _replace(self, lost: WorkerLost) -> None:
        """Starts another process, and tells it how to begin."""
        while True:
            if self.replacements == MAX_REPLACEMENTS:
                raise RunError(
                    f"{lost}; it was replaced {self.replacements} times before"
                ) from lost
            time.sleep(BACK_OFF_SECONDS * self.replacements)
            if self._processes.process(self._spec).is_closing:
                raise Closed  # the run is over: a process started now would be left behind
            self.replacements += 1
            self._lost, self._told = self.sent, Sent()
            try:
                self._start_again(self._job.incarnation + 1)
            except WorkerLost as again:
                lost = again
            else:
                return

    def _start_again(self, incarnation: int) -> None:
        self._job = replace(self._job, incarnation=incarnation)
        self.process = self._processes.replace(self._spec, incarnation)

    def _first_state(self) -> Mapping[str, Mapping[Value, Any]]:
        return {part_job.part.fragment.name: part_job.values for part_job in self._job.part_jobs}


class RestartingDriver(_Replaceable):
    """Drives asynchronous workers. New processes begin new episodes with the last parameters."""

    _answers: Mapping[str, Payload] | None = None

    def work(
        self, index: int, answers: Mapping[str, Payload] | None
    ) -> tuple[Mapping[str, Metrics], Mapping[str, Payload]]:
        if answers is not None:
            self._answers = answers
        while True:
            try:
                return super().work(index, answers)
            except WorkerLost as lost:
                self._replace(lost)
                answers = self._answers

    def state(self) -> Mapping[str, Mapping[Value, Any]]:
        """The state by fragment; of a lost process, the one that its replacement begins with."""
        try:
            return super().state()
        except WorkerLost:
            return self._first_state()

    def _start_again(self, incarnation: int) -> None:
        super()._start_again(incarnation)
        self.process.call("job", self._job)


class ReplayingDriver(_Replaceable):
    """Drives workers in lockstep or with a lag, which send a recovery point after every iteration.

    A new process goes on from such a point; environments on the host begin new episodes instead.
    """

    def __init__(self, processes: WorkerProcesses, spec: ProcessSpec, job: Job):
        super().__init__(processes, spec, job)
        self._is_exact = recovery_in(processes.fdg, spec) == "replay"
        self._unsure: deque[RecoveryPoint] = deque()
        """the last recovery points: they may have arrived before messages that were sent earlier

        A message is answered in the next iteration, or later by the lag: then it has arrived."""
        self._most_unsure = 1 + max(processes.fdg.delays.values(), default=0)
        self._safe: RecoveryPoint | None = None
        """the recovery point that a replacement begins with; None: the beginning of the run"""

    @property
    def restarts(self) -> int:
        return 0 if self._is_exact else self.replacements

    def run(self, start: int, count: int) -> Mapping[RemoteWorker, Metrics]:
        metrics: dict[RemoteWorker, Metrics] = {worker: {} for worker in self.workers.values()}
        done = begin = start

        def on_point(point: RecoveryPoint) -> None:
            nonlocal done
            self._note(point)
            if point.iteration <= done:
                return  # made again
            done = point.iteration
            for name, found in point.metrics.items():
                kept = metrics[self.workers[name]]
                for value, rows in found.items():
                    kept.setdefault(value, []).extend(rows)

        while True:
            try:
                _, self._told = self.process.call(
                    "run", (begin, start + count - begin), on_point=on_point
                )
            except WorkerLost as lost:
                self._unsure.clear()
                self._replace(lost)  # even after the last recovery point: the safe one is earlier
                begin = 0 if self._safe is None else self._safe.iteration
            else:
                return metrics

    def state(self) -> Mapping[str, Mapping[Value, Any]]:
        """The state that no other process has, by fragment."""
        last = self._unsure[-1] if self._unsure else self._safe
        return self._first_state() if last is None else last.state

    def _note(self, point: RecoveryPoint) -> None:
        self._told = point.sent
        self._unsure.append(point)
        if len(self._unsure) > self._most_unsure:
            self._safe = self._unsure.popleft()
            self.process.notify("forget", self._safe.counts)

    def _start_again(self, incarnation: int) -> None:
        super()._start_again(incarnation)
        point = self._safe
        self._job = self._next_order(point)
        self.process.call("job", self._job)
        address = self._job.addresses[self._spec.name]
        counts = {} if point is None else point.counts
        for other in self._processes.specs:
            # One message earlier, which may have brought state: if not needed, it is dropped.
            routes = {
                route.number: max(0, counts.get(route.number, 0) - 1)
                for route in self._job.routes
                if route.source == other.name
            }
            if routes:
                self._processes.process(other).notify("move", (self._spec.name, address, routes))

    def _next_order(self, point: RecoveryPoint | None) -> Job:
        part_jobs = self._job.part_jobs
        if point is not None and self._is_exact:
            part_jobs = tuple(_updated(part_job, point) for part_job in part_jobs)
        return replace(
            self._job,
            addresses=self._processes.addresses(),
            part_jobs=part_jobs,
            resume=None if point is None else point.counts,
        )


def _updated(part_job: FragmentJob, point: RecoveryPoint) -> FragmentJob:
    values: Mapping[str, Any] = point.state[part_job.part.fragment.name]
    return replace(part_job, values={**part_job.values, **values})
