"""Optimisations of the messages; each can be switched off, and changes no result."""

from collections.abc import Sequence
from dataclasses import replace

from fragflow.graph.ir import Loop, Node, Op, Transfer, Value, walk
from fragflow.graph.passes.dataflow import FREE
from fragflow.graph.passes.split import Split


def unhoist(loop: Loop, split: Split) -> Loop:
    """The naive placement: a value read only within a loop is sent anew in each of its steps."""

    def block(around: Loop, nodes: Sequence[Node]) -> tuple[Node, ...]:
        kept: list[Node] = []
        moved: dict[str, list[Transfer]] = {}
        at_end = {c.next for c in around.carries} | {s.element for s in around.stacks}
        for i, node in enumerate(nodes):
            goal = None
            if isinstance(node, Transfer) and node.parcels[0].value not in at_end:
                goal = _only_reader(node, nodes[i + 1 :], split)
            if goal is not None and isinstance(node, Transfer):
                moved.setdefault(goal, []).append(node)
            else:
                kept.append(node)
        return tuple(
            replace(n, body=block(n, (*moved.get(n.path, ()), *n.body)))
            if isinstance(n, Loop)
            else n
            for n in kept
        )

    return replace(loop, body=block(loop, loop.body))


def _only_reader(transfer: Transfer, later: Sequence[Node], split: Split) -> str | None:
    """The loop, shared by both ends, inside which the target makes all its uses of the value."""
    value, target = transfer.parcels[0].value, transfer.target
    readers = [node for node in later if value in _reads(node, target, split)]
    if len(readers) != 1 or not isinstance(readers[0], Loop):
        return None
    node = readers[0]
    boundary = {c.init for c in node.carries} | {c.next for c in node.carries}
    boundary |= {s.outside for s in node.slices} | {s.element for s in node.stacks}
    sender_takes_part = any(
        isinstance(n, Op) and split.owners[n.path] == transfer.source for n in walk(node.body)
    )
    return node.path if value not in boundary and sender_takes_part else None


def _reads(node: Node, target: str, split: Split) -> set[Value]:
    """The values that `target` reads in `node`."""
    found: set[Value] = set()
    for inner in walk((node,)):
        match inner:
            case Op():
                if split.owners[inner.path] in (target, FREE):
                    found |= {v for v in inner.inputs if v is not None}
            case Loop():
                found |= {c.init for c in inner.carries} | {c.next for c in inner.carries}
                found |= {s.outside for s in inner.slices} | {s.element for s in inner.stacks}
            case _:
                pass
    return found


def coalesce(loop: Loop, split: Split) -> Loop:
    """Joins messages of one direction: each waits until its first value is used.

    It does not wait while its sender works on a component: that would keep the receiver waiting.
    """

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        out: list[Node] = []
        waiting: dict[tuple[str, str], Transfer] = {}

        def flush(pair: tuple[str, str]) -> None:
            out.append(waiting.pop(pair))

        for node in nodes:
            if isinstance(node, Transfer):
                pair = (node.source, node.target)
                earlier = waiting.get(pair)
                parcels = (*earlier.parcels, *node.parcels) if earlier else node.parcels
                waiting[pair] = replace(node, parcels=parcels)
                continue
            for pair, transfer in list(waiting.items()):
                values = {p.value for p in transfer.parcels}
                if values & _reads(node, pair[1], split) or _works(node, pair[0], split):
                    flush(pair)
            out.append(replace(node, body=block(node.body)) if isinstance(node, Loop) else node)
        for pair in list(waiting):
            flush(pair)
        return tuple(out)

    return replace(loop, body=block(loop.body))


def _works(node: Node, name: str, split: Split) -> bool:
    return any(
        isinstance(inner, Op) and inner.components and split.owners[inner.path] == name
        for inner in walk((node,))
    )
