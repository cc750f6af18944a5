"""Workers that record what they are told and answer from a script: runtimes without computation."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fragflow.errors import FragflowError, RunError
from fragflow.graph.ir import FDG, Value
from fragflow.planned_run import Graph
from fragflow.runtime.drivers.assign_workers import WorkerSpec, assign_workers
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.planning.plan import FragmentPlan
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.protocols import Made, Metrics, Payload
from fragflow.runtime.traffic import Sent

Script = Callable[[str, int], None]
"""called before a driver makes an iteration, with its name; may wait or raise"""


@dataclass(frozen=True, kw_only=True)
class ScriptedWorker:
    """A worker whose state and rows say where they are from."""

    fdg: FDG
    part: FragmentPlan
    spec: WorkerSpec
    devices: Sequence[str] = ("cpu:0",)
    processor: str = "scripted"

    @property
    def name(self) -> str:
        return self.spec.fragment

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.spec.replicas

    def state(self) -> Mapping[Value, np.ndarray]:
        return {c.inside: self.array(c.inside) for c in self.part.fragment.loop.carries}

    def piece(self, value: Value, replica: int) -> np.ndarray:
        assert replica in self.replicas
        return self.array(value)

    def array(self, value: Value, iteration: int = 0) -> np.ndarray:
        """An array of the value's type that is full of its replica's and iteration's number."""
        aval = self.fdg.program.avals[self.part.fragment.extent][value]
        number = 100 * iteration + self.replicas[0]
        return np.full(aval.shape, number).astype(np.dtype(str(aval.dtype)))

    def rows(self, start: int, count: int) -> Metrics:
        return {
            stack.outside: [self.array(stack.element, start + k) for k in range(count)]
            for stack in self.part.fragment.loop.stacks
        }


@dataclass(kw_only=True)
class ScriptedDriver:
    """Records its calls."""

    name: str
    workers: Mapping[str, ScriptedWorker]
    script: Script
    calls: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    answers: list[Any] = field(default_factory=list[Any])
    submission: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    sent: Sent = field(default_factory=Sent)
    replacements: int = 0
    restarts: int = 0
    fault: RunError | None = None

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        self.calls.append((start, count))
        self.answers.append(answers)
        for index in range(start, start + count):
            self.script(self.name, index)
        metrics = {name: worker.rows(start, count) for name, worker in self.workers.items()}
        return Made(metrics=metrics, submission=self.submission)

    def stuck(self, seconds: float) -> FragflowError | None:
        return self.fault

    def error(self, cause: BaseException) -> FragflowError:
        return RunError(f"{self.name}: {cause}")


class ScriptedWorkers:
    """The workers of a plan, with a driver for each as threads have."""

    def __init__(self, graph: Graph, script: Script = lambda name, index: None):
        specs = [workers for workers, _ in assign_workers(graph.fdg, graph.plan)]
        self.drivers = [
            ScriptedDriver(
                name=f"{'+'.join(s.fragment for s in some)}[{some[0].replicas[0]}]",
                workers={
                    s.fragment: ScriptedWorker(
                        fdg=graph.fdg, part=graph.plan.parts[s.fragment], spec=s
                    )
                    for s in some
                },
                script=script,
            )
            for some in specs
        ]
        self.pools: Mapping[str, Sequence[Any]] = {}
        self.sent = Sent(messages=5, bytes=50)
        self.preloaded: list[tuple[str, int, int, Payload]] = []
        self.stopped = threading.Event()
        self.is_closed = False

    def start(self, assembly: Assembly) -> None:
        raise AssertionError("they are there")

    def preload(self, message: str, sender: int, receiver: int, payload: Payload) -> None:
        self.preloaded.append((message, sender, receiver, payload))

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.is_closed = True

    def wait_until_stopped(self) -> None:
        """As a driver that waits for a message when the run ends."""
        assert self.stopped.wait(timeout=10)
        raise Closed
