"""The processes of a run: which workers live in which, and environments that they have opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragflow.graph.analyses.recovery import host_of
from fragflow.graph.ir import FDG
from fragflow.remote.launch.launcher import Demand, Launcher
from fragflow.remote.launch.placement import place
from fragflow.remote.protocol.groups import join_groups
from fragflow.remote.protocol.jobs import Hosting
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.remote.protocol.recipes import recipe_of, search_path
from fragflow.remote.transport.endpoint import Address
from fragflow.remote.transport.mailbox import LaneInfo
from fragflow.runtime.drivers.assignment import Station, rosters
from fragflow.runtime.drivers.codegen import Script, identifier, write
from fragflow.runtime.planning.messages import fan
from fragflow.runtime.planning.plan import Plan, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """A process and the workers in it."""

    name: str
    stations: tuple[Station, ...]
    script: Script | None


class Fleet:
    """Starts all processes; those with environments on the host open them."""

    def __init__(self, fdg: FDG, launcher: Launcher):
        self.fdg = fdg
        self.plan: Plan = make_plan(fdg)
        self.berths = _berths(fdg, self.plan) if fdg.server is None else _hands(fdg, self.plan)
        self.launcher = launcher
        self.pools: dict[str, list[RemotePool]] = {}
        """by fragment, the environments of each of its workers"""
        self._opened: dict[str, list[RemotePool]] = {}
        """by process"""
        try:
            demands = {berth.name: _demand(fdg, berth) for berth in self.berths}
            self.launcher.start(demands, place(fdg, list(demands), self.lanes()))
            members = [(b.stations[0].fragment, self.process(b)) for b in self.berths]
            join_groups(fdg, members, launcher.owns_devices)
            self._open_environments()
        except BaseException:
            self.close()
            raise

    def process(self, berth: Berth) -> RemoteProcess:
        return self.launcher.processes[berth.name]

    def partners(self, berth: Berth) -> list[RemoteProcess]:
        """The other processes of its group, if it is in one."""
        name = berth.stations[0].fragment
        if not self.fdg.fragments[name].group:
            return []
        others = [b for b in self.berths if b is not berth and b.stations[0].fragment == name]
        return [self.process(other) for other in others]

    def replace(self, berth: Berth, incarnation: int) -> RemoteProcess:
        """A new process in the place of a lost one; environments on the host begin anew there."""
        process = self.launcher.replace(berth.name, incarnation)
        for pool in self._opened.get(berth.name, ()):
            pool.open_again(process)
        return process

    def addresses(self) -> dict[str, Address]:
        """Where each process receives messages."""
        return {name: process.address for name, process in self.launcher.processes.items()}

    def lanes(self) -> list[LaneInfo]:
        """Every route of every message between two processes.

        Asynchronous workers have none: they exchange messages with the coordinator.
        """
        if self.fdg.server is not None:
            return []
        homes = {
            (station.fragment, replica): berth.name
            for berth in self.berths
            for station in berth.stations
            for replica in station.replicas
        }
        lanes: list[LaneInfo] = []
        for transfer in self.fdg.transfers:
            source, target = (self.fdg.fragments[f] for f in (transfer.source, transfer.target))
            for sender, receiver in fan(self.fdg, transfer).routes:
                ends = homes[source.name, sender], homes[target.name, receiver]
                if ends[0] != ends[1]:
                    route = (transfer.name, sender, receiver)
                    number = len(lanes)
                    lanes.append(
                        LaneInfo(number=number, route=route, source=ends[0], target=ends[1])
                    )
        return lanes

    def close(self) -> None:
        self.launcher.close()

    def _open_environments(self) -> None:
        for berth in self.berths:
            for station in berth.stations:
                fragment = self.fdg.fragments[station.fragment]
                host = host_of(fragment)
                if host is None:
                    continue
                # Asynchronous workers have a graph each, of their own environments only.
                size = fragment.num_envs * len(station.replicas)
                ids = range(station.index * size, (station.index + 1) * size)
                hosting = Hosting(
                    fragment=station.fragment,
                    environment=recipe_of(host.environment, f"environment {host.name}"),
                    ids=tuple(ids),
                    in_turns=fragment.first is not None,
                    path=tuple(search_path()),
                )
                pool = RemotePool(self.process(berth), hosting)
                self.pools.setdefault(station.fragment, []).append(pool)
                self._opened.setdefault(berth.name, []).append(pool)


class RemotePool:
    """Environments in another process, to be asked for their first observations."""

    def __init__(self, process: RemoteProcess, hosting: Hosting):
        self._process = process
        self._hosting = hosting
        self._first: Any = None
        process.call("host", hosting)

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]:
        question = (self._hosting.fragment, method, [np.asarray(a) for a in args])
        if method == "reset":
            self._first = question
        return self._process.call("ask", question)

    def open_again(self, process: RemoteProcess) -> None:
        """In a process that takes the place of a lost one, as they were at first."""
        self._process = process
        process.call("host", self._hosting)
        if self._first is not None:
            process.call("ask", self._first)


def _berths(fdg: FDG, plan: Plan) -> list[Berth]:
    """A process for each crew; every replica of a group is a crew of its own here."""
    berths = []
    for stations, script in rosters(fdg, plan, divide_groups=True):
        name = "+".join(station.fragment for station in stations)
        if len(stations) == 1 and stations[0].count > 1:
            name = f"{name}-{stations[0].index}"
        berths.append(Berth(name=identifier(name), stations=tuple(stations), script=script))
    return berths


def _hands(fdg: FDG, plan: Plan) -> list[Berth]:
    """A process for each asynchronous worker; the server stays with the coordinator."""
    team = [name for name in fdg.fragments if name != fdg.server]
    script = write(fdg, plan, team)
    return [
        Berth(
            name=f"worker_{w}",
            stations=tuple(
                Station(fragment=name, index=w, count=fdg.workers, replicas=(0,)) for name in team
            ),
            script=script,
        )
        for w in range(fdg.workers)
    ]


def _demand(fdg: FDG, berth: Berth) -> Demand:
    devices: dict[str, int] = {}
    for station in berth.stations:
        platform = fdg.fragments[station.fragment].device
        devices[platform] = max(devices.get(platform, 0), len(station.replicas))
    return Demand(fragments=tuple(station.fragment for station in berth.stations), devices=devices)
