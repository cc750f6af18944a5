"""The workers of an asynchronous run in threads of this process."""

from fragflow.graph.ir import FDG
from fragflow.runtime.asynchrony.async_driver import AsyncDriver, SlotChannels
from fragflow.runtime.drivers.codegen import generate
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.host_environments.pool import WorkerPool, close_pools, open_pools
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.protocols import Payload
from fragflow.runtime.traffic import Sent, together


def worker_alone(
    assembly: Assembly,
    name: str,
    index: int,
    channels: SlotChannels,
    pool: WorkerPool | None = None,
) -> Worker:
    """One asynchronous worker's fragment, with its part of the state; or the server's."""
    part = assembly.plan.parts[name]
    (layout,) = assembly.layouts(name)
    portion = (index, assembly.fdg.workers)
    # A worker's part of the state depends on its environments, as in a replicated fragment.
    values = assembly.first_values(part, layout, portion, assembly.fdg.row_kinds)
    programs = assembly.programs(name, layout)
    return Worker(assembly.fdg, part, [0], layout, programs, values, channels, pool)


class AsyncThreadWorkers:
    """A driver for each asynchronous worker; nothing but the server's queue is between them."""

    def __init__(self, fdg: FDG):
        """Opens the environments on the host; they are closed here."""
        self.pools = open_pools(fdg, fdg.workers)
        self.drivers: list[AsyncDriver] = []

    @property
    def sent(self) -> Sent:
        """The submissions of all workers, and the answers that they were given."""
        return together(driver.sent for driver in self.drivers)

    def start(self, assembly: Assembly) -> None:
        fdg = assembly.fdg
        team = [name for name in fdg.fragments if name != fdg.server]
        script = generate(fdg, assembly.plan, team)
        for w in range(fdg.workers):
            channels = SlotChannels()
            pools = {name: group[w] for name, group in self.pools.items()}
            workers = [worker_alone(assembly, n, w, channels, pools.get(n)) for n in team]
            driver = ThreadDriver(workers, script)
            self.drivers.append(AsyncDriver(fdg, driver, channels))

    def preload(self, message: str, sender: int, receiver: int, payload: Payload) -> None:
        """Refuses: asynchronous messages begin with the workers' own state."""
        del sender, receiver, payload
        raise AssertionError(f"message {message} is of an asynchronous run")

    def stop(self) -> None:
        """Does nothing: workers wait for the server's queue alone, which its runtime closes."""

    def close(self) -> None:
        close_pools(self.pools)
