"""A fragment's program as a flat list of instructions."""

from dataclasses import dataclass
from typing import TypeAlias

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
class RunOutOfOrder:
    """Make all steps of a loop, each environment at its own pace."""

    out_of_order: int


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


Work: TypeAlias = Run | Ask | Keep | RunOutOfOrder
"""instructions that concern no other fragment"""
Message: TypeAlias = Put | Get
Instruction: TypeAlias = Work | Message | Enter | Repeat
Code: TypeAlias = tuple[Instruction, ...]


def routes(sources: int, targets: int, crossed: bool = False) -> tuple[tuple[int, int], ...]:
    """The (sending, receiving) replicas of a message."""
    if crossed:
        return tuple((s, t) for s in range(sources) for t in range(targets))
    if sources >= targets:
        share = sources // targets
        return tuple((s, s // share) for s in range(sources))
    share = targets // sources
    return tuple((t // share, t) for t in range(targets))
