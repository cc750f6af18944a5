"""A worker interprets a fragment's program: it does what the schedule says, and nothing else."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.graph.kinds import UNIFORM, Kind
from fragflow.runtime.channels import Channels
from fragflow.runtime.compiled import COUNT, ROOM, START, Program
from fragflow.runtime.layout import Layout, kind_of
from fragflow.runtime.plan import Part, is_divided, part_name, share
from fragflow.runtime.schedule import (
    Code,
    Cursor,
    Enter,
    Get,
    Instruction,
    Put,
    Repeat,
    Run,
    routes,
    unrolled,
)

Metrics = dict[Value, list[np.ndarray]]
Action = Callable[[], None]


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
        self._steps = [self._step_numbers(loop) for loop in part.loops]
        # The schedule is the same in every iteration: it is stepped through once, and replayed.
        shared = {i: self._action(c) for i, c in enumerate(part.code) if not _is_loop(c)}
        waits = [self._incoming(instruction) for instruction in part.code]
        self._iteration = [
            (waits[at.position], shared.get(at.position) or self._loop_action(part.code, at))
            for at in unrolled(part.code)
        ]

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
        moved = True
        for queues, action in self._iteration:
            for queue in queues:
                while queue.empty():
                    yield moved
                    moved = False
            action()
            moved = True

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
            for sender, receiver in routes(sources, targets)
            if receiver in self.replicas
        ]

    def _action(self, instruction: Instruction) -> Action:
        match instruction:
            case Run():
                return self._run_action(self._programs[instruction.segment])
            case Put():
                return self._put_action(instruction.transfer)
            case Get():
                return self._get_action(instruction.transfer)
        raise AssertionError(instruction)

    def _run_action(self, program: Program) -> Action:
        values, call = self._values, program.call
        read, inputs, outputs = values.__getitem__, program.inputs, program.outputs

        def run() -> None:
            self.doing = program
            values.update(zip(outputs, call(*map(read, inputs)), strict=True))

        def run_group() -> None:
            self.doing = program
            results = call(*map(read, inputs))
            # Collectives of two programs under way at once can deadlock on few cores.
            jax.block_until_ready(results)
            values.update(zip(outputs, results, strict=True))

        return run_group if self._layout.replicas > 1 else run

    def _loop_action(self, code: Code, at: Cursor) -> Action:
        """The renaming of values at the start of a loop, or at the end of one of its steps."""
        instruction = code[at.position]
        assert isinstance(instruction, Enter | Repeat)
        loop, values = self._part.loops[instruction.loop], self._values
        numbers = self._steps[instruction.loop]
        if isinstance(instruction, Enter):
            pairs, number = loop.entry, numbers[0]
        else:
            step = at.steps[-1] + 1
            pairs, number = loop.step, numbers[step] if step < loop.length else None
        targets = [target for target, _ in pairs]
        sources = [source for _, source in pairs]

        def rename() -> None:
            values.update(zip(targets, [values[v] for v in sources], strict=True))
            if number is not None:
                values[loop.counter] = number
            else:
                for final, inside in loop.exit:
                    values[final] = values[inside]

        return rename

    def _step_numbers(self, loop: Any) -> list[jax.Array]:
        order = range(loop.length - 1, -1, -1) if loop.reverse else range(loop.length)
        return [self._layout.place(np.int32(k), UNIFORM) for k in order]

    def _put_action(self, transfer: Transfer) -> Action:
        """Hands the message's values to every receiving replica."""
        sources = self._fdg.fragments[transfer.source].replicas
        targets = self._fdg.fragments[transfer.target].replicas
        pieces = share(self._fdg, transfer)
        lanes = []
        for sender, receiver in routes(sources, targets):
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
        values, layout = self._values, self._layout
        single = self._layout.replicas == 1
        every = [n for _, names, _, _ in lanes for n in names]

        def put_single() -> None:
            for _, names, needed, queue in lanes:
                queue.put(
                    [values[n] if want else None for n, want in zip(names, needed, strict=True)]
                )
            self.messages += len(lanes)

        def put_group() -> None:
            local = {n: layout.pieces(values[n]) for n in dict.fromkeys(every)}
            for index, names, needed, queue in lanes:
                queue.put(
                    [
                        local[n][index] if want else None
                        for n, want in zip(names, needed, strict=True)
                    ]
                )
            self.messages += len(lanes)

        return put_single if single else put_group

    def _get_action(self, transfer: Transfer) -> Action:
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
                name = (
                    part_name(parcel.value, piece)
                    if pieces > 1 and is_divided(parcel)
                    else parcel.value
                )
                slots.append((name, kind_of(name, self._kinds), k, piece))

        names = [slot[0] for slot in slots]

        def get_near() -> None:
            self.doing = what
            values.update(zip(names, channels.get(lanes[0][2], what), strict=True))

        def get_one() -> None:
            self.doing = what
            payload = channels.get(lanes[0][2], what)
            for name, kind, k, _ in slots:
                values[name] = layout.receive((payload[k],), kind)

        def get() -> None:
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


def _is_loop(instruction: Instruction) -> bool:
    return isinstance(instruction, Enter | Repeat)
