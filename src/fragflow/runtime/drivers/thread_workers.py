"""The workers of a run in this process: drivers for threads, and queues between them."""

from collections.abc import Mapping, Sequence

from fragflow.graph.ir import FDG
from fragflow.runtime.drivers.assign_workers import WorkerSpec, assign_workers
from fragflow.runtime.drivers.channels import QueueChannels
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.host_environments.pool import WorkerPool, close_pools, open_pools
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.protocols import Payload
from fragflow.runtime.traffic import Sent, together


class ThreadWorkers:
    """Workers that exchange messages within this process."""

    def __init__(
        self,
        fdg: FDG,
        stall_timeout_seconds: float = 120.0,
        pools: Mapping[str, Sequence[WorkerPool]] | None = None,
    ):
        """Opens the environments on the host, unless there are `pools`; they are closed here."""
        self.pools: Mapping[str, Sequence[WorkerPool]]
        self.pools = open_pools(fdg) if pools is None else pools
        self.drivers: list[ThreadDriver] = []
        self._channels = QueueChannels(stall_timeout_seconds)

    @property
    def sent(self) -> Sent:
        return together([self._channels.sent, *(driver.sent for driver in self.drivers)])

    def start(self, assembly: Assembly) -> None:
        """Compiles all programs, and makes a driver for each thread."""
        self.drivers = [
            ThreadDriver([self._worker(assembly, spec) for spec in specs], script)
            for specs, script in assign_workers(assembly.fdg, assembly.plan)
        ]

    def preload(self, message: str, sender: int, receiver: int, payload: Payload) -> None:
        self._channels.open(message, sender, receiver).put(payload)

    def stop(self) -> None:
        self._channels.close()

    def close(self) -> None:
        close_pools(self.pools)

    def _worker(self, assembly: Assembly, spec: WorkerSpec) -> Worker:
        part = assembly.plan.parts[spec.fragment]
        layout = assembly.layouts(spec.fragment)[spec.index]
        kinds = assembly.fdg.kinds[spec.fragment]
        pools = self.pools.get(spec.fragment)
        return Worker(
            assembly.fdg,
            part,
            spec.replicas,
            layout,
            assembly.programs(spec.fragment, layout),
            assembly.first_values(part, layout, (spec.index, spec.count), kinds),
            self._channels,
            pools[spec.index] if pools else None,
        )
