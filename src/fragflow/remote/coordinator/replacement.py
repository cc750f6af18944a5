"""Recovery from lost processes: replaces those that can be replaced, and goes on with the run."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fragflow.errors import FragflowError, RunError
from fragflow.graph.analyses.replaceable import Recovery, recovery_of
from fragflow.graph.ir import FDG
from fragflow.remote.coordinator.processes import ProcessSpec, WorkerProcesses
from fragflow.remote.coordinator.remote_driver import (
    RemoteCalls,
    States,
    first_state,
    remote_workers,
)
from fragflow.remote.protocol.jobs import FragmentJob, Job, RecoveryPoint, Settled
from fragflow.remote.protocol.process_client import WorkerLost
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.gather import appended
from fragflow.runtime.protocols import Made, Payload
from fragflow.runtime.traffic import Sent

MAX_REPLACEMENTS = 3
"""of one process; if it keeps dying, the cause is one that a restart will not cure"""
BACK_OFF_SECONDS = 1.0


def recovery_in(fdg: FDG, spec: ProcessSpec) -> Recovery | None:
    """The way to replace a process, if it is the same for all of its workers; else None."""
    ways: set[Recovery | None] = {
        recovery_of(fdg, fdg.fragments[worker.fragment]) for worker in spec.workers
    }
    return ways.pop() if len(ways) == 1 else None


class _Succession:
    """One process after the other for the same workers: replaces a lost one, a few times."""

    def __init__(self, processes: WorkerProcesses, spec: ProcessSpec, job: Job):
        self.calls = RemoteCalls(processes.process(spec))
        self.job = job
        """of the process that is there now"""
        self.replacements = 0
        self._processes = processes
        self._spec = spec

    def replace(self, lost: WorkerLost, prepare: Callable[[Job], Job]) -> None:
        """Starts another process; `prepare` is given its job, and says how it is to begin."""
        while True:
            if self.replacements == MAX_REPLACEMENTS:
                raise RunError(
                    f"{lost}; it was replaced {self.replacements} times before"
                ) from lost
            time.sleep(BACK_OFF_SECONDS * self.replacements)
            if self._processes.process(self._spec).is_closing:
                raise Closed  # the run is over: a process started now would be left behind
            self.replacements += 1
            self.calls.lose()
            try:
                self.job = replace(self.job, incarnation=self.job.incarnation + 1)
                self.calls.process = self._processes.replace(self._spec, self.job.incarnation)
                self.job = prepare(self.job)
                self.calls.process.call("job", self.job)
                self._tell_senders()
            except WorkerLost as again:
                lost = again
            else:
                return

    def _tell_senders(self) -> None:
        """Has other processes send again what the new one has not received."""
        address = self._processes.addresses()[self._spec.name]
        counts = self.job.resume or {}
        for other in self._processes.specs:
            # One message earlier, which may have brought state: if not needed, it is dropped.
            routes = {
                route.number: max(0, counts.get(route.number, 0) - 1)
                for route in self.job.routes
                if route.source == other.name
            }
            if routes:
                self._processes.process(other).notify("move", (self._spec.name, address, routes))


class RestartingDriver:
    """Drives asynchronous workers. New processes begin new episodes with the last parameters."""

    restarts = 0
    """asynchronous runs depend on the order of messages anyway, and promise no equality"""

    def __init__(
        self,
        processes: WorkerProcesses,
        spec: ProcessSpec,
        job: Job,
        settled: Mapping[str, Settled],
    ):
        self._succession = _Succession(processes, spec, job)
        self._answers: Mapping[str, Payload] | None = None
        self.workers = remote_workers(job, settled, self._states)

    @property
    def sent(self) -> Sent:
        return self._succession.calls.sent

    @property
    def replacements(self) -> int:
        return self._succession.replacements

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        if answers is not None:
            self._answers = answers
        while True:
            try:
                return self._succession.calls.run(start, count, answers)
            except WorkerLost as lost:
                self._succession.replace(lost, prepare=lambda job: job)
                answers = self._answers

    def stuck(self, seconds: float) -> None:
        """Returns no error: the process itself looks after its environments."""
        del seconds

    def error(self, cause: BaseException) -> FragflowError:
        return self._succession.calls.error(cause)

    def _states(self) -> States:
        """The state by fragment; of a lost process, the one that its replacement begins with."""
        try:
            return self._succession.calls.state()
        except WorkerLost:
            return first_state(self._succession.job)


class ReplayingDriver:
    """Drives workers in lockstep or with a lag, which send a recovery point after every iteration.

    A new process goes on from such a point; environments on the host begin new episodes instead.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        spec: ProcessSpec,
        job: Job,
        settled: Mapping[str, Settled],
    ):
        self._processes = processes
        self._succession = _Succession(processes, spec, job)
        self._is_exact = recovery_in(processes.fdg, spec) == "replay"
        self._unsure: deque[RecoveryPoint] = deque()
        """the last recovery points: they may have arrived before messages that were sent earlier

        A message is answered in the next iteration, or later by the lag: then it has arrived."""
        self._most_unsure = 1 + max(processes.fdg.delays.values(), default=0)
        self._safe: RecoveryPoint | None = None
        """the recovery point that a replacement begins with; None: the beginning of the run"""
        self.workers = remote_workers(job, settled, self._states)

    @property
    def sent(self) -> Sent:
        return self._succession.calls.sent

    @property
    def replacements(self) -> int:
        return self._succession.replacements

    @property
    def restarts(self) -> int:
        return 0 if self._is_exact else self.replacements

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        assert answers is None
        made = [Made(metrics={name: {} for name in self.workers})]
        done = begin = start

        def on_point(point: RecoveryPoint) -> None:
            nonlocal done
            self._note(point)
            if point.iteration <= done:
                return  # made again
            done = point.iteration
            made.append(Made(metrics=point.metrics))

        while True:
            try:
                rest = start + count - begin
                self._succession.calls.run(begin, rest, on_point=on_point)
            except WorkerLost as lost:
                self._unsure.clear()
                # Even after the last recovery point: the safe one is earlier.
                self._succession.replace(lost, self._from_safe_point)
                begin = 0 if self._safe is None else self._safe.iteration
            else:
                return appended(made)

    def stuck(self, seconds: float) -> None:
        """Returns no error: the process itself looks after its environments."""
        del seconds

    def error(self, cause: BaseException) -> FragflowError:
        return self._succession.calls.error(cause)

    def _states(self) -> States:
        """The state that no other process has, by fragment."""
        last = self._unsure[-1] if self._unsure else self._safe
        return first_state(self._succession.job) if last is None else last.state

    def _note(self, point: RecoveryPoint) -> None:
        self._succession.calls.told(point.sent)
        self._unsure.append(point)
        if len(self._unsure) > self._most_unsure:
            self._safe = self._unsure.popleft()
            self._succession.calls.process.notify("forget", self._safe.counts)

    def _from_safe_point(self, job: Job) -> Job:
        point, part_jobs = self._safe, job.part_jobs
        if point is not None and self._is_exact:
            part_jobs = tuple(_updated(part_job, point) for part_job in part_jobs)
        return replace(
            job,
            addresses=self._processes.addresses(),
            part_jobs=part_jobs,
            resume=None if point is None else point.counts,
        )


def _updated(part_job: FragmentJob, point: RecoveryPoint) -> FragmentJob:
    values: Mapping[str, Any] = point.state[part_job.part.fragment.name]
    return replace(part_job, values={**part_job.values, **values})
