"""A worker interprets a fragment's program: it does what the schedule says, and nothing else."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.graph.kinds import UNIFORM, Kind
from fragflow.runtime.channels import Channels
from fragflow.runtime.compiled import COUNT, ROOM, START, Program
from fragflow.runtime.layout import Layout, kind_of
from fragflow.runtime.plan import Part, is_divided, part_name, share
from fragflow.runtime.schedule import Cursor, Enter, Get, Put, Repeat, Run, advance, routes

Metrics = dict[Value, list[np.ndarray]]


class Worker:
    """One replica of a fragment, or all replicas of one that runs as a group."""

    def __init__(
        self,
        fdg: FDG,
        part: Part,
        replicas: Sequence[int],
        layout: Layout,
        programs: Sequence[Program],
        values: dict[Value, jax.Array],
        channels: Channels,
        waits_itself: bool = True,
        neighbours: frozenset[str] = frozenset(),
    ):
        """`waits_itself` blocks in a wait; else `run` yields, for a thread with other workers.

        `neighbours` are the fragments on the same device: what they send need not be moved.
        """
        self._waits_itself = waits_itself
        self._neighbours = neighbours
        self.name = part.fragment.name
        self.replicas = tuple(replicas)
        self.messages = 0
        self.doing = "nothing"
        self._fdg = fdg
        self._part = part
        self._layout = layout
        self._programs = programs
        self._values = values
        self._channels = channels
        self._kinds: Mapping[Value, Kind] = fdg.kinds[self.name]
        self._actions = [self._action(i) for i in part.code]
        self._waits = [self._incoming(i) for i in part.code]
        self._steps = [self._step_numbers(loop) for loop in part.loops]

    def run(self, start: int, count: int) -> Generator[bool, None, Metrics]:
        """Runs iterations `start` to `start + count` and returns the metrics of each.

        It yields where it must wait for a message, so that one thread can drive several workers:
        whether it has done anything since it last did.
        """
        if self._part.fused:
            return self._run_fused(start, count)
        loop = self._part.fragment.loop
        values = self._values
        kept: dict[Value, list[Any]] = {s.outside: [] for s in loop.stacks}
        for index in range(start, start + count):
            if loop.counter is not None:
                values[loop.counter] = self._layout.place(np.int32(index), UNIFORM)
            yield from self._run_iteration()
            for stack in loop.stacks:
                kept[stack.outside].append(values[stack.element])
            renamed = [values[c.next] for c in loop.carries]
            values.update(zip((c.inside for c in loop.carries), renamed, strict=True))
        return {value: [np.asarray(x) for x in arrays] for value, arrays in kept.items()}

    def _run_fused(self, start: int, count: int) -> Metrics:
        (program,) = self._programs
        loop = self._part.fragment.loop
        values = self._values
        kept: Metrics = {s.outside: [] for s in loop.stacks}
        self.doing = f"training ({program.name})"
        while count:
            now = min(count, ROOM)
            values[START] = self._layout.place(np.int32(start), UNIFORM)
            values[COUNT] = self._layout.place(np.int32(now), UNIFORM)
            results = program.call(*(values[v] for v in program.inputs))
            values.update(zip(program.outputs, results, strict=True))
            for carry in loop.carries:
                values[carry.init] = values[carry.inside] = values[carry.final]
            for stack in loop.stacks:
                kept[stack.outside] += list(np.asarray(values[stack.outside])[:now])
            start, count = start + now, count - now
        return kept

    def state(self) -> dict[Value, jax.Array]:
        """The state leaves that this worker keeps, by their name inside the training loop."""
        return {c.inside: self._values[c.inside] for c in self._part.fragment.loop.carries}

    def wait(self) -> None:
        """Blocks until all that was started is finished."""
        jax.block_until_ready(list(self.state().values()))

    def _run_iteration(self) -> Generator[bool, None, None]:
        code, actions, waits = self._part.code, self._actions, self._waits
        cursor, end = Cursor(), len(code)
        moved = True
        while cursor.position < end:
            position = cursor.position
            for queue in waits[position]:
                while queue.empty():
                    yield moved
                    moved = False
            actions[position](cursor)
            moved = True
            cursor = advance(code, cursor)

    def _incoming(self, instruction: Any) -> list[Any]:
        """The queues to look at before an instruction, where the thread has other work too."""
        if self._waits_itself or not isinstance(instruction, Get):
            return []
        return [queue for _, _, queue in self._lanes_in(instruction.transfer)]

    def _lanes_in(self, transfer: Transfer) -> list[tuple[int, int, Any]]:
        sources = self._fdg.fragments[transfer.source].replicas
        targets = self._fdg.fragments[transfer.target].replicas
        return [
            (sender, receiver, self._channels.open(transfer.name, sender, receiver))
            for sender, receiver in routes(transfer, sources, targets)
            if receiver in self.replicas
        ]

    def _action(self, instruction: Any) -> Any:
        match instruction:
            case Run():
                return self._run_action(self._programs[instruction.segment])
            case Put():
                return self._put_action(instruction.transfer)
            case Get():
                return self._get_action(instruction.transfer)
            case Enter():
                return self._enter_action(instruction.loop)
            case Repeat():
                return self._repeat_action(instruction.loop)
        raise AssertionError(instruction)

    def _run_action(self, program: Program) -> Any:
        values, call = self._values, program.call
        inputs, outputs = program.inputs, program.outputs
        is_group = self._layout.replicas > 1

        def run(_cursor: Cursor) -> None:
            self.doing = program
            results = call(*[values[v] for v in inputs])
            values.update(zip(outputs, results, strict=True))
            if is_group:
                # Collectives of two programs under way at once can deadlock on few cores.
                jax.block_until_ready(results)

        return run

    def _enter_action(self, index: int) -> Any:
        loop, values = self._part.loops[index], self._values

        def enter(_cursor: Cursor) -> None:
            first = [values[v] for _, v in loop.entry]
            values.update(zip((inside for inside, _ in loop.entry), first, strict=True))
            values[loop.counter] = self._steps[index][0]

        return enter

    def _repeat_action(self, index: int) -> Any:
        loop, values = self._part.loops[index], self._values
        insides = [inside for inside, _ in loop.step]
        nexts = [value for _, value in loop.step]

        def repeat(cursor: Cursor) -> None:
            renamed = [values[v] for v in nexts]
            values.update(zip(insides, renamed, strict=True))
            step = cursor.steps[-1] + 1
            if step < loop.length:
                values[loop.counter] = self._steps[index][step]
            else:
                for final, inside in loop.exit:
                    values[final] = values[inside]

        return repeat

    def _step_numbers(self, loop: Any) -> list[jax.Array]:
        order = range(loop.length - 1, -1, -1) if loop.reverse else range(loop.length)
        return [self._layout.place(np.int32(k), UNIFORM) for k in order]

    def _put_action(self, transfer: Transfer) -> Any:
        """Hands the message's values to every receiving replica."""
        sources = self._fdg.fragments[transfer.source].replicas
        targets = self._fdg.fragments[transfer.target].replicas
        pieces = share(self._fdg, transfer)
        lanes = []
        for sender, receiver in routes(transfer, sources, targets):
            if sender not in self.replicas:
                continue
            queue = self._channels.open(transfer.name, sender, receiver)
            names = [
                part_name(p.value, receiver % pieces) if p.collective == "scatter" else p.value
                for p in transfer.parcels
            ]
            # A uniform value comes from the first of several senders only.
            needed = [p.collective != "pick" or sender % pieces == 0 for p in transfer.parcels]
            lanes.append((self.replicas.index(sender), names, needed, queue))
        values, layout, kinds = self._values, self._layout, self._kinds
        single = self._layout.replicas == 1
        every = [n for _, names, _, _ in lanes for n in names]
        kind = {n: kind_of(n, kinds) for n in every}

        def put_single(_cursor: Cursor) -> None:
            for _, names, needed, queue in lanes:
                queue.put([values[n] if want else None for n, want in zip(names, needed, strict=True)])
            self.messages += len(lanes)

        def put_group(_cursor: Cursor) -> None:
            local = {n: layout.pieces(values[n], kind[n]) for n in dict.fromkeys(every)}
            for index, names, needed, queue in lanes:
                queue.put(
                    [local[n][index] if want else None for n, want in zip(names, needed, strict=True)]
                )
            self.messages += len(lanes)

        return put_single if single else put_group

    def _get_action(self, transfer: Transfer) -> Any:
        """Waits for all senders and stores the values, or their pieces."""
        sources = self._fdg.fragments[transfer.source].replicas
        targets = self._fdg.fragments[transfer.target].replicas
        pieces = share(self._fdg, transfer) if sources > targets else 1
        lanes = self._lanes_in(transfer)
        what = f"message {transfer.name} of {transfer.source}"
        values, layout, channels = self._values, self._layout, self._channels
        slots: list[tuple[Value, Kind, int, int]] = []
        for k, parcel in enumerate(transfer.parcels):
            for piece in range(pieces if is_divided(parcel) else 1):
                name = part_name(parcel.value, piece) if pieces > 1 and is_divided(parcel) else parcel.value
                slots.append((name, kind_of(name, self._kinds), k, piece))

        names = [slot[0] for slot in slots]

        def get_near(_cursor: Cursor) -> None:
            self.doing = what
            values.update(zip(names, channels.get(lanes[0][2], what), strict=True))

        def get_one(_cursor: Cursor) -> None:
            self.doing = what
            payload = channels.get(lanes[0][2], what)
            for name, kind, k, _ in slots:
                values[name] = layout.receive((payload[k],), kind)

        def get(_cursor: Cursor) -> None:
            self.doing = what
            payloads: dict[int, list[Any]] = {}
            for _, receiver, queue in lanes:
                payloads.setdefault(receiver, []).append(channels.get(queue, what))
            rows = list(payloads.values())
            for name, kind, k, piece in slots:
                values[name] = layout.receive([row[piece][k] for row in rows], kind)

        if len(lanes) == 1:
            return get_near if transfer.source in self._neighbours else get_one
        return get
