"""Checks that plans are legal: a fault of fragflow is said here, not by a run that hangs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fragflow.errors import StageError
from fragflow.runtime.planning.instructions import (
    Ask,
    Code,
    Enter,
    Get,
    Keep,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
)

PLAN = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSizes:
    """Numbers of the things that instructions of a fragment may refer to."""

    segments: int
    rows: Sequence[int]
    """of each loop: the outputs that are collected on the host"""
    host_calls: int
    out_of_order: int


def check_code(name: str, code: Code, sizes: CodeSizes) -> None:
    """Checks that instructions refer to what there is, and that loops nest."""
    opened: list[tuple[int, Enter]] = []
    for at, instruction in enumerate(code):
        where = f"instruction {at} of {name}, {type(instruction).__name__}"
        match instruction:
            case Run():
                _refer(where, "segment", instruction.segment, sizes.segments)
            case Ask():
                _refer(where, "host call", instruction.call, sizes.host_calls)
            case RunOutOfOrder():
                _refer(where, "rollout", instruction.out_of_order, sizes.out_of_order)
            case Keep():
                _refer(where, "loop", instruction.loop, len(sizes.rows))
                _refer(where, "row", instruction.row, sizes.rows[instruction.loop])
                if instruction.loop not in [enter.loop for _, enter in opened]:
                    raise StageError(PLAN, f"{where}, is outside of loop {instruction.loop}")
            case Put() | Get():
                transfer = instruction.transfer
                end = transfer.source if isinstance(instruction, Put) else transfer.target
                if end != name:
                    raise StageError(PLAN, f"{where}, is about {transfer.name}, which is of {end}")
            case Enter():
                _refer(where, "loop", instruction.loop, len(sizes.rows))
                opened.append((at, instruction))
            case Repeat():
                if not opened:
                    raise StageError(PLAN, f"{where}, ends no loop")
                start, enter = opened.pop()
                expected = Repeat(enter.loop, enter.length, start + 1)
                if instruction != expected:
                    raise StageError(PLAN, f"{where}, is {instruction}: expected {expected}")
    if opened:
        raise StageError(PLAN, f"{name} never ends loop {opened[-1][1].loop}")


def _refer(where: str, what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise StageError(PLAN, f"{where}, refers to {what} {index} of {count}")


def check_messages(codes: Mapping[str, Code]) -> None:
    """Checks that all that is put is got, as often and in the same order."""
    for a in codes:
        for b in codes:
            put, got = list(_messages(codes[a], Put, a, b)), list(_messages(codes[b], Get, a, b))
            if put != got:
                raise StageError(PLAN, f"{a} puts {_listed(put)}; {b} gets {_listed(got)}")


def _messages(
    code: Code, kind: type[Put] | type[Get], source: str, target: str
) -> Iterator[tuple[str, int]]:
    """By name, messages from one fragment to another, and how often each is sent."""
    trips = [1]
    for instruction in code:
        match instruction:
            case Enter():
                trips.append(trips[-1] * instruction.length)
            case Repeat():
                trips.pop()
            case Put() | Get() if isinstance(instruction, kind):
                transfer = instruction.transfer
                if (transfer.source, transfer.target) == (source, target):
                    yield transfer.name, trips[-1]
            case _:
                pass


def _listed(messages: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ×{trips}" for name, trips in messages) or "nothing"
