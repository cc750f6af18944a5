"""A driver runs the workers of one thread, with source that was generated for them."""

import linecache
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fragflow.error_owner import GENERATED, judged
from fragflow.errors import EnvironmentFault, FragflowError
from fragflow.runtime.drivers.codegen import DriverSource, identifier
from fragflow.runtime.drivers.recorder import Recorder
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.planning.instructions import Ask, Get, Keep, Put, Run, RunOutOfOrder
from fragflow.runtime.programs.layout import on_host
from fragflow.runtime.protocols import Made, Payload
from fragflow.runtime.traffic import Sent


class ThreadDriver:
    """Runs iterations of one or several workers in the thread that calls it."""

    replacements = restarts = 0
    """a thread is not replaced"""

    def __init__(
        self,
        workers: Sequence[Worker],
        script: DriverSource | None,
        recorder: Recorder | None = None,
    ):
        """Without `script`, the training loop of the only worker is one program.

        Only with a `recorder` events are noted, and without it nothing is slower.
        """
        self.workers = {worker.name: worker for worker in workers}
        self.sent = Sent()
        """between its workers"""
        self.recorder = recorder
        self._script = script
        if script is not None:
            self._file = f"{GENERATED}{', '.join(self.workers)}>"
            scope = self._bound(script)
            if recorder is not None:
                replicas = {name: worker.replicas for name, worker in self.workers.items()}
                scope = recorder.watched(scope, script, replicas)
            exec(compile(script.text, self._file, "exec"), scope)
            self._drive = scope["drive"]
            # Tracebacks show the generated lines.
            lines = script.text.splitlines(keepends=True)
            linecache.cache[self._file] = (len(script.text), None, lines, self._file)

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        """Runs iterations `start` to `start + count`; messages go through channels alone."""
        assert answers is None
        if self._script is None:
            (worker,) = self.workers.values()
            metrics = {worker.name: worker.run_fused(start, count)}
        else:
            places = self._script.first.values()
            first = [self.workers[fragment].values[value] for fragment, value in places]
            kept, last, handed = self._drive(first, start, count)
            for times, arrays in handed:
                self.sent.add(arrays, times)
            for (fragment, value), array in zip(places, last, strict=True):
                self.workers[fragment].values[value] = array
            metrics = {
                worker.name: {
                    stack.outside: [on_host(row) for row in rows]
                    for stack, rows in zip(worker.part.fragment.loop.stacks, lists, strict=True)
                }
                for worker, lists in zip(self.workers.values(), kept, strict=True)
            }
        for worker in self.workers.values():
            worker.wait()
        return Made(metrics=metrics)

    def stuck(self, seconds: float) -> EnvironmentFault | None:
        """An error if the environments of a worker have not answered for `seconds`."""
        pools = [worker.pool for worker in self.workers.values() if worker.pool is not None]
        return next((fault for pool in pools if (fault := pool.stuck(seconds))), None)

    def error(self, cause: BaseException) -> FragflowError:
        """Makes an error that says what failed, and where."""
        if isinstance(cause, FragflowError):
            return cause
        worker, where = self._where(cause)
        replicas = ",".join(map(str, worker.replicas))
        where = f"fragment {worker.name}[{replicas}] failed in {where}"
        return judged(cause, is_running=True, where=where)

    def _where(self, cause: BaseException) -> tuple[Worker, str]:
        first = next(iter(self.workers.values()))
        if self._script is None:
            return first, f"training ({first.name})"
        for frame in traceback.extract_tb(cause.__traceback__):
            doing = self._script.doing.get(frame.lineno or 0)
            if frame.filename == self._file and doing is not None:
                name, instruction = doing
                worker = self.workers[name]
                match instruction:
                    case Run(segment):
                        program = worker.programs[segment]
                        return worker, f"segment {program.name}, which runs {program.line}"
                    case Ask() | Keep() | RunOutOfOrder():
                        return worker, "a call of its environments"
                    case Put(transfer):
                        return worker, f"sending message {transfer.name} to {transfer.target}"
                    case Get(transfer):
                        return worker, f"receiving message {transfer.name} of {transfer.source}"
        return first, "its training loop"

    def _bound(self, script: DriverSource) -> dict[str, Any]:
        """The names that are defined for the source."""
        scope: dict[str, Any] = {}
        for name, (fragment, instruction) in script.functions.items():
            worker = self.workers[fragment]
            match instruction:
                case Run(segment):
                    scope[name] = worker.caller(worker.programs[segment])
                case Ask(call):
                    scope[name] = worker.asker(worker.part.host_calls[call])
                case RunOutOfOrder(out_of_order):
                    scope[name] = worker.out_of_order_rollout(out_of_order)
                case Put(transfer):
                    scope[name] = worker.sender(transfer)
                case Get(transfer):
                    scope[name] = worker.receiver(transfer)
        for name, fragment in script.numbers.items():
            scope[name] = self.workers[fragment].number
        for name, loops in script.steps.items():
            numbers = [self.workers[fragment].steps(loop) for fragment, loop in loops]
            plan = self.workers[loops[0][0]].part.loops[loops[0][1]]
            scope[name] = list(zip(plan.order, *numbers, strict=True))
        for name, (fragment, value) in script.rows.items():
            scope[name] = self.workers[fragment].room_for(value)
            scope[f"spread_{identifier(fragment)}"] = self.workers[fragment].spread_rows
        return scope
