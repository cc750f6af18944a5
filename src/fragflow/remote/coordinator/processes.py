"""The processes of a run: the workers in each, and the environments that they have opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragflow.graph.analyses.replaceable import host_of
from fragflow.graph.ir import FDG
from fragflow.remote.launch.launcher import Demand, Launcher
from fragflow.remote.launch.placement import place
from fragflow.remote.protocol.environment_recipes import recipe_of, search_path
from fragflow.remote.protocol.jobs import OpenEnvironments
from fragflow.remote.protocol.join_group import join_groups
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.remote.transport.endpoint import Address
from fragflow.remote.transport.mailbox import Route
from fragflow.runtime.drivers.assign_workers import WorkerSpec, assign_workers
from fragflow.runtime.drivers.codegen import DriverSource, generate, identifier
from fragflow.runtime.planning.message_pieces import fan
from fragflow.runtime.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process and the workers in it."""

    name: str
    workers: tuple[WorkerSpec, ...]
    script: DriverSource | None


class WorkerProcesses:
    """Starts all processes; those with environments on the host open them."""

    def __init__(self, fdg: FDG, plan: Plan, launcher: Launcher):
        self.fdg = fdg
        specs = _specs_of if fdg.server is None else _async_process_specs
        self.specs = specs(fdg, plan)
        self.launcher = launcher
        self.pools: dict[str, list[RemotePool]] = {}
        """by fragment, the environments of each of its workers"""
        self._opened: dict[str, list[RemotePool]] = {}
        """the same, by process"""
        try:
            demands = {spec.name: _demand(fdg, spec) for spec in self.specs}
            self.launcher.start(demands, place(fdg, list(demands), self.routes()))
            members = [(s.workers[0].fragment, self.process(s)) for s in self.specs]
            join_groups(fdg, members, launcher.owns_devices)
            self._open_environments()
        except BaseException:
            self.close()
            raise

    def process(self, spec: ProcessSpec) -> RemoteProcess:
        return self.launcher.processes[spec.name]

    def partners(self, spec: ProcessSpec) -> list[RemoteProcess]:
        """The other processes of its group, if it is in one."""
        name = spec.workers[0].fragment
        if not self.fdg.fragments[name].group:
            return []
        others = [s for s in self.specs if s is not spec and s.workers[0].fragment == name]
        return [self.process(other) for other in others]

    def replace(self, spec: ProcessSpec, incarnation: int) -> RemoteProcess:
        """Starts a process in the place of a lost one; its environments on the host begin anew."""
        process = self.launcher.replace(spec.name, incarnation)
        for pool in self._opened.get(spec.name, ()):
            pool.open_again(process)
        return process

    def addresses(self) -> dict[str, Address]:
        """The address of each process."""
        return {name: process.address for name, process in self.launcher.processes.items()}

    def routes(self) -> list[Route]:
        """Every route of every message between two processes.

        Asynchronous workers have none: they exchange messages with the coordinator.
        """
        if self.fdg.server is not None:
            return []
        homes = {
            (worker.fragment, replica): spec.name
            for spec in self.specs
            for worker in spec.workers
            for replica in worker.replicas
        }
        routes: list[Route] = []
        for transfer in self.fdg.transfers:
            source, target = (self.fdg.fragments[f] for f in (transfer.source, transfer.target))
            for sender, receiver in fan(self.fdg, transfer).routes:
                ends = homes[source.name, sender], homes[target.name, receiver]
                if ends[0] != ends[1]:
                    route = (transfer.name, sender, receiver)
                    number = len(routes)
                    routes.append(Route(number=number, key=route, source=ends[0], target=ends[1]))
        return routes

    def close(self) -> None:
        self.launcher.close()

    def _open_environments(self) -> None:
        for spec in self.specs:
            for worker in spec.workers:
                fragment = self.fdg.fragments[worker.fragment]
                host = host_of(fragment)
                if host is None:
                    continue
                # Asynchronous workers have a graph each, of their own environments only.
                size = fragment.num_envs * len(worker.replicas)
                ids = range(worker.index * size, (worker.index + 1) * size)
                request = OpenEnvironments(
                    fragment=worker.fragment,
                    environment=recipe_of(host.environment, f"environment {host.name}"),
                    ids=tuple(ids),
                    one_by_one=fragment.first is not None,
                    path=tuple(search_path()),
                )
                pool = RemotePool(self.process(spec), request)
                self.pools.setdefault(worker.fragment, []).append(pool)
                self._opened.setdefault(spec.name, []).append(pool)


class RemotePool:
    """Environments in another process, which are asked for their first observations from here."""

    def __init__(self, process: RemoteProcess, request: OpenEnvironments):
        self._process = process
        self._opening = request
        self._first: Any = None
        process.call("open", request)

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]:
        question = (self._opening.fragment, method, [np.asarray(a) for a in args])
        if method == "reset":
            self._first = question
        return self._process.call("ask", question)

    def open_again(self, process: RemoteProcess) -> None:
        """Opens them in the replacement of a lost process, and resets them as at first."""
        self._process = process
        process.call("open", self._opening)
        if self._first is not None:
            process.call("ask", self._first)


def _specs_of(fdg: FDG, plan: Plan) -> list[ProcessSpec]:
    """A process for each driver; here every replica of a group has a driver of its own."""
    specs = []
    for workers, script in assign_workers(fdg, plan, divide_groups=True):
        name = "+".join(worker.fragment for worker in workers)
        if len(workers) == 1 and workers[0].count > 1:
            name = f"{name}-{workers[0].index}"
        specs.append(ProcessSpec(name=identifier(name), workers=tuple(workers), script=script))
    return specs


def _async_process_specs(fdg: FDG, plan: Plan) -> list[ProcessSpec]:
    """A process for each asynchronous worker; the server stays with the coordinator."""
    team = [name for name in fdg.fragments if name != fdg.server]
    script = generate(fdg, plan, team)
    return [
        ProcessSpec(
            name=f"worker_{w}",
            workers=tuple(
                WorkerSpec(fragment=name, index=w, count=fdg.workers, replicas=(0,))
                for name in team
            ),
            script=script,
        )
        for w in range(fdg.workers)
    ]


def _demand(fdg: FDG, spec: ProcessSpec) -> Demand:
    devices: dict[str, int] = {}
    fragments = [fdg.fragments[worker.fragment] for worker in spec.workers]
    for fragment, worker in zip(fragments, spec.workers, strict=True):
        platform = fragment.device
        devices[platform] = max(devices.get(platform, 0), len(worker.replicas))
    return Demand(
        fragments=tuple(fragment.name for fragment in fragments),
        names=frozenset(name for f in fragments for name in (f.name, *f.places)),
        devices=devices,
    )
