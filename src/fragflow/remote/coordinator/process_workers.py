"""The workers of a run in processes: the same as in threads, each with a process of its own."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fragflow.graph.ir import FDG, Value
from fragflow.graph.replicas.kinds import Kind
from fragflow.remote.coordinator.processes import ProcessSpec, WorkerProcesses
from fragflow.remote.coordinator.remote_driver import RemoteDriver
from fragflow.remote.coordinator.replacement import ReplayingDriver, RestartingDriver, recovery_in
from fragflow.remote.launch.launcher import Launcher
from fragflow.remote.protocol.exported import export_program
from fragflow.remote.protocol.jobs import FragmentJob, Job, Settled, thin_graph, thin_part
from fragflow.remote.transport.frames import arrays_of
from fragflow.remote.transport.mailbox import LARGE_BYTES
from fragflow.runtime.drivers.assign_workers import WorkerSpec
from fragflow.runtime.host_environments.pool import AnsweringPool
from fragflow.runtime.planning.plan import FragmentPlan, Plan
from fragflow.runtime.programs.layout import OneDevice
from fragflow.runtime.programs.prepare_workers import Assembly, devices_for
from fragflow.runtime.protocols import Driver, Payload
from fragflow.runtime.traffic import Sent, together


class ProcessWorkers:
    """Workers in processes that a launcher starts; the server of an asynchronous run is here."""

    def __init__(
        self,
        fdg: FDG,
        plan: Plan,
        launcher: Launcher,
        stall_timeout_seconds: float = 120.0,
        large_bytes: int = LARGE_BYTES,
    ):
        """Starts all processes, which open their environments; all are ended here.

        Messages of `large_bytes` go through shared memory, where there is one.
        """
        self._large_bytes = large_bytes
        self.drivers: list[Driver] = []
        self._stall_timeout_seconds = stall_timeout_seconds
        self._processes = WorkerProcesses(fdg, plan, launcher)

    @property
    def pools(self) -> Mapping[str, Sequence[AnsweringPool]]:
        return self._processes.pools

    @property
    def sent(self) -> Sent:
        return together(driver.sent for driver in self.drivers)

    def start(self, assembly: Assembly) -> None:
        """Sends every process its job; the processes compile at the same time."""
        fdg, processes = assembly.fdg, self._processes
        jobs = [self._job(spec, assembly) for spec in processes.specs]
        for spec, job in zip(processes.specs, jobs, strict=True):
            processes.process(spec).begin("job", job)
        for spec, job in zip(processes.specs, jobs, strict=True):
            settled: Mapping[str, Settled] = processes.process(spec).finish()
            for fragment, facts in settled.items():
                assembly.found(fragment, facts.computed)
            if spec.name not in job.expendable:
                partners = processes.partners(spec)
                driver: Driver = RemoteDriver(processes.process(spec), job, settled, partners)
            elif fdg.server is None:
                driver = ReplayingDriver(processes, spec, job, settled)
            else:
                driver = RestartingDriver(processes, spec, job, settled)
            self.drivers.append(driver)

    def _job(self, spec: ProcessSpec, assembly: Assembly) -> Job:
        fdg, processes = assembly.fdg, self._processes
        # An asynchronous worker's part of the state depends on its environments, as in a replicated
        # fragment.
        kinds = fdg.kinds if fdg.server is None else dict.fromkeys(fdg.fragments, fdg.row_kinds)
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
            timeout_seconds=self._stall_timeout_seconds,
            large_bytes=self._large_bytes,
            expendable=frozenset(s.name for s in processes.specs if recovery_in(fdg, s)),
        )

    def preload(self, message: str, sender: int, receiver: int, payload: Payload) -> None:
        """Puts a first message at its sender, so that a replacement can ask for it again."""
        key = (message, sender, receiver)
        route = next(route for route in self._processes.routes() if route.key == key)
        process = self._processes.launcher.processes[route.source]
        process.call("preload", (*key, arrays_of(payload)))

    def stop(self) -> None:
        self._processes.launcher.stop()

    def close(self) -> None:
        self._processes.close()


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
