"""The runtime in lockstep: a thread for each driver, which wait for one another's messages."""

import functools
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures

import numpy as np

from fragflow.graph.ir import FDG, Value
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.drivers.threads import GRACE_SECONDS, POLL_SECONDS, JobThread
from fragflow.runtime.failure import FirstFailure
from fragflow.runtime.gather import in_order, report_on, results_of, state_of
from fragflow.runtime.observer import Results
from fragflow.runtime.protocols import Driver, Made, WorkerReport, WorkerSet


class LockstepRuntime:
    """Runs chunks of iterations, at whose ends no message is under way."""

    def __init__(self, fdg: FDG, workers: WorkerSet, stall_timeout_seconds: float = 120.0):
        """`workers` have been started; they are ended here."""
        self._fdg = fdg
        self._worker_set = workers
        self._workers = in_order(fdg, workers.drivers)
        self._stall_timeout_seconds = stall_timeout_seconds
        self._failure = FirstFailure(workers.drivers, workers.stop)
        self._threads: list[JobThread[Made]] = [
            JobThread(f"fragment {'+'.join(driver.workers)}") for driver in workers.drivers
        ]

    def run(self, start: int, count: int) -> list[Results]:
        """Runs `count` iterations; returns the results of each."""
        futures = [
            thread.submit(functools.partial(self._drive, driver, start, count))
            for thread, driver in zip(self._threads, self._worker_set.drivers, strict=True)
        ]
        self._await(futures)
        self._failure.raise_first()
        made = [future.result() for future in futures]
        return results_of(self._fdg, self._workers, made, count)

    def settle(self, made: int) -> list[Results]:
        """Returns no results: no iteration is under way after `run`."""
        del made
        return []

    def state(self) -> dict[Value, np.ndarray]:
        return state_of(self._fdg, [worker for _, worker in self._workers])

    def report(self) -> WorkerReport:
        return report_on(self._worker_set, [worker for _, worker in self._workers])

    def close(self) -> None:
        """Ends all threads and workers."""
        self._worker_set.stop()
        for thread in self._threads:
            thread.end(GRACE_SECONDS)
        self._worker_set.close()

    def _drive(self, driver: Driver, start: int, count: int) -> Made:
        try:
            return driver.run(start, count)
        except Closed:
            pass
        except BaseException as error:  # the first cause, whatever it is, ends the run
            self._failure.add(driver, error)
        return Made(metrics={})

    def _await(self, futures: Sequence[Future[Made]]) -> None:
        pending = set(futures)
        while pending and not self._failure.find_stuck(self._stall_timeout_seconds):
            _, pending = wait_futures(pending, timeout=POLL_SECONDS)
