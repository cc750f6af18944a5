"""Which processes can be replaced when they are lost, and how the run goes on."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fragflow.errors import RunError
from fragflow.graph.analyses.recovery import Recovery, recovery_of
from fragflow.graph.ir import FDG, Value
from fragflow.remote.coordinator.drivers import RemoteCrew, RemoteWorker
from fragflow.remote.coordinator.processes import Berth, Fleet
from fragflow.remote.protocol.jobs import Duty, Mark, Order
from fragflow.remote.protocol.process_client import WorkerLost
from fragflow.runtime.drivers.channels import Closed, Payload
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.drivers.worker import Metrics

MOST_REPLACEMENTS = 3
"""per worker; one that keeps dying has a cause that a restart will not cure"""
BACK_OFF_SECONDS = 1.0


def recovery_in(fdg: FDG, berth: Berth) -> Recovery | None:
    """How a process is replaced: the same way for all of its workers, or not at all."""
    ways: set[Recovery | None] = {
        recovery_of(fdg, fdg.fragments[station.fragment]) for station in berth.stations
    }
    return ways.pop() if len(ways) == 1 else None


class _Replaceable(RemoteCrew):
    """The workers of a process that is replaced when it is lost, a few times."""

    def __init__(self, fleet: Fleet, berth: Berth, order: Order):
        super().__init__(fleet.process(berth), order)
        self.replacements = 0
        self._fleet = fleet
        self._berth = berth
        self._order = order

    def _replace(self, lost: WorkerLost) -> None:
        """Starts another process, which is told how to begin."""
        while True:
            if self.replacements == MOST_REPLACEMENTS:
                raise RunError(
                    f"{lost}; it was replaced {self.replacements} times before"
                ) from lost
            time.sleep(BACK_OFF_SECONDS * self.replacements)
            if self._fleet.process(self._berth).is_closing:
                raise Closed  # the run is over: who takes a place now would be left behind
            self.replacements += 1
            self._lost, self._told = self.sent, Sent()
            try:
                self._start_again(self._order.incarnation + 1)
            except WorkerLost as again:
                lost = again
            else:
                return

    def _start_again(self, incarnation: int) -> None:
        self._order = replace(self._order, incarnation=incarnation)
        self.process = self._fleet.replace(self._berth, incarnation)

    def _first_state(self) -> Mapping[str, Mapping[Value, Any]]:
        return {duty.part.fragment.name: duty.values for duty in self._order.duties}


class RestartingCrew(_Replaceable):
    """Asynchronous workers. A new process begins with new episodes and the last parameters."""

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
        """By fragment; of one that is lost, what a new one begins with."""
        try:
            return super().state()
        except WorkerLost:
            return self._first_state()

    def _start_again(self, incarnation: int) -> None:
        super()._start_again(incarnation)
        self.process.call("order", self._order)


class ExpendableCrew(_Replaceable):
    """Workers in lockstep or with a lag, which tell where they stand after every iteration.

    A new process goes on from there. Environments on the host cannot: they begin new episodes.
    """

    def __init__(self, fleet: Fleet, berth: Berth, order: Order):
        super().__init__(fleet, berth, order)
        self._is_exact = recovery_in(fleet.fdg, berth) == "replay"
        self._unsure: deque[Mark] = deque()
        """the last marks: they may have got out where messages before them have not

        What is sent in an iteration is answered in the next one, or as many later as the lag is."""
        self._most_unsure = 1 + max(fleet.fdg.delays.values(), default=0)
        self._safe: Mark | None = None
        """the mark before those, or None for where it all began: what a replacement begins with"""

    @property
    def restarts(self) -> int:
        return 0 if self._is_exact else self.replacements

    def run(self, start: int, count: int) -> Mapping[RemoteWorker, Metrics]:
        metrics: dict[RemoteWorker, Metrics] = {worker: {} for worker in self.workers.values()}
        done = begin = start

        def mark(made: Mark) -> None:
            nonlocal done
            self._note(made)
            if made.iteration <= done:
                return  # made again
            done = made.iteration
            for name, found in made.metrics.items():
                kept = metrics[self.workers[name]]
                for value, rows in found.items():
                    kept.setdefault(value, []).extend(rows)

        while True:
            try:
                _, self._told = self.process.call(
                    "run", (begin, start + count - begin), on_mark=mark
                )
            except WorkerLost as lost:
                self._unsure.clear()
                self._replace(lost)  # even if it had marked all: the next begins earlier
                begin = 0 if self._safe is None else self._safe.iteration
            else:
                return metrics

    def state(self) -> Mapping[str, Mapping[Value, Any]]:
        """What no other process knows, by fragment."""
        last = self._unsure[-1] if self._unsure else self._safe
        return self._first_state() if last is None else last.state

    def _note(self, made: Mark) -> None:
        self._told = made.sent
        self._unsure.append(made)
        if len(self._unsure) > self._most_unsure:
            self._safe = self._unsure.popleft()
            self.process.errand("forget", self._safe.counts)

    def _start_again(self, incarnation: int) -> None:
        super()._start_again(incarnation)
        mark = self._safe
        self._order = self._next_order(mark)
        self.process.call("order", self._order)
        address = self._order.addresses[self._berth.name]
        counts = {} if mark is None else mark.counts
        for other in self._fleet.berths:
            # The message before may have brought state: who does not want it drops it.
            lanes = {
                lane.number: max(0, counts.get(lane.number, 0) - 1)
                for lane in self._order.lanes
                if lane.source == other.name
            }
            if lanes:
                self._fleet.process(other).errand("move", (self._berth.name, address, lanes))

    def _next_order(self, mark: Mark | None) -> Order:
        duties = self._order.duties
        if mark is not None and self._is_exact:
            duties = tuple(_updated(duty, mark) for duty in duties)
        return replace(
            self._order,
            addresses=self._fleet.addresses(),
            duties=duties,
            resume=None if mark is None else mark.counts,
        )


def _updated(duty: Duty, mark: Mark) -> Duty:
    values: Mapping[str, Any] = mark.state[duty.part.fragment.name]
    return replace(duty, values={**duty.values, **values})
