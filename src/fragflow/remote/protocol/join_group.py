"""Replicas of a group in processes of their own, whose devices JAX sees as one mesh.

Their exchange bypasses our messages: it goes through gloo between CPUs, NCCL between GPUs. Neither
encrypts, and anyone who reaches their ports can join, so they listen only at the run's interface.
"""

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from fragflow._jax_process import collect_at
from fragflow.errors import RunError
from fragflow.graph.ir import FDG
from fragflow.remote.protocol.process_client import START_SECONDS, RemoteProcess
from fragflow.remote.transport.endpoint import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A process's place in a group."""

    leader: str
    """host:port at which the first process keeps the group's register"""
    rank: int
    size: int
    devices: tuple[int, ...] | None
    """numbers of its accelerators on this machine; None: all that the process sees"""


def join_groups(
    fdg: FDG, processes: Sequence[tuple[str, RemoteProcess]], owns_devices: bool
) -> None:
    """Joins the processes of each group: (fragment, process) in the order of their replicas."""
    for fragment in fdg.fragments.values():
        members = [process for name, process in processes if name == fragment.name]
        if not fragment.group or len(members) < 2:
            continue
        leader = members[0].call("endpoint")
        is_shared = fragment.device != "cpu" and not owns_devices
        for rank, member in enumerate(members):
            number = fragment.first_device + rank
            member.begin(
                "join",
                Membership(
                    leader=leader,
                    rank=rank,
                    size=len(members),
                    devices=(number,) if is_shared else None,
                ),
            )
        for member in members:
            member.finish()


def free_endpoint(network: Network) -> str:
    """Finds an address at which nobody listens: if a port is in use, JAX ends the process."""
    last = network.last_port + 1
    for port in range(network.first_port, last) if network.first_port else (0,):
        family = socket.AF_INET6 if ":" in network.interface else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((network.interface, port))
            return _endpoint(network.interface, probe.getsockname()[1])
    raise RunError(
        f"no port of {network.interface} is free for a group of learners"
        f" between {network.first_port} and {network.last_port}: allow more of them (ports, in the "
        "cluster's file)"
    )


def join(membership: Membership, network: Network) -> None:
    """Adds this process's devices to those of its group, before JAX has looked for any."""
    # So that a lost partner is an error here, not the end of the process.
    jax.config.update("jax_enable_recoverability", True)
    collect_at(network.interface)
    try:
        jax.distributed.initialize(
            coordinator_address=membership.leader,
            coordinator_bind_address=membership.leader,
            num_processes=membership.size,
            process_id=membership.rank,
            local_device_ids=membership.devices,
            cluster_detection_method="deactivate",
            initialization_timeout=int(START_SECONDS),
        )
        found = len(jax.devices())  # waits for all
    except Exception as error:
        raise RunError(
            f"could not join the group of {membership.size} processes at {membership.leader}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if found < membership.size:
        raise RunError(f"a group of {membership.size} processes has only {found} devices")


def _endpoint(interface: str, port: int) -> str:
    return f"[{interface}]:{port}" if ":" in interface else f"{interface}:{port}"
