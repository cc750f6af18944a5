"""Worker processes as actors of a Ray cluster, which places and watches them.

Messages do not go through Ray.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from fragflow.errors import ConfigError
from fragflow.remote.launch.cleanup import employ
from fragflow.remote.launch.cluster import Cluster, check_needs, need_of
from fragflow.remote.launch.launcher import Demand, Launcher, jax_settings, label_of
from fragflow.remote.launch.placement import Placement, totals
from fragflow.remote.launch.ray_actor import ConnectionInfo, WorkerActor
from fragflow.remote.launch.ray_connect import connected, import_ray
from fragflow.remote.protocol.control_channel import ControlChannel
from fragflow.remote.protocol.jobs import CODEC
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.remote.transport.endpoint import Network

ROOM_SECONDS = 60.0
"""time for a cluster to find room"""
WATCH_SECONDS = 0.2
"""interval at which Ray is asked whether an actor lives"""
NAME, COORDINATOR = "FRAGFLOW_WORKER", "FRAGFLOW_COORDINATOR"
"""environment variables that show the name of a process, and its coordinator"""
PASSED_ON = ("JAX_", "XLA_", "NPROC", "FRAGFLOW_")
"""prefixes of environment variables that change results"""


class RayLauncher(Launcher):
    """Starts actors in a placement group."""

    owns_devices = True

    def __init__(self, cluster: Cluster):
        super().__init__()
        self._ray = import_ray()
        self._cluster = cluster
        self._is_own = cluster.address is None and not self._ray.is_initialized()
        self._keys = zmq.curve_keypair()
        self._group: Any = None
        self._bundles: dict[str, int] = {}
        self._leave: Callable[[], None] = lambda: None
        self._run = f"fragflow-{os.getpid()}-{secrets.token_hex(8)}"
        # Not in TMPDIR: Ray's sockets lie deep below, and their paths have 107 bytes at most.
        short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
        self._own = Path(tempfile.mkdtemp(prefix=f"fragflow-ray-{os.getpid()}-", dir=short))
        """for a cluster of our own"""
        employ(self._own)

    def start(self, demands: Mapping[str, Demand], placement: Placement) -> None:
        fragments = sorted({f for d in demands.values() for f in d.fragments})
        names = frozenset().union(*(d.names for d in demands.values()))
        check_needs(self._cluster, fragments, names)
        needs = {name: self._need(demand) for name, demand in demands.items()}
        self._leave = connected(self._ray, self._cluster, totals(list(needs.values())), self._own)
        self._reserve(needs, placement)
        super().start(demands, placement)

    def _need(self, demand: Demand) -> dict[str, float]:
        need = need_of(self._cluster, demand.names, demand.devices)
        amounts = {"CPU": need.cpus, "GPU": need.gpus or 0.0, **need.resources}
        if not any(amounts.values()):
            raise ConfigError(
                f"the cluster's file has {', '.join(demand.fragments)} reserve nothing, which Ray "
                "cannot place: give it cpus, gpus or resources"
            )
        return amounts

    def _reserve(self, needs: Mapping[str, Mapping[str, float]], placement: Placement) -> None:
        """Reserves room for every process, before any is started."""
        bundles = [totals([needs[name] for name in site]) for site in placement.sites]
        self._bundles = {n: k for k, site in enumerate(placement.sites) for n in site}
        strategy = "PACK" if placement.is_packed else "SPREAD"
        self._group = self._ray.util.placement_group(bundles, strategy=strategy)
        if not self._group.wait(ROOM_SECONDS):
            free = self._ray.available_resources()
            raise ConfigError(
                f"the cluster has no room for {_words(bundles)} within {ROOM_SECONDS:.0f} "
                f"seconds: free are {_amounts(free)} on {len(self._ray.nodes())} nodes, part of "
                "which others may hold, or which no single node has"
            )

    def _launch(self, name: str, demand: Demand, incarnation: int) -> RemoteProcess:
        control = ControlChannel(self._context, CODEC)
        interface = self._cluster.interface or (
            "127.0.0.1" if self._is_own else self._ray.util.get_node_ip_address()
        )
        first, last = self._cluster.ports
        network = Network(interface=interface, first_port=first, last_port=last)
        control.bind_network(network, self._keys)
        connection = ConnectionInfo(
            endpoint=control.endpoint,
            server_key=self._keys[0].decode(),
            label=label_of(name, incarnation),
            directory=self._run,
            interface="127.0.0.1" if self._is_own else None,
            ports=self._cluster.ports,
        )
        need = self._need(demand)
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._bundles[name]
        )
        passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
        signs = {NAME: connection.label, COORDINATOR: str(os.getpid())}
        actor = self._ray.remote(WorkerActor).options(
            num_cpus=need.pop("CPU"),
            num_gpus=need.pop("GPU"),
            resources=need,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {**passed, **jax_settings(demand), **signs}},
            max_restarts=0,
        )
        return RemoteProcess(name, control, ActorProcess(self._ray, actor.remote(), connection))

    def _clear_up(self) -> None:
        if self._group is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.util.remove_placement_group(self._group)
        self._leave()
        shutil.rmtree(self._own, ignore_errors=True)


class ActorProcess:
    """A process that Ray has started."""

    def __init__(self, ray: Any, actor: Any, connection: ConnectionInfo):
        self._ray = ray
        self._actor = actor
        self._service = actor.serve.remote(connection)
        self._asked = 0.0
        self._how: str | None = None

    def how_it_ended(self) -> str | None:
        now = time.monotonic()
        if self._how is None and now - self._asked > WATCH_SECONDS:
            self._asked = now
            self._how = self._ask()
        return self._how

    def last_words(self) -> str:
        return ""

    def end(self, deadline: float) -> None:
        with contextlib.suppress(Exception):  # it may be gone, or the cluster
            rest = max(0.0, deadline - time.monotonic())
            self._ray.wait([self._service], timeout=rest)
            self._ray.kill(self._actor, no_restart=True)

    def _ask(self) -> str | None:
        try:
            ready, _ = self._ray.wait([self._service], timeout=0)
            if not ready:
                return None
            self._ray.get(self._service, timeout=1.0)
        except self._ray.exceptions.RayTaskError as error:
            return f"failed in its Ray actor: {_one_line(error.cause)}"
        except self._ray.exceptions.RayError as error:
            return f"was lost with its Ray actor: {_one_line(error)}"
        return "ended by itself"


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    return " | ".join(line for line in lines if line)[:600]


def _amounts(amounts: Mapping[str, float]) -> str:
    known = {k: v for k, v in amounts.items() if not k.startswith(("node:", "object_store"))}
    return ", ".join(f"{v:g} {k}" for k, v in known.items() if k != "memory") or "none"


def _words(bundles: Sequence[Mapping[str, float]]) -> str:
    return "; ".join(_amounts(bundle) for bundle in bundles)
