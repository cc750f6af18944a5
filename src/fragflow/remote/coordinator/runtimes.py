"""Runs a graph in processes: the same crews as in threads, each in a process of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fragflow.graph.ir import FDG, Value
from fragflow.graph.replicas.kinds import Kind
from fragflow.remote.coordinator.drivers import RemoteCrew
from fragflow.remote.coordinator.processes import Berth, Fleet
from fragflow.remote.coordinator.recovery import ExpendableCrew, RestartingCrew, recovery_in
from fragflow.remote.protocol.exported import ship
from fragflow.remote.protocol.jobs import Duty, Order, thin_graph, thin_part
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.remote.transport.frames import arrays_of
from fragflow.runtime.asynchrony.runtime import AsyncRuntime
from fragflow.runtime.drivers.assignment import Station
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.lagged import LaggedRuntime
from fragflow.runtime.lockstep import LocalRuntime
from fragflow.runtime.planning.plan import Part, Plan
from fragflow.runtime.programs.assembly import Assembly, devices_for
from fragflow.runtime.programs.layout import OneDevice


class InProcesses(LocalRuntime):
    """Starts crews in processes instead of threads."""

    @property
    def processors(self) -> Sequence[tuple[str, str]]:
        """Each worker's fragment, and the model that it computes on."""
        return [(worker.name, worker.processor) for worker in self._workers]

    @property
    def restarts(self) -> int:
        """Processes that were lost, with their episodes."""
        return sum(crew.restarts for crew in self._crews)

    def __init__(self, fdg: FDG, *args: Any, fleet: Fleet, **settings: Any):
        self._fleet = fleet
        super().__init__(fdg, *args, **{**settings, "pools": None})

    def _start(self, assembly: Assembly) -> list[Any]:
        lanes = self._fleet.lanes()
        processes = self._fleet.launcher.processes
        self._channels = _Preloading(
            self._fleet, {lane.route: processes[lane.source] for lane in lanes}
        )
        return _start(self._fleet, assembly, self.fdg.kinds, self._stall_timeout_seconds)

    @property
    def replacements(self) -> int:
        """Processes that were lost, and replaced."""
        return _replacements(self._crews)

    def close(self) -> None:
        self._channels.close()
        super().close()
        self._fleet.close()


def _replacements(crews: Sequence[Any]) -> int:
    return sum(getattr(crew, "replacements", 0) for crew in crews)


class LaggedInProcesses(InProcesses, LaggedRuntime):
    """With messages that are late."""


class AsyncInProcesses(AsyncRuntime):
    """Asynchronous workers in processes; their server is here, with the coordinator."""

    def __init__(self, fdg: FDG, *args: Any, fleet: Fleet, **settings: Any):
        self._fleet = fleet
        super().__init__(fdg, *args, **{**settings, "pools": None})

    @property
    def replacements(self) -> int:
        """Processes that were lost, and replaced."""
        return _replacements(self._hands)

    def _start(self, plan: Plan) -> list[Any]:
        del plan
        # What a worker has of the state depends on its environments, as in a replicated fragment.
        kinds = {name: self.fdg.row_kinds for name in self.fdg.fragments}
        return _start(self._fleet, self._assembly, kinds, self._stall_timeout_seconds)

    def close(self) -> None:
        self._fleet.launcher.stop()
        super().close()
        self._fleet.close()


def _start(
    fleet: Fleet,
    assembly: Assembly,
    kinds: Mapping[str, Mapping[Value, Kind]],
    timeout_seconds: float,
) -> list[Any]:
    """Tells every process what to do; they compile at the same time."""
    orders = [_order(fleet, berth, assembly, kinds, timeout_seconds) for berth in fleet.berths]
    for berth, order in zip(fleet.berths, orders, strict=True):
        fleet.process(berth).begin("order", order)
    replaceable = ExpendableCrew if fleet.fdg.server is None else RestartingCrew
    crews: list[RemoteCrew] = [
        replaceable(fleet, berth, order)
        if berth.name in order.expendable
        else RemoteCrew(fleet.process(berth), order, fleet.partners(berth))
        for berth, order in zip(fleet.berths, orders, strict=True)
    ]
    for crew in crews:
        for fragment, settled in crew.process.finish().items():
            assembly.found(fragment, settled.computed)
            crew.workers[fragment].devices = settled.devices
            crew.workers[fragment].processor = settled.processor
    return crews


def _order(
    fleet: Fleet,
    berth: Berth,
    assembly: Assembly,
    kinds: Mapping[str, Mapping[Value, Kind]],
    timeout_seconds: float,
) -> Order:
    fdg = fleet.fdg
    parts = [assembly.plan.parts[station.fragment] for station in berth.stations]
    return Order(
        me=berth.name,
        fdg=thin_graph(fdg, parts),
        script=berth.script,
        duties=tuple(
            _duty(assembly, station, kinds[station.fragment]) for station in berth.stations
        ),
        lanes=tuple(lane for lane in fleet.lanes() if berth.name in (lane.source, lane.target)),
        addresses=fleet.addresses(),
        timeout_seconds=timeout_seconds,
        expendable=frozenset(b.name for b in fleet.berths if recovery_in(fdg, b)),
    )


def _duty(assembly: Assembly, station: Station, kinds: Mapping[Value, Kind]) -> Duty:
    part = assembly.plan.parts[station.fragment]
    layouts = assembly.layouts(station.fragment)
    layout = layouts[min(station.index, len(layouts) - 1)]
    # Of a group, every process gets its part only.
    where = OneDevice(device=jax.devices("cpu")[0]) if part.fragment.group else layout
    values = assembly.first_values(part, where, (station.index, station.count), kinds)
    constants = {c.output for c in part.fragment.constants}
    known_twice = {c.init for c in part.fragment.loop.carries}
    return Duty(
        part=thin_part(part),
        replicas=station.replicas,
        devices=_device_numbers(part, station),
        programs=tuple(assembly.programs(station.fragment, layout, ship)),
        constants={v: np.asarray(a) for v, a in values.items() if v in constants},
        values={
            v: np.asarray(a)
            for v, a in values.items()
            if v not in constants and v not in known_twice
        },
    )


def _device_numbers(part: Part, station: Station) -> tuple[int, ...]:
    fragment = part.fragment
    if fragment.device == "cpu":
        return tuple(range(len(station.replicas)))  # a process has devices of its own
    everywhere, chosen = jax.devices(fragment.device), devices_for(fragment)
    return tuple(everywhere.index(chosen[replica]) for replica in station.replicas)


class _Preloading:
    """Preloads late messages at their senders, so that replacements can ask for them again."""

    sent = Sent()
    """nothing: it is the senders that send, and count it"""

    def __init__(self, fleet: Fleet, sources: Mapping[tuple[str, int, int], RemoteProcess]):
        self._fleet = fleet
        self._sources = sources

    def open(self, message: str, sender: int, receiver: int) -> "_Preload":
        return _Preload(self._sources[message, sender, receiver], (message, sender, receiver))

    def close(self) -> None:
        """Wakes all who wait for messages."""
        self._fleet.launcher.stop()


@dataclass(frozen=True, slots=True)
class _Preload:
    process: RemoteProcess
    route: tuple[str, int, int]

    def put(self, payload: Sequence[Any]) -> None:
        self.process.call("preload", (*self.route, arrays_of(payload)))
