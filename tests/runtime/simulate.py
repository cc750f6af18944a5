"""Steps a plan without executing it, to find the order of its events and replicas that deadlock.

A pure state machine over the instructions of all replicas.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fragflow.errors import GraphError
from fragflow.graph.ir import FDG, Transfer
from fragflow.graph.passes.collectives import transfer_bytes
from fragflow.runtime.planning.instructions import (
    Code,
    Enter,
    Get,
    Instruction,
    Put,
    Repeat,
    Replica,
    routes,
)
from fragflow.runtime.planning.plan import Plan


class Cursor(NamedTuple):
    """A position in a fragment's code: the next instruction and the step of each loop around it."""

    position: int = 0
    steps: tuple[int, ...] = ()


def advance(code: Code, cursor: Cursor) -> Cursor:
    """Returns the position after the instruction at `cursor`."""
    position, steps = cursor
    instruction = code[position]
    kind = type(instruction)
    if kind is Enter:
        return Cursor(position + 1, (*steps, 0))
    if kind is Repeat:
        step = steps[-1] + 1
        if step < instruction.length:  # pyright: ignore[reportAttributeAccessIssue]
            return Cursor(instruction.first, (*steps[:-1], step))  # pyright: ignore[reportAttributeAccessIssue]
        return Cursor(position + 1, steps[:-1])
    return Cursor(position + 1, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The event that a replica has finished its current instruction."""

    replica: Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The positions of all replicas of a graph, and the messages that are under way."""

    codes: Mapping[str, Code]
    replicas: Mapping[str, int]
    cursors: Mapping[Replica, Cursor]
    arrived: Mapping[tuple[str, int, int], int]
    """messages sent and not yet received, by (name, sender, receiver)"""

    @staticmethod
    def start(codes: Mapping[str, Code], replicas: Mapping[str, int]) -> "Schedule":
        cursors = {(name, r): Cursor() for name in codes for r in range(replicas[name])}
        return Schedule(codes=codes, replicas=replicas, cursors=cursors, arrived={})

    def instruction(self, replica: Replica) -> Instruction | None:
        code = self.codes[replica[0]]
        position = self.cursors[replica].position
        return code[position] if position < len(code) else None

    def is_ready(self, replica: Replica) -> bool:
        """True if the replica's next instruction can be carried out now."""
        instruction = self.instruction(replica)
        if isinstance(instruction, Get):
            return all(self.arrived.get(key, 0) for key in self._incoming(instruction, replica))
        return instruction is not None

    def ready(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.cursors if self.is_ready(replica))

    def handle(self, event: Done) -> "Schedule":
        """Returns the schedule after a replica has carried out its current instruction."""
        replica = event.replica
        instruction = self.instruction(replica)
        arrived = dict(self.arrived)
        if isinstance(instruction, Get):
            for key in self._incoming(instruction, replica):
                arrived[key] -= 1
        if isinstance(instruction, Put):
            for key in self._outgoing(instruction, replica):
                arrived[key] = arrived.get(key, 0) + 1
        cursors = dict(self.cursors)
        cursors[replica] = advance(self.codes[replica[0]], cursors[replica])
        return Schedule(codes=self.codes, replicas=self.replicas, cursors=cursors, arrived=arrived)

    def stuck(self) -> Sequence[Replica]:
        """Replicas that wait for ever: they are not finished, and no replica is ready."""
        if self.ready():
            return ()
        return tuple(r for r in self.cursors if self.instruction(r) is not None)

    def _incoming(self, get: Get, replica: Replica) -> list[tuple[str, int, int]]:
        return [(get.transfer.name, s, t) for s, t in self._routes(get.transfer) if t == replica[1]]

    def _outgoing(self, put: Put, replica: Replica) -> list[tuple[str, int, int]]:
        return [(put.transfer.name, s, t) for s, t in self._routes(put.transfer) if s == replica[1]]

    def _routes(self, transfer: Transfer) -> tuple[tuple[int, int], ...]:
        sources, targets = self.replicas[transfer.source], self.replicas[transfer.target]
        return routes(sources, targets, transfer.crossed)


@dataclass(slots=True)
class Record:
    """The instructions and messages of one simulated iteration."""

    order: list[tuple[Replica, Instruction]] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    bytes_moved: int = 0


def record(fdg: FDG, plan: Plan, seed: int | None = None) -> Record:
    """Steps all fragments through one iteration; `seed` has ready replicas go in random order."""
    codes = {name: part.code for name, part in plan.parts.items()}
    replicas = {name: fragment.replicas for name, fragment in fdg.fragments.items()}
    schedule = Schedule.start(codes, replicas)
    rng = random.Random(seed)
    result = Record()
    while ready := schedule.ready():
        replica = ready[0] if seed is None else rng.choice(ready)
        instruction = schedule.instruction(replica)
        assert instruction is not None
        result.order.append((replica, instruction))
        if isinstance(instruction, Put):
            result.messages[instruction.transfer.name] += 1
            if replica[1] == 0:
                result.bytes_moved += transfer_bytes(fdg, instruction.transfer)
        schedule = schedule.handle(Done(replica=replica))
    stuck = schedule.stuck()
    if stuck:
        waiting = ", ".join(
            f"{name}[{r}] at {schedule.instruction((name, r))}" for name, r in stuck
        )
        raise GraphError(f"the fragments wait for one another: {waiting}")
    left = {key: count for key, count in schedule.arrived.items() if count}
    if left:
        raise GraphError(f"messages are sent that nobody receives: {sorted(left)}")
    return result
