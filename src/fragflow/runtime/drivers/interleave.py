"""Orders the work of several fragments in one thread.

Every fragment's instructions follow the order of the one program that they were cut from. So do
all of them together: a message is then sent before a fragment of the same thread waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fragflow.graph.ir import FDG
from fragflow.runtime.planning.instructions import (
    Ask,
    Code,
    Enter,
    Get,
    Instruction,
    Keep,
    Message,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
    Work,
)
from fragflow.runtime.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStep:
    """One instruction of one fragment."""

    fragment: str
    instruction: Work | Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoop:
    """A loop that several fragments go through together."""

    loops: Mapping[str, int]
    """the loop's number in each fragment"""
    length: int
    body: "Block"


Block: TypeAlias = tuple[DriverStep | SharedLoop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """A loop of one fragment, with its body."""

    enter: Enter
    name: str
    body: "list[Work | Message | _Nest]"


_Item: TypeAlias = Work | Message | _Nest


class ProgramOrder:
    """The position in the program of each message, and of each loop with messages."""

    def __init__(
        self,
        messages: Sequence[str],
        codes: Mapping[str, Code],
        loop_names: Mapping[str, Sequence[str]],
    ):
        """`messages` are in program order; a loop goes by the same name in every fragment."""
        self._of_message = {name: k for k, name in enumerate(messages)}
        self._of_loop: dict[str, int] = {}
        for fragment, code in codes.items():
            around: list[str] = []
            for instruction in code:
                match instruction:
                    case Enter():
                        around.append(loop_names[fragment][instruction.loop])
                    case Repeat():
                        around.pop()
                    case Put() | Get():
                        place = self._of_message[instruction.transfer.name]
                        for loop in around:
                            self._of_loop[loop] = min(place, self._of_loop.get(loop, place))

    def of(self, item: _Item) -> tuple[int, int] | None:
        """The position of an item: smaller ones come first, and `Put` comes before `Get`.

        None for an item without a message, which concerns no other fragment.
        """
        if isinstance(item, Run | Ask | Keep | RunOutOfOrder):
            return None
        if isinstance(item, _Nest):
            return (self._of_loop[item.name], 0) if item.name in self._of_loop else None
        return self._of_message[item.transfer.name], 1 if isinstance(item, Put) else 2


def thread_order(fdg: FDG, plan: Plan, fragments: Sequence[str]) -> Block:
    """Merges the instructions of the fragments that one thread drives."""
    codes = {name: part.code for name, part in plan.parts.items()}
    loop_names = {name: [loop.counter for loop in p.loops] for name, p in plan.parts.items()}
    order = ProgramOrder([t.name for t in fdg.transfers], codes, loop_names)
    return merged({f: codes[f] for f in fragments}, loop_names, order)


def in_turn(block: Block) -> Iterator[DriverStep]:
    """All steps of an iteration, through every loop, one after the other."""
    for item in block:
        if isinstance(item, SharedLoop):
            for _ in range(item.length):
                yield from in_turn(item.body)
        else:
            yield item


def merged(
    codes: Mapping[str, Code], loop_names: Mapping[str, Sequence[str]], order: ProgramOrder
) -> Block:
    """Merges the instructions of several fragments into one order."""
    return _merge({f: _nested(code, loop_names[f]) for f, code in codes.items()}, order)


def _nested(code: Sequence[Instruction], names: Sequence[str]) -> list[_Item]:
    blocks: list[list[_Item]] = [[]]
    for instruction in code:
        match instruction:
            case Enter():
                nest = _Nest(enter=instruction, name=names[instruction.loop], body=[])
                blocks[-1].append(nest)
                blocks.append(nest.body)
            case Repeat():
                blocks.pop()
            case _:
                blocks[-1].append(instruction)
    return blocks[0]


def _merge(items: Mapping[str, Sequence[_Item]], order: ProgramOrder) -> Block:
    left = {fragment: list(block) for fragment, block in items.items()}
    block: list[DriverStep | SharedLoop] = []

    def run_ahead(fragment: str) -> None:
        """Adds the work of a fragment before its next message."""
        queue = left[fragment]
        while queue and order.of(queue[0]) is None:
            block.append(take(fragment))

    def take(fragment: str) -> DriverStep | SharedLoop:
        item = left[fragment].pop(0)
        if isinstance(item, _Nest):
            return _shared({fragment: item}, order)
        return DriverStep(fragment=fragment, instruction=item)

    def next_place(fragment: str) -> tuple[int, int] | None:
        return next((place for i in left[fragment] if (place := order.of(i)) is not None), None)

    while places := {f: p for f in left if (p := next_place(f)) is not None}:
        first = min(places.values())
        group = [f for f, place in places.items() if place == first]
        for fragment in group:
            run_ahead(fragment)
        if isinstance(left[group[0]][0], _Nest):
            block.append(_shared({f: left[f].pop(0) for f in group}, order))
        else:
            block += [take(fragment) for fragment in group]
    for fragment in left:
        run_ahead(fragment)
    return tuple(block)


def _shared(nests: Mapping[str, _Item], order: ProgramOrder) -> SharedLoop:
    loops = {f: nest for f, nest in nests.items() if isinstance(nest, _Nest)}
    return SharedLoop(
        loops={f: nest.enter.loop for f, nest in loops.items()},
        length=next(iter(loops.values())).enter.length,
        body=_merge({f: nest.body for f, nest in loops.items()}, order),
    )
