"""Finds the producer and the users of each value of a program, seen through its loops."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragflow._all_reduce import all_reduce_p
from fragflow._jax import contains_all_reduce, is_key
from fragflow.graph.ir import (
    Carry,
    Constant,
    Loop,
    Op,
    Program,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
    walk_with_trips,
)

FREE = "*"
"""the home of values that every fragment computes for itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflow:
    """The program as a flat graph of operations."""

    ops: Mapping[str, Op]
    trips: Mapping[Value, int]
    """number of times each value is made per training iteration"""
    producer: Mapping[Value, str | None]
    """path of the operation that makes a value; None for values given from outside"""
    users: Mapping[Value, tuple[str, ...]]
    """paths of the operations that read a value, or keep it as a carry's first value"""
    free: frozenset[Value]
    """values that follow from the run's sources alone"""


def dataflow(program: Program) -> Dataflow:
    """Analyses `program` before it is coloured."""
    ops: dict[str, Op] = {}
    trips: dict[Value, int] = {c.output: 1 for c in program.constants}
    origin: dict[Value, Value] = {}
    makers: dict[Value, str] = {}
    users: dict[Value, list[str]] = {}
    loops: list[Loop] = []
    for node, count in walk_with_trips((program.loop,)):
        match node:
            case Op():
                ops[node.path] = node
                for value in node.outputs:
                    if value is not None:
                        makers[value], trips[value] = node.path, count
                for value in node.inputs:
                    if value is not None:
                        users.setdefault(value, []).append(node.path)
            case Constant():
                trips[node.output] = count
            case Loop():
                loops.append(node)
                inner = count * (node.length or 1)
                for carry in node.carries:
                    origin[carry.inside] = origin[carry.final] = carry.next
                    trips[carry.inside], trips[carry.final] = inner, count
                for slice_ in node.slices:
                    origin[slice_.inside], trips[slice_.inside] = slice_.outside, inner
                for stack in node.stacks:
                    origin[stack.outside], trips[stack.outside] = stack.element, count
            case Transfer() | Send() | Receive():
                pass  # there is none before the program is cut
    producer: dict[Value, str | None] = {}
    for value in {*makers, *origin, *users, *trips}:
        producer[value] = _maker(value, makers, origin)
    for loop in loops:
        for carry in loop.carries:
            maker = producer.get(carry.next)
            if maker is not None:
                users.setdefault(carry.init, []).append(maker)
    return Dataflow(
        ops=ops,
        trips=trips,
        producer=producer,
        users={value: tuple(dict.fromkeys(paths)) for value, paths in users.items()},
        free=_free_values(program, loops),
    )


def _maker(value: Value, makers: Mapping[Value, str], origin: Mapping[Value, Value]) -> str | None:
    seen = set[Value]()
    while value not in makers:
        if value in seen or value not in origin:
            return None
        seen.add(value)
        value = origin[value]
    return makers[value]


def _free_values(program: Program, loops: list[Loop]) -> frozenset[Value]:
    """Greatest set of values that follow from sources: carries are assumed free until refuted."""
    known = {*program.sources.values(), *(c.output for c in program.constants)}
    known |= {carry.init for carry in program.loop.carries}
    if program.loop.counter is not None:
        known.add(program.loop.counter)
    carries: list[Carry] = [c for loop in loops for c in loop.carries]
    refuted: set[Value] = set()
    while True:
        assumed = {c.inside for c in carries if c.inside not in refuted}
        free = _consequences(program, known | assumed)
        wrong = {c.inside for c in carries if c.inside in free and not {c.next, c.init} <= free}
        if not wrong:
            return frozenset(free)
        refuted |= wrong


def _consequences(program: Program, given: set[Value]) -> set[Value]:
    """All values that follow from `given` without a component or a reduction over replicas."""
    free, size = set(given), -1
    while size != (size := len(free)):
        for node in walk((program.loop,)):
            match node:
                case Op():
                    is_glue = not node.components and not contains_all_reduce(node.eqn)
                    if is_glue and all(v is None or v in free for v in node.inputs):
                        free |= {v for v in node.outputs if v is not None}
                case Constant():
                    free.add(node.output)
                case Loop():
                    free |= {s.inside for s in node.slices if s.outside in free}
                    free |= {s.outside for s in node.stacks if s.element in free}
                    free |= {c.final for c in node.carries if {c.inside, c.next} <= free}
                case _:
                    pass
    return free


def num_bytes(aval: Any) -> int:
    """Size of one value of this type."""
    size = 8 if is_key(aval) else np.dtype(aval.dtype).itemsize
    return math.prod(aval.shape) * size


def is_all_reduce(op: Op) -> bool:
    return op.eqn.primitive is all_reduce_p
