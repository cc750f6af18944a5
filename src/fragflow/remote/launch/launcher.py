"""Launchers start, replace and end all processes of a run."""

import contextlib
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from fragflow._jax_process import setting
from fragflow.errors import FragflowError
from fragflow.remote.launch.placement import Placement
from fragflow.remote.protocol.process_client import GRACE_SECONDS, START_SECONDS, RemoteProcess

MAX_NAME_LENGTH = 40
"""of a process, in file names: one with many fragments is named after all of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The needs of a process."""

    fragments: tuple[str, ...]
    names: frozenset[str]
    """names for it in a cluster's file: its fragments, and the policy's places in them"""
    devices: Mapping[str, int]
    """by platform, the number that it computes on"""


class Launcher(ABC):
    """Starts processes somewhere, and leaves nothing behind."""

    owns_devices = False
    """True if a process sees only the accelerators that are its own"""

    def __init__(self) -> None:
        self.processes: dict[str, RemoteProcess] = {}
        self._context: Any = zmq.Context()
        self._demands: dict[str, Demand] = {}

    def start(self, demands: Mapping[str, Demand], placement: Placement) -> None:
        """Starts a process of each name, and waits for all of them.

        `placement` says which should be on one host, if there are several.
        """
        del placement
        self._demands = dict(demands)
        deadline = time.monotonic() + START_SECONDS
        for name, demand in demands.items():
            self.processes[name] = self._launch(name, demand, 0)
        for process in self.processes.values():
            process.wait_ready(deadline)

    def replace(self, name: str, incarnation: int) -> RemoteProcess:
        """Starts a process in the place of one that is lost."""
        old = self.processes[name]
        old.reap(time.monotonic())
        new = self._launch(name, self._demands[name], incarnation)
        new.is_closing = old.is_closing
        new.address = old.address  # others may ask before it is ready; they are told of the move
        self.processes[name] = new
        new.wait_ready(time.monotonic() + START_SECONDS)
        return new

    def stop(self) -> None:
        """Wakes all processes that wait for one another."""
        for process in self.processes.values():
            process.is_closing = True

    def close(self) -> None:
        """Ends all processes, and removes their files."""
        for process in self.processes.values():
            with contextlib.suppress(FragflowError, zmq.ZMQError):
                process.end()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self.processes.values():
            process.reap(deadline)
        self._context.destroy(linger=0)
        self._clear_up()

    @abstractmethod
    def _launch(self, name: str, demand: Demand, incarnation: int) -> RemoteProcess:
        """Starts a process, which says when it is ready."""

    @abstractmethod
    def _clear_up(self) -> None:
        """Removes all that is left when the processes have ended."""


def label_of(name: str, incarnation: int) -> str:
    """The name of a process's files. Short: the path of a socket has 107 bytes at most."""
    if len(name) > MAX_NAME_LENGTH:
        digest = f"{zlib.crc32(name.encode()):08x}"
        name = f"{name[: MAX_NAME_LENGTH - len(digest) - 1]}_{digest}"
    return f"{name}.{incarnation}"


def jax_settings(demand: Demand) -> dict[str, str]:
    """Environment variables that set up JAX in a process as it is here."""
    found = {"JAX_NUM_CPU_DEVICES": str(demand.devices.get("cpu", 1))}
    for name in (
        *("jax_cpu_enable_async_dispatch", "jax_enable_x64", "jax_disable_most_optimizations"),
        *("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"),
        "jax_persistent_cache_enable_xla_caches",
    ):
        value = setting(name)
        if value is not None:
            found[name.upper()] = str(value)
    return found
