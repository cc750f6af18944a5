"""The local runtime: one process, a thread for each driver, JAX devices."""

import functools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from typing import Any

import jax
import numpy as np

from fragflow.graph.ir import FDG, Carry, Value
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.runtime.drivers.assign_workers import WorkerSpec, assign_workers
from fragflow.runtime.drivers.channels import Closed, QueueChannels
from fragflow.runtime.drivers.driver import Driver
from fragflow.runtime.drivers.threads import POLL_SECONDS, JobThread
from fragflow.runtime.drivers.traffic import Sent, together
from fragflow.runtime.drivers.worker import Metrics, Worker
from fragflow.runtime.host_environments.pool import HostPool, close_pools
from fragflow.runtime.observer import Devices, Results
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.programs.layout import kind_of
from fragflow.runtime.programs.prepare_workers import Assembly, Progress

GRACE_SECONDS = 5.0
"""time that threads have to end by themselves"""


class LocalRuntime:
    """Runs a graph in this process."""

    def __init__(
        self,
        fdg: FDG,
        state: Mapping[Value, np.ndarray | jax.Array],
        sources: Mapping[Value, np.ndarray],
        *,
        pools: Mapping[str, Sequence[HostPool]] | None = None,
        row_kinds: Mapping[Value, Kind] | None = None,
        stall_timeout_seconds: float = 120.0,
        implementations: Mapping[str, str] | None = None,
        optimisations: Optimisations = ALL_OPTIMISATIONS,
        compiler_options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ):
        """`state` holds the first value of every state leaf, `row_kinds` asks for blocks.

        `pools` are the environments on the host, by fragment and replica; they are closed here.
        """
        self.fdg = fdg
        self._pools = pools or {}
        self.plan: Plan = make_plan(fdg, optimisations)
        assembly = Assembly(
            fdg,
            self.plan,
            state,
            sources,
            row_kinds=row_kinds,
            implementations=implementations,
            compiler_options=compiler_options,
            progress=progress,
        )
        self._stall_timeout_seconds = stall_timeout_seconds
        self._channels: Any = None
        self._drivers: list[Any] = self._start(assembly)
        self._workers = _in_order_of(self.plan, self._drivers)
        self.num_programs = assembly.num_programs
        self.picks = assembly.picks
        self._threads = [JobThread(f"fragment {'+'.join(d.workers)}") for d in self._drivers]
        self._failure: tuple[Driver, BaseException] | None = None
        self._lock = threading.Lock()
        self.total_iterations = int(sources["total_iterations"])

    @property
    def sent(self) -> Sent:
        """The traffic between replicas, counted by its senders."""
        return together([self._channels.sent, *(driver.sent for driver in self._drivers)])

    @property
    def devices(self) -> Devices:
        return devices_of(self._workers)

    def run(self, start: int, count: int) -> list[Results]:
        """Runs `count` iterations; returns the results of each."""
        futures = [
            thread.submit(functools.partial(self._drive, driver, start, count))
            for thread, driver in zip(self._threads, self._drivers, strict=True)
        ]
        self._await(futures)
        self._raise_failure()
        results = {w: m for future in futures for w, m in future.result().items()}
        return self._metrics([results[worker] for worker in self._workers], count)

    def settle(self, made: int) -> list[Results]:
        """Returns no results: no iteration is under way after `run`."""
        del made
        return []

    def state(self) -> dict[Value, np.ndarray]:
        """Every state leaf as one array over all environments."""
        leaves: dict[Value, np.ndarray] = {}
        for carry in self.fdg.program.loop.carries:
            holders = [w for w in self._workers if carry.inside in w.state()]
            owner = self._owner(carry, holders)
            arrays = [np.asarray(w.state()[carry.inside]) for w in holders if w.name == owner]
            kind = kind_of(carry.inside, self.fdg.kinds[owner])
            leaves[carry.inside] = (
                np.concatenate(arrays, kind.axis)
                if len(arrays) > 1 and kind.tag is Tag.VARYING
                else arrays[0]
            )
        return leaves

    def close(self) -> None:
        """Ends all threads."""
        self._channels.close()
        for thread in self._threads:
            thread.end(GRACE_SECONDS)
        close_pools(self._pools)

    def _owner(self, carry: Carry, holders: Sequence[Worker]) -> str:
        # Mirrors hold the same value; the owner makes it, and does not receive it in a message.
        names = list(dict.fromkeys(w.name for w in holders))
        received = {(t.target, p.value) for t in self.fdg.transfers for p in t.parcels}
        makers = [n for n in names if (n, carry.next) not in received]
        return (makers or names)[0]

    def _start(self, assembly: Assembly) -> list[Any]:
        """Makes the drivers, each of which a thread runs."""
        self._channels = QueueChannels(self._stall_timeout_seconds)

        def worker(spec: WorkerSpec) -> Worker:
            part = self.plan.parts[spec.fragment]
            layout = assembly.layouts(spec.fragment)[spec.index]
            kinds = self.fdg.kinds[spec.fragment]
            pools = self._pools.get(spec.fragment)
            return Worker(
                self.fdg,
                part,
                spec.replicas,
                layout,
                assembly.programs(spec.fragment, layout),
                assembly.first_values(part, layout, (spec.index, spec.count), kinds),
                self._channels,
                pools[spec.index] if pools else None,
            )

        return [
            Driver([worker(spec) for spec in specs], script)
            for specs, script in assign_workers(self.fdg, self.plan)
        ]

    def _drive(self, driver: Driver, start: int, count: int) -> Mapping[Worker, Metrics]:
        try:
            return driver.run(start, count)
        except Closed:
            pass
        except BaseException as error:  # the first cause, whatever it is, ends the run
            self._fail(driver, error)
        return {}

    def _fail(self, driver: Driver, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = (driver, error)
        self._channels.close()

    def _await(self, futures: Sequence[Future[Any]]) -> None:
        pending = set(futures)
        while pending and not self._is_stuck():
            _, pending = wait_futures(pending, timeout=POLL_SECONDS)

    def _is_stuck(self) -> bool:
        """True if environments have stopped answering, which ends the run."""
        for driver in self._drivers:
            for worker in driver.workers.values():
                stuck = worker.pool and worker.pool.stuck(self._stall_timeout_seconds)
                if stuck:
                    self._fail(driver, stuck)
                    return True
        return False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            driver, cause = self._failure
            raise driver.error(cause)

    def _metrics(self, results: Sequence[Metrics], count: int) -> list[Results]:
        rows = [Results() for _ in range(count)]
        for stack in self.fdg.program.loop.stacks:
            parts = [r[stack.outside] for r in results if stack.outside in r]
            holders = [w for w, r in zip(self._workers, results, strict=True) if stack.outside in r]
            kind = kind_of(stack.element, self.fdg.kinds[holders[0].name])
            for k in range(count):
                arrays = [part[k] for part in parts]
                is_divided = len(arrays) > 1 and kind.tag is Tag.VARYING
                array = np.concatenate(arrays, kind.axis) if is_divided else arrays[0]
                rows[k].add(self.fdg.program, stack.outside, array)
        return rows


def devices_of(workers: Sequence[Any]) -> Devices:
    """The devices of each fragment's replicas."""
    found: dict[str, list[str]] = {}
    for worker in workers:
        found.setdefault(worker.name, []).extend(worker.devices)
    return found


def _in_order_of(plan: Plan, drivers: Sequence[Any]) -> list[Any]:
    """All workers, sorted by fragment and replica."""
    workers = [worker for driver in drivers for worker in driver.workers.values()]
    order = list(plan.parts)
    return sorted(workers, key=lambda w: (order.index(w.name), w.replicas))
