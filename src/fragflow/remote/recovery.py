"""Which processes can be replaced when they are lost, and how the run goes on."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fragflow.errors import RunError
from fragflow.graph.ir import FDG, Value
from fragflow.graph.kinds import UNIFORM, Tag
from fragflow.remote.contact import WorkerLost
from fragflow.remote.crews import RemoteCrew, RemoteWorker
from fragflow.remote.fleet import Berth, Fleet
from fragflow.remote.marks import mirrors
from fragflow.remote.orders import Duty, Mark, Order
from fragflow.runtime.host import host_of
from fragflow.runtime.worker import Metrics

MOST_REPLACEMENTS = 3
"""of one worker; who dies more often has a reason"""
BACK_OFF_SECONDS = 1.0


def is_expendable(fdg: FDG, berth: Berth) -> bool:
    """Whether another process could go on, given what it marks and what it was sent.

    Its state must be that of its environments, and those must be JAX programs, whose state is data.
    """
    if fdg.server is not None or fdg.delays or berth.script is None:
        return False
    for station in berth.stations:
        fragment = fdg.fragments[station.fragment]
        if fragment.group or host_of(fragment) is not None:
            return False
        sent = set(mirrors(fdg, fragment).values())
        for carry in fragment.loop.carries:
            kind = fdg.row_kinds.get(carry.inside, UNIFORM)
            is_fixed = carry.next == carry.inside
            if not is_fixed and carry.inside not in sent and kind.tag is not Tag.VARYING:
                return False
    return True


class ExpendableCrew(RemoteCrew):
    """The workers of a process that is replaced when it is lost."""

    def __init__(self, fleet: Fleet, berth: Berth, order: Order):
        super().__init__(fleet.process(berth), order)
        self.replacements = 0
        self._fleet = fleet
        self._berth = berth
        self._order = order
        self._last: Mark | None = None
        self._safe: Mark | None = None
        """the mark before, or where it all began: what a replacement begins with

        The last mark may have got out where messages before it have not. In lockstep, what was sent
        before the mark before it was answered."""

    def run(self, start: int, count: int) -> Mapping[RemoteWorker, Metrics]:
        metrics: dict[RemoteWorker, Metrics] = {worker: {} for worker in self.workers.values()}
        done = begin = start

        def mark(made: Mark) -> None:
            nonlocal done
            self._safe, self._last = self._last, made
            if made.iteration <= done:
                return  # made again
            done = made.iteration
            for name, found in made.metrics.items():
                kept = metrics[self.workers[name]]
                for value, rows in found.items():
                    kept.setdefault(value, []).extend(rows)

        while True:
            try:
                self.process.call("run", (begin, start + count - begin), on_mark=mark)
            except WorkerLost as lost:
                begin = self._replace(lost)  # even if it had marked all: the next begins earlier
            else:
                return metrics

    def state(self) -> Mapping[str, Mapping[Value, Any]]:
        """What no other process knows, by fragment."""
        if self._last is not None:
            return self._last.state
        return {duty.part.fragment.name: duty.values for duty in self._order.duties}

    def _replace(self, lost: WorkerLost) -> int:
        """Starts another process; the iteration that it begins with."""
        if self.replacements == MOST_REPLACEMENTS:
            raise RunError(f"{lost}; it was replaced {self.replacements} times before") from lost
        time.sleep(BACK_OFF_SECONDS * self.replacements)
        self.replacements += 1
        self._last = mark = self._safe
        try:
            self._start_again(mark)
        except WorkerLost as again:
            return self._replace(again)
        return 0 if mark is None else mark.iteration

    def _start_again(self, mark: Mark | None) -> None:
        number = self._order.incarnation + 1
        self.process = self._fleet.replace(self._berth, number)
        self._order = self._next_order(number, mark)
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

    def _next_order(self, number: int, mark: Mark | None) -> Order:
        duties = self._order.duties
        if mark is not None:
            duties = tuple(_updated(duty, mark) for duty in duties)
        return replace(
            self._order,
            incarnation=number,
            addresses=self._fleet.addresses(),
            duties=duties,
            resume=None if mark is None else mark.counts,
        )


def _updated(duty: Duty, mark: Mark) -> Duty:
    values: Mapping[str, Any] = mark.state[duty.part.fragment.name]
    return replace(duty, values={**duty.values, **values})
