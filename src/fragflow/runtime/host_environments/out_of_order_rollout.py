"""Makes a rollout out of order: acts on the first environments that have answered.

Every environment makes the same steps with the same random keys as in order; only the batches in
which actions are chosen differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fragflow.api.host import HostStep
from fragflow.graph.ir import Value
from fragflow.graph.replicas.kinds import UNIFORM, Kind, Tag
from fragflow.runtime.host_environments.pool import HostPool
from fragflow.runtime.planning.out_of_order_loop import OutOfOrderLoop
from fragflow.runtime.programs.compile import Executable


class OutOfOrderRollout:
    """Takes the environments of one worker through a loop."""

    def __init__(
        self,
        plan: OutOfOrderLoop,
        programs: Sequence[Executable],
        pool: HostPool,
        first: int,
        kinds: Mapping[Value, Kind],
        constants: Mapping[Value, Any],
    ):
        """`kinds` say which values have rows; `constants` are those for `first` environments."""
        self._plan = plan
        self._before, self._after = programs
        self._pool = pool
        self._first = first
        self._count = len(pool.ids)
        self._constants = constants
        self._with_rows = {v for v in plan.inputs if kinds.get(v, UNIFORM).tag is Tag.VARYING}

    def __call__(self, *arguments: Any) -> list[Any]:
        """Makes all steps of all environments; returns the last carries and the collected rows."""
        length = self._plan.loop.length
        assert length is not None, "the training loop itself does not run out of order"
        given = dict(zip(self._plan.inputs, arguments, strict=True)) | dict(self._constants)
        with_rows = self._with_rows - set(self._constants)
        table = _StepTable(self._plan, given, with_rows, self._count, length)
        under_way = 0
        for start in range(0, self._count, self._first):
            rows = np.arange(start, min(start + self._first, self._count))
            self._act(table, rows)
            under_way += len(rows)
        while under_way:
            rows, answer = self._pool.receive(min(self._first, under_way))
            self._finish(table, rows, answer)
            again = rows[table.clock[rows] < length]
            if len(again):
                self._act(table, again)
            under_way += len(again) - len(rows)
        return table.results()

    def _act(self, table: "_StepTable", rows: np.ndarray) -> None:
        self._run(self._before, table, rows)
        ticket, _, action = (table.rows(v, rows) for v in self._plan.call.inputs)
        self._pool.send(rows, ticket, action)

    def _finish(self, table: "_StepTable", rows: np.ndarray, answer: HostStep) -> None:
        ticket, record, _ = (table.rows(v, rows) for v in self._plan.call.inputs)
        results = self._pool.answered(ticket, record, answer)
        for name, array in zip(self._plan.call.outputs, results, strict=True):
            if name is not None:
                table.put(name, rows, array)
        self._run(self._after, table, rows)
        table.advance(rows)

    def _run(self, program: Executable, table: "_StepTable", rows: np.ndarray) -> None:
        """Runs a program for `rows`; repeats one of them up to `first`, its compiled size."""
        if not program.outputs:
            return
        missing = self._first - len(rows)
        padded = np.concatenate([rows, np.repeat(rows[:1], missing)]) if missing else rows
        results = program.call(*(table.argument(v, padded) for v in program.inputs))
        for name, array in zip(program.outputs, results, strict=True):
            table.put(name, rows, np.asarray(array)[: len(rows)])


class _StepTable:
    """The steps that the environments of a worker have made, and the values of each."""

    def __init__(
        self,
        plan: OutOfOrderLoop,
        given: Mapping[Value, Any],
        with_rows: set[Value],
        count: int,
        length: int,
    ):
        self.clock = np.zeros(count, np.int64)
        """steps made, by environment"""
        self._loop = plan.loop
        self._shape = (length, count)
        self._shared = {v: a for v, a in given.items() if v not in with_rows}
        self._table = {v: np.asarray(a) for v, a in given.items() if v in with_rows}
        """by value, a row for each environment"""
        for carry in self._loop.carries:
            self._table[carry.inside] = np.array(given[carry.init])
        self._slices = {s.inside: np.asarray(given[s.outside]) for s in self._loop.slices}
        self._kept: dict[Value, np.ndarray] = {}

    def rows(self, value: Value, rows: np.ndarray) -> np.ndarray:
        """The values of these environments, at their current steps."""
        if value in self._table:
            return self._table[value][rows]
        return self._slices[value][self.clock[rows], rows]

    def argument(self, value: Value, rows: np.ndarray) -> Any:
        return self._shared[value] if value in self._shared else self.rows(value, rows)

    def put(self, value: Value, rows: np.ndarray, array: np.ndarray) -> None:
        if value not in self._table:
            self._table[value] = np.empty((self._shape[1], *array.shape[1:]), array.dtype)
        self._table[value][rows] = array

    def advance(self, rows: np.ndarray) -> None:
        """Ends a step of these environments."""
        for stack in self._loop.stacks:
            array = self.rows(stack.element, rows)
            if stack.outside not in self._kept:
                self._kept[stack.outside] = np.empty((*self._shape, *array.shape[1:]), array.dtype)
            self._kept[stack.outside][self.clock[rows], rows] = array
        after = [self.rows(carry.next, rows) for carry in self._loop.carries]
        for carry, array in zip(self._loop.carries, after, strict=True):
            self.put(carry.inside, rows, array)
        self.clock[rows] += 1

    def results(self) -> list[np.ndarray]:
        finals = [self._table[carry.inside] for carry in self._loop.carries]
        return [*finals, *(self._kept[stack.outside] for stack in self._loop.stacks)]
