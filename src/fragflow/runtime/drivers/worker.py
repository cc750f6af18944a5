"""A worker holds the programs, values and channels of one replica of a fragment."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.graph.replicas.kinds import UNIFORM, varying
from fragflow.runtime.host_environments.out_of_order_rollout import OutOfOrderRollout
from fragflow.runtime.host_environments.pool import HostPool, WorkerPool
from fragflow.runtime.planning.message_pieces import fan, incoming, is_sent, outgoing
from fragflow.runtime.planning.plan import FragmentPlan
from fragflow.runtime.planning.segments import HostCall
from fragflow.runtime.programs.compile import COUNT, ROOM, START, Executable
from fragflow.runtime.programs.devices import processor_of
from fragflow.runtime.programs.kernels_in_program import Computed
from fragflow.runtime.programs.layout import Layout, kind_of, on_host
from fragflow.runtime.protocols import Channel, Channels, Metrics, Payload


class Worker:
    """One replica of a fragment, or those of a group that are in this process."""

    def __init__(
        self,
        fdg: FDG,
        part: FragmentPlan,
        replicas: Sequence[int],
        layout: Layout,
        programs: Sequence[Executable],
        values: dict[Value, jax.Array],
        channels: Channels,
        pool: WorkerPool | None = None,
    ):
        self.name = part.fragment.name
        self.part = part
        self.replicas = tuple(replicas)
        self.programs = programs
        self.pool = pool
        """its environments, if they are on the host"""
        self.values = values
        """constants, sources and state"""
        self._fdg = fdg
        self._layout = layout
        self._channels = channels

    @property
    def devices(self) -> list[str]:
        """The devices of its replicas."""
        return [f"{device.platform}:{device.id}" for device in self._layout.devices]

    @property
    def processor(self) -> str:
        """The model of the processor that it computes on."""
        return processor_of(self._layout.devices[0])

    @property
    def computed(self) -> Computed:
        """Implementations of kernels that were found in its programs."""
        return frozenset().union(*(program.computed for program in self.programs))

    def run_fused(self, start: int, count: int) -> Metrics:
        """Runs iterations that need no messages, in as few calls as possible."""
        with self.pool.waiting() if self.pool else contextlib.nullcontext():
            return self._run_fused(start, count)

    def _run_fused(self, start: int, count: int) -> Metrics:
        (program,) = self.programs
        loop = self.part.fragment.loop
        values = self.values
        kept: Metrics = {s.outside: [] for s in loop.stacks}
        while count:
            now = min(count, ROOM)
            values[START] = self.number(start)
            values[COUNT] = self.number(now)
            results = program.call(*(values[v] for v in program.inputs))
            values.update(zip(program.outputs, results, strict=True))
            for carry in loop.carries:
                values[carry.init] = values[carry.inside] = values[carry.final]
            for stack in loop.stacks:
                kept[stack.outside] += list(on_host(values[stack.outside])[:now])
            start, count = start + now, count - now
        return kept

    def state(self) -> dict[Value, jax.Array]:
        """The state leaves that this worker keeps, by their name inside the training loop."""
        return {c.inside: self.values[c.inside] for c in self.part.fragment.loop.carries}

    def piece(self, value: Value, replica: int) -> jax.Array:
        """One replica's part of a value that this worker has."""
        return self._layout.pieces(self.values[value])[self.replicas.index(replica)]

    def adopt(self, value: Value, array: Any) -> None:
        """Takes over a value that another worker has made."""
        kind = kind_of(value, self._fdg.kinds[self.name])
        self.values[value] = self._layout.receive([array], kind)

    def wait(self) -> None:
        """Blocks until all started work is finished."""
        jax.block_until_ready(list(self.state().values()))

    def number(self, index: int) -> jax.Array:
        """Makes a number a value of this fragment."""
        return self._layout.place(np.int32(index), UNIFORM)

    def steps(self, loop: int) -> list[jax.Array]:
        """The numbers of a loop's steps, in the order in which they are made."""
        return [self.number(k) for k in self.part.loops[loop].order]

    def asker(self, call: HostCall) -> Callable[..., Sequence[Any]]:
        """Makes a function that calls this worker's environments on the host."""
        pool, layout = self.pool, self._layout
        assert pool is not None, "a fragment with environments on the host has a pool"
        if layout.replicas == 1:
            return functools.partial(pool.call, call.method)

        def ask(*args: Any) -> Sequence[Any]:
            results = pool.call(call.method, *map(on_host, args))
            return [layout.place(result, varying(0)) for result in results]

        return ask

    def out_of_order_rollout(self, index: int) -> OutOfOrderRollout:
        """Makes a function that takes this worker's environments through a loop out of order."""
        pool, first = self.pool, self.part.fragment.first
        assert isinstance(pool, HostPool), "only environments on the host run out of order"
        assert first is not None
        out_of_order = self.part.out_of_order[index]
        # A fragment's last programs are those of its loops that run out of order.
        start = len(self.programs) - 2 * (len(self.part.out_of_order) - index)
        programs = self.programs[start : start + 2]
        constants = {
            c.output: c.arrays[Extent(first)]
            for c in self.part.fragment.constants
            if c.output in out_of_order.inputs
        }
        return OutOfOrderRollout(
            out_of_order, programs, pool, first, self._fdg.row_kinds, constants
        )

    def room_for(self, value: Value) -> Callable[[], np.ndarray]:
        """Makes a function that allocates an array for rows that the host adds.

        It never returns an array twice: JAX may still read the one before.
        """
        fragment = self.part.fragment
        count = fragment.num_envs * len(self.replicas)
        aval = self._fdg.program.avals[fragment.extent][value]
        shape = (aval.shape[0], count, *aval.shape[2:])
        return functools.partial(np.empty, shape, aval.dtype)

    def spread_rows(self, rows: np.ndarray) -> jax.Array:
        """Makes rows that the host has collected a value of a group."""
        return self._layout.place(rows, varying(1))

    def caller(self, program: Executable) -> Callable[..., Sequence[jax.Array]]:
        """Makes a function that calls a compiled program."""
        if self._layout.replicas == 1:
            return program.call

        def call(*arguments: jax.Array) -> Sequence[jax.Array]:
            # Collectives of two programs under way at once can deadlock on few cores.
            return jax.block_until_ready(program.call(*arguments))

        return call

    def sender(self, transfer: Transfer) -> Callable[..., None]:
        """Makes a function that sends a message's pieces to all its receivers."""
        ends = fan(self._fdg, transfer)
        starts = _starts(outgoing(self._fdg, transfer))
        routes: list[tuple[int, Callable[[Payload], None], list[int | None]]] = []
        for sender, receiver in ends.routes:
            if sender not in self.replicas:
                continue
            channel = self._channels.open(transfer.name, sender, receiver)
            positions: list[int | None] = []
            for parcel, start in zip(transfer.parcels, starts, strict=True):
                piece = receiver % ends.receivers if parcel.cut is not None else 0
                positions.append(start + piece if is_sent(parcel, sender, ends) else None)
            routes.append((self.replicas.index(sender), channel.put, positions))
        layout, is_group = self._layout, self._layout.replicas > 1

        def send(*values: Any) -> None:
            shards = [layout.pieces(v) for v in values] if is_group else [(v,) for v in values]
            for index, put, positions in routes:
                put([None if k is None else shards[k][index] for k in positions])

        return send

    def receiver(self, transfer: Transfer) -> Callable[[], Sequence[Any]]:
        """Makes a function that waits for a message from all its senders; returns its pieces."""
        channels: dict[int, list[Channel]] = {}
        for sender, receiver in fan(self._fdg, transfer).routes:
            if receiver in self.replicas:
                channel = self._channels.open(transfer.name, sender, receiver)
                channels.setdefault(receiver, []).append(channel)
        kinds = self._fdg.kinds[self.name]
        slots = [
            (kind_of(parcel.value, kinds), k, piece)
            for k, (parcel, names) in enumerate(
                zip(transfer.parcels, incoming(self._fdg, transfer), strict=True)
            )
            for piece in range(len(names))
        ]
        what = f"message {transfer.name} of {transfer.source}"
        layout = self._layout

        def receive() -> Sequence[Any]:
            rows = [[channel.get(what) for channel in row] for row in channels.values()]
            return [
                layout.receive([row[piece][parcel] for row in rows], kind)
                for kind, parcel, piece in slots
            ]

        return receive


def _starts(names: Sequence[Sequence[Value]]) -> list[int]:
    """The position of each parcel's first piece among all pieces of a message."""
    starts, position = [], 0
    for pieces in names:
        starts.append(position)
        position += len(pieces)
    return starts
