"""The local runtime: one process, a thread per fragment replica, JAX devices."""

import functools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from typing import Any

import jax
import numpy as np

from fragflow.graph.interfaces import crossings, transfer_bytes
from fragflow.graph.ir import FDG, Value
from fragflow.graph.kinds import Kind, Tag
from fragflow.runtime.assembly import Assembly, Progress
from fragflow.runtime.channels import Channels, Closed
from fragflow.runtime.crew import Crew
from fragflow.runtime.host import HostPool, close_pools
from fragflow.runtime.layout import kind_of
from fragflow.runtime.plan import Plan, make_plan
from fragflow.runtime.script import teams, write
from fragflow.runtime.streams import POLL_SECONDS
from fragflow.runtime.threads import JobThread
from fragflow.runtime.worker import Metrics, Worker

GRACE_SECONDS = 5.0
"""for threads to end by themselves"""


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
        compiler_options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ):
        """`state` holds the first value of every state leaf, `row_kinds` asks for blocks.

        `pools` are the environments on the host, by fragment and replica; they are closed here.
        """
        self.fdg = fdg
        self._pools = pools or {}
        self.plan: Plan = make_plan(fdg)
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
        self._channels = Channels(stall_timeout_seconds)
        self._workers: list[Worker] = []
        for name, part in self.plan.parts.items():
            count = 1 if part.fragment.group else part.fragment.replicas
            for index, layout in enumerate(assembly.layouts(name)):
                replicas = range(part.fragment.replicas) if part.fragment.group else [index]
                self._workers.append(
                    Worker(
                        fdg,
                        part,
                        replicas,
                        layout,
                        assembly.programs(name, layout),
                        assembly.first_values(part, layout, (index, count), fdg.kinds[name]),
                        self._channels,
                        self._pools[name][index] if name in self._pools else None,
                    )
                )
        self.num_programs = assembly.num_programs
        self.picks = assembly.picks
        self._crews = self._make_crews()
        self._threads = [JobThread(f"fragment {'+'.join(c.workers)}") for c in self._crews]
        self._failure: tuple[Crew, BaseException] | None = None
        self._lock = threading.Lock()
        trips = crossings(fdg)
        self._bytes_per_iteration = sum(
            transfer_bytes(fdg, t) * trips[t.name] for t in fdg.transfers
        )
        self._messages_per_iteration = sum(
            max(fdg.fragments[t.source].replicas, fdg.fragments[t.target].replicas) * trips[t.name]
            for t in fdg.transfers
        )
        self._iterations = 0
        self.total_iterations = int(sources["total_iterations"])

    @property
    def num_messages(self) -> int:
        return self._messages_per_iteration * self._iterations

    @property
    def bytes_moved(self) -> int:
        return self._bytes_per_iteration * self._iterations

    def run(self, start: int, count: int) -> list[dict[str, np.ndarray]]:
        """Runs `count` iterations; for each, every metric's label and value."""
        futures = [
            thread.submit(functools.partial(self._drive, crew, start, count))
            for thread, crew in zip(self._threads, self._crews, strict=True)
        ]
        self._await(futures)
        self._raise_failure()
        self._iterations += count
        results = {w: m for future in futures for w, m in future.result().items()}
        return self._metrics([results[worker] for worker in self._workers], count)

    def settle(self, made: int) -> list[dict[str, np.ndarray]]:
        """Results of iterations beyond the first `made`: there are none."""
        del made
        return []

    def state(self) -> dict[Value, np.ndarray]:
        """Every state leaf as one array over all environments."""
        leaves: dict[Value, np.ndarray] = {}
        for carry in self.fdg.program.loop.carries:
            holders = [w for w in self._workers if carry.inside in w.state()]
            owner = self._owner(carry.final, holders)
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

    def _owner(self, final: Value, holders: Sequence[Worker]) -> str:
        # A mirror holds the same value; the fragment that makes it is the one that sends it.
        names = list(dict.fromkeys(w.name for w in holders))
        inside = final.removesuffix("@final")
        next_value = next(c.next for c in self.fdg.program.loop.carries if c.inside == inside)
        received = {(t.target, p.value) for t in self.fdg.transfers for p in t.parcels}
        makers = [n for n in names if (n, next_value) not in received]
        return (makers or names)[0]

    def _make_crews(self) -> list[Crew]:
        """The workers that each thread drives: those of a team, or one replica of a fragment."""
        crews = []
        for team in teams(self.fdg, self.plan):
            script = None if self.plan.parts[team[0]].fused else write(self.fdg, self.plan, team)
            workers = [w for w in self._workers if w.name in team]
            groups = [workers] if len(team) > 1 else [[w] for w in workers]
            crews += [Crew(group, script) for group in groups]
        return crews

    def _drive(self, crew: Crew, start: int, count: int) -> Mapping[Worker, Metrics]:
        try:
            return crew.run(start, count)
        except Closed:
            pass
        except BaseException as error:  # the first cause, whatever it is, ends the run
            self._fail(crew, error)
        return {}

    def _fail(self, crew: Crew, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = (crew, error)
        self._channels.close()

    def _await(self, futures: Sequence[Future[Any]]) -> None:
        pending = set(futures)
        while pending and not self._is_stuck():
            _, pending = wait_futures(pending, timeout=POLL_SECONDS)

    def _is_stuck(self) -> bool:
        """Whether environments do not answer, which ends the run."""
        for crew in self._crews:
            for worker in crew.workers.values():
                stuck = worker.pool and worker.pool.stuck(self._channels.timeout_seconds)
                if stuck:
                    self._fail(crew, stuck)
                    return True
        return False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            crew, cause = self._failure
            raise crew.error(cause)

    def _metrics(self, results: Sequence[Metrics], count: int) -> list[dict[str, np.ndarray]]:
        rows: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        for stack in self.fdg.program.loop.stacks:
            label = self.fdg.program.labels[stack.outside]
            parts = [r[stack.outside] for r in results if stack.outside in r]
            holders = [w for w, r in zip(self._workers, results, strict=True) if stack.outside in r]
            kind = kind_of(stack.element, self.fdg.kinds[holders[0].name])
            for k in range(count):
                arrays = [part[k] for part in parts]
                rows[k][label] = (
                    np.concatenate(arrays, kind.axis)
                    if len(arrays) > 1 and kind.tag is Tag.VARYING
                    else arrays[0]
                )
        return rows
