"""Runs a graph in processes: the same drivers as in threads, each in a process of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fragflow.graph.ir import FDG, Value
from fragflow.graph.replicas.kinds import Kind
from fragflow.remote.coordinator.processes import ProcessSpec, WorkerProcesses
from fragflow.remote.coordinator.remote_driver import RemoteDriver
from fragflow.remote.coordinator.replacement import ReplayingDriver, RestartingDriver, recovery_in
from fragflow.remote.protocol.exported import export_program
from fragflow.remote.protocol.jobs import FragmentJob, Job, thin_graph, thin_part
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.remote.transport.frames import arrays_of
from fragflow.runtime.asynchrony.runtime import AsyncRuntime
from fragflow.runtime.drivers.assign_workers import WorkerSpec
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.lagged import LaggedRuntime
from fragflow.runtime.lockstep import LocalRuntime
from fragflow.runtime.planning.plan import FragmentPlan, Plan
from fragflow.runtime.programs.layout import OneDevice
from fragflow.runtime.programs.prepare_workers import Assembly, devices_for


class InProcesses(LocalRuntime):
    """Starts drivers in processes instead of threads."""

    @property
    def processors(self) -> Sequence[tuple[str, str]]:
        """Each worker's fragment, and the model of its processor."""
        return [(worker.name, worker.processor) for worker in self._workers]

    @property
    def restarts(self) -> int:
        """The number of processes that were lost together with their episodes."""
        return sum(driver.restarts for driver in self._drivers)

    def __init__(self, fdg: FDG, *args: Any, processes: WorkerProcesses, **settings: Any):
        self._processes = processes
        super().__init__(fdg, *args, **{**settings, "pools": None})

    def _start(self, assembly: Assembly) -> list[Any]:
        routes = self._processes.routes()
        processes = self._processes.launcher.processes
        self._channels = _Preloading(
            self._processes, {route.key: processes[route.source] for route in routes}
        )
        return _start(self._processes, assembly, self.fdg.kinds, self._stall_timeout_seconds)

    @property
    def replacements(self) -> int:
        """The number of processes that were lost and replaced."""
        return _replacements(self._drivers)

    def close(self) -> None:
        self._channels.close()
        super().close()
        self._processes.close()


def _replacements(drivers: Sequence[Any]) -> int:
    return sum(getattr(driver, "replacements", 0) for driver in drivers)


class LaggedInProcesses(InProcesses, LaggedRuntime):
    """Runs a graph with late messages in processes."""


class AsyncInProcesses(AsyncRuntime):
    """Asynchronous workers in processes; their server is here, with the coordinator."""

    def __init__(self, fdg: FDG, *args: Any, processes: WorkerProcesses, **settings: Any):
        self._processes = processes
        super().__init__(fdg, *args, **{**settings, "pools": None})

    @property
    def replacements(self) -> int:
        """The number of processes that were lost and replaced."""
        return _replacements(self._async_drivers)

    def _start(self, plan: Plan) -> list[Any]:
        del plan
        # A worker's part of the state depends on its environments, as in a replicated fragment.
        kinds = {name: self.fdg.row_kinds for name in self.fdg.fragments}
        return _start(self._processes, self._assembly, kinds, self._stall_timeout_seconds)

    def close(self) -> None:
        self._processes.launcher.stop()
        super().close()
        self._processes.close()


def _start(
    processes: WorkerProcesses,
    assembly: Assembly,
    kinds: Mapping[str, Mapping[Value, Kind]],
    timeout_seconds: float,
) -> list[Any]:
    """Sends every process its job; the processes compile at the same time."""
    jobs = [_job(processes, spec, assembly, kinds, timeout_seconds) for spec in processes.specs]
    for spec, job in zip(processes.specs, jobs, strict=True):
        processes.process(spec).begin("job", job)
    replaceable = ReplayingDriver if processes.fdg.server is None else RestartingDriver
    drivers: list[RemoteDriver] = [
        replaceable(processes, spec, job)
        if spec.name in job.expendable
        else RemoteDriver(processes.process(spec), job, processes.partners(spec))
        for spec, job in zip(processes.specs, jobs, strict=True)
    ]
    for driver in drivers:
        for fragment, settled in driver.process.finish().items():
            assembly.found(fragment, settled.computed)
            driver.workers[fragment].devices = settled.devices
            driver.workers[fragment].processor = settled.processor
    return drivers


def _job(
    processes: WorkerProcesses,
    spec: ProcessSpec,
    assembly: Assembly,
    kinds: Mapping[str, Mapping[Value, Kind]],
    timeout_seconds: float,
) -> Job:
    fdg = processes.fdg
    parts = [assembly.plan.parts[worker.fragment] for worker in spec.workers]
    return Job(
        me=spec.name,
        fdg=thin_graph(fdg, parts),
        script=spec.script,
        part_jobs=tuple(
            _fragment_job(assembly, worker, kinds[worker.fragment]) for worker in spec.workers
        ),
        routes=tuple(
            route for route in processes.routes() if spec.name in (route.source, route.target)
        ),
        addresses=processes.addresses(),
        timeout_seconds=timeout_seconds,
        expendable=frozenset(s.name for s in processes.specs if recovery_in(fdg, s)),
    )


def _fragment_job(
    assembly: Assembly, worker: WorkerSpec, kinds: Mapping[Value, Kind]
) -> FragmentJob:
    part = assembly.plan.parts[worker.fragment]
    layouts = assembly.layouts(worker.fragment)
    layout = layouts[min(worker.index, len(layouts) - 1)]
    # A process of a group gets only its own part.
    where = OneDevice(device=jax.devices("cpu")[0]) if part.fragment.group else layout
    values = assembly.first_values(part, where, (worker.index, worker.count), kinds)
    constants = {c.output for c in part.fragment.constants}
    known_twice = {c.init for c in part.fragment.loop.carries}
    return FragmentJob(
        part=thin_part(part),
        replicas=worker.replicas,
        devices=_device_numbers(part, worker),
        programs=tuple(assembly.programs(worker.fragment, layout, export_program)),
        constants={v: np.asarray(a) for v, a in values.items() if v in constants},
        values={
            v: np.asarray(a)
            for v, a in values.items()
            if v not in constants and v not in known_twice
        },
    )


def _device_numbers(part: FragmentPlan, worker: WorkerSpec) -> tuple[int, ...]:
    fragment = part.fragment
    if fragment.device == "cpu":
        return tuple(range(len(worker.replicas)))  # a process has devices of its own
    everywhere, chosen = jax.devices(fragment.device), devices_for(fragment)
    return tuple(everywhere.index(chosen[replica]) for replica in worker.replicas)


class _Preloading:
    """Preloads late messages at their senders, so that replacements can ask for them again."""

    sent = Sent()
    """nothing: the senders send these messages, and count them"""

    def __init__(
        self,
        processes: WorkerProcesses,
        sources: Mapping[tuple[str, int, int], RemoteProcess],
    ):
        self._processes = processes
        self._sources = sources

    def open(self, message: str, sender: int, receiver: int) -> "_Preload":
        return _Preload(self._sources[message, sender, receiver], (message, sender, receiver))

    def close(self) -> None:
        """Wakes all processes that wait for messages."""
        self._processes.launcher.stop()


@dataclass(frozen=True, slots=True)
class _Preload:
    process: RemoteProcess
    key: tuple[str, int, int]

    def put(self, payload: Sequence[Any]) -> None:
        self.process.call("preload", (*self.key, arrays_of(payload)))
