"""The local runtime: one process, a thread per fragment replica, JAX devices."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fragflow._jax import REPLICA_AXIS, plain_aval
from fragflow.errors import ConfigError
from fragflow.graph.interfaces import crossings, transfer_bytes
from fragflow.graph.ir import FDG, Fragment, Parcel, Transfer, Value
from fragflow.graph.kinds import UNIFORM, Kind, Tag
from fragflow.runtime.blocks import blocked_operations
from fragflow.runtime.channels import Channels, Closed
from fragflow.runtime.compiled import Program, compile_segment, compile_training
from fragflow.runtime.crew import Crew
from fragflow.runtime.evaluate import Setting
from fragflow.runtime.host import HostPool, close_pools
from fragflow.runtime.layout import Group, Layout, OneDevice, kind_of
from fragflow.runtime.parcels import is_divided, part_name, share
from fragflow.runtime.plan import Part, Plan, make_plan
from fragflow.runtime.script import teams, write
from fragflow.runtime.threads import JobThread
from fragflow.runtime.worker import Metrics, Worker

GRACE_SECONDS = 5.0
"""for threads to end by themselves"""

Progress = Callable[[str, int, int], None]
"""(phase, done, total)"""


def _no_progress(phase: str, done: int, total: int) -> None:
    del phase, done, total


def devices_for(fragment: Fragment) -> list[Any]:
    """The devices that a fragment's replicas run on."""
    available = jax.devices(fragment.device)
    if fragment.group:
        if len(available) < fragment.replicas:
            more = f", or start Python with JAX_NUM_CPU_DEVICES={fragment.replicas}"
            raise ConfigError(
                f"fragment {fragment.name!r} needs {fragment.replicas} {fragment.device} devices, "
                f"but JAX has started with {len(available)}. Use fewer workers or learners"
                f"{more if fragment.device == 'cpu' else ''}."
            )
        return list(available[: fragment.replicas])
    if fragment.device == "cpu":
        return [available[0]] * fragment.replicas
    return [available[r % len(available)] for r in range(fragment.replicas)]


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
        compiler_options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ):
        """`state` holds the first value of every state leaf, `row_kinds` asks for blocks.

        `pools` are the environments on the host, by fragment and replica; they are closed here.
        """
        self.fdg = fdg
        self._pools = pools or {}
        progress = progress or _no_progress
        self.plan: Plan = make_plan(fdg)
        self.num_programs = 0
        self._sources = sources
        self._row_kinds = row_kinds
        self._compiler_options = dict(compiler_options or {})
        self._channels = Channels(stall_timeout_seconds)
        self._workers: list[Worker] = []
        layouts = {name: self._layouts(part) for name, part in self.plan.parts.items()}
        total = sum(
            (1 if part.fused else len(part.segments)) * len(set(map(_device_key, layouts[name])))
            for name, part in self.plan.parts.items()
        )
        for name, part in self.plan.parts.items():
            compiled: dict[Any, list[Program]] = {}
            for index, layout in enumerate(layouts[name]):
                key = _device_key(layout)
                if key not in compiled:
                    compiled[key] = self._compile(part, layout, total, progress)
                replicas = range(part.fragment.replicas) if part.fragment.group else [index]
                values = self._first_values(part, list(replicas), layout, state)
                self._workers.append(
                    Worker(
                        fdg,
                        part,
                        replicas,
                        layout,
                        compiled[key],
                        values,
                        self._channels,
                        self._pools[name][index] if name in self._pools else None,
                    )
                )
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
        if self._failure is not None:
            crew, cause = self._failure
            raise crew.error(cause)
        self._iterations += count
        results = {w: m for future in futures for w, m in future.result().items()}
        return self._metrics([results[worker] for worker in self._workers], count)

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

    def _layouts(self, part: Part) -> list[Layout]:
        devices = devices_for(part.fragment)
        if part.fragment.group:
            return [Group(mesh=Mesh(np.array(devices), (REPLICA_AXIS,)))]
        return [OneDevice(device=device) for device in devices]

    def _compile(self, part: Part, layout: Layout, total: int, progress: Progress) -> list[Program]:
        fragment = part.fragment
        avals = self._avals(part)
        kinds = self.fdg.kinds[fragment.name]
        replacements = (
            blocked_operations(fragment.loop, self._row_kinds, fragment.num_envs)
            if self._row_kinds is not None
            else {}
        )
        setting = Setting(
            num_envs=fragment.num_envs,
            group=fragment.replicas if fragment.group else 1,
            replacements=replacements,
        )
        programs = []
        if part.fused:
            progress("compiling", self.num_programs, total)
            sources = list(self.fdg.program.sources.values())
            programs.append(
                compile_training(
                    fragment, sources, avals, kinds, layout, setting, self._compiler_options
                )
            )
            self.num_programs += 1
        for index, segment in enumerate(part.segments):
            progress("compiling", self.num_programs, total)
            name = f"{fragment.name}/{index}"
            programs.append(
                compile_segment(
                    segment, avals, kinds, layout, setting, name, self._compiler_options
                )
            )
            self.num_programs += 1
        progress("compiling", self.num_programs, total)
        return programs

    def _avals(self, part: Part) -> dict[Value, Any]:
        fragment = part.fragment
        avals = dict(self.fdg.program.avals[fragment.num_envs])
        for constant in fragment.constants:
            array = constant.arrays[fragment.num_envs]
            avals[constant.output] = jax.ShapeDtypeStruct(np.shape(array), array.dtype)
        for loop in part.loops:
            avals[loop.counter] = jax.ShapeDtypeStruct((), np.int32)
        for transfer in self.fdg.transfers:
            if transfer.target == fragment.name:
                avals |= _piece_avals(self.fdg, transfer)
        return {**avals, **part.packed_avals}

    def _first_values(
        self,
        part: Part,
        replicas: Sequence[int],
        layout: Layout,
        state: Mapping[Value, np.ndarray | jax.Array],
    ) -> dict[Value, jax.Array]:
        fragment = part.fragment
        kinds = self.fdg.kinds[fragment.name]
        values: dict[Value, jax.Array] = {}

        def local(array: Any, kind: Kind) -> Any:
            """This replica's rows; a group gets all of them."""
            if fragment.replicas == 1 or fragment.group or kind.tag is not Tag.VARYING:
                return array
            rows = np.shape(array)[kind.axis] // fragment.replicas
            window = [slice(None)] * kind.axis + [
                slice(replicas[0] * rows, (replicas[0] + 1) * rows)
            ]
            return array[tuple(window)]

        for constant in fragment.constants:
            values[constant.output] = layout.place(constant.arrays[fragment.num_envs], UNIFORM)
        for name, array in self._sources.items():
            kind = kind_of(name, kinds)
            values[name] = layout.place(local(array, kind), kind)
        for carry in fragment.loop.carries:
            kind = kind_of(carry.inside, kinds)
            placed = layout.place(local(state[carry.inside], kind), kind)
            values[carry.init] = values[carry.inside] = placed
        return values

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
        # Short waits keep the main thread open to Ctrl-C.
        pending = set(futures)
        while pending:
            _, pending = wait_futures(pending, timeout=0.2)
            for crew in self._crews:
                for worker in crew.workers.values():
                    stuck = worker.pool and worker.pool.stuck(self._channels.timeout_seconds)
                    if stuck:
                        self._fail(crew, stuck)
                        return

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


def _device_key(layout: Layout) -> Any:
    return layout.device if isinstance(layout, OneDevice) else "group"


def _piece_avals(fdg: FDG, transfer: Transfer) -> dict[Value, Any]:
    source = fdg.fragments[transfer.source]
    target = fdg.fragments[transfer.target]
    if source.replicas <= target.replicas:
        return {}

    def aval(parcel: Parcel) -> Any:
        plain = plain_aval(fdg.program.avals[source.num_envs][parcel.value])
        # A partial value has a leading axis in a group, of one entry per replica.
        stacked = source.group and parcel.collective.startswith("reduce-")
        return jax.ShapeDtypeStruct((1, *plain.shape) if stacked else plain.shape, plain.dtype)

    return {
        part_name(p.value, k): aval(p)
        for p in transfer.parcels
        if is_divided(p)
        for k in range(share(fdg, transfer))
    }
