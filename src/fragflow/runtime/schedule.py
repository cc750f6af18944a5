"""What a fragment does next, as a pure state machine over a flat list of instructions.

The runtimes, the null runtime and the tests all step the same machine; only they have effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fragflow.graph.ir import Transfer


@dataclass(frozen=True, slots=True)
class Run:
    """Call a compiled segment."""

    segment: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Call environments on the host."""

    call: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a value that the host made as a row of a loop's output."""

    loop: int
    row: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Make all steps of a loop, each environment at its own pace."""

    turns: int


@dataclass(frozen=True, slots=True)
class Put:
    """Send a message."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Get:
    """Wait for a message."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Enter:
    """Begin a loop."""

    loop: int
    length: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """End a step of a loop: go back to `first`, or on if it was the last one."""

    loop: int
    length: int
    first: int


Work: TypeAlias = Run | Ask | Keep | Turn
"""what a fragment does by itself"""
Message: TypeAlias = Put | Get
Instruction: TypeAlias = Work | Message | Enter | Repeat
Code: TypeAlias = tuple[Instruction, ...]


class Cursor(NamedTuple):
    """Where a fragment stands: the next instruction, and the step of each loop around it."""

    position: int = 0
    steps: tuple[int, ...] = ()


def advance(code: Code, cursor: Cursor) -> Cursor:
    """Where a fragment stands after the instruction at `cursor`."""
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


Replica: TypeAlias = tuple[str, int]


def routes(sources: int, targets: int, crossed: bool = False) -> tuple[tuple[int, int], ...]:
    """The (sending, receiving) replicas of a message."""
    if crossed:
        return tuple((s, t) for s in range(sources) for t in range(targets))
    if sources >= targets:
        share = sources // targets
        return tuple((s, s // share) for s in range(sources))
    share = targets // sources
    return tuple((t // share, t) for t in range(targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The event that a replica has finished its current instruction."""

    replica: Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All replicas of a graph: where each stands, and which messages are under way."""

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
        """Whether the replica's next instruction can be carried out now."""
        instruction = self.instruction(replica)
        if isinstance(instruction, Get):
            return all(self.arrived.get(key, 0) for key in self._incoming(instruction, replica))
        return instruction is not None

    def ready(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.cursors if self.is_ready(replica))

    def handle(self, event: Done) -> "Schedule":
        """The state after a replica has carried out its current instruction."""
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
        """Replicas that wait for ever: nobody is ready and they are not finished."""
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
