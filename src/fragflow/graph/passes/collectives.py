"""Chooses the collective of every message, from numbers of replicas and the environment axis."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fragflow.graph.ir import (
    FDG,
    Loop,
    Node,
    Op,
    Parcel,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
)
from fragflow.graph.passes.dataflow import is_all_reduce, num_bytes
from fragflow.graph.replicas.analysis import Known
from fragflow.graph.replicas.kinds import Tag
from fragflow.policies.policy import Placed


def with_collectives(
    loop: Loop, placed: Sequence[Placed], kinds: Callable[[Placed], Known]
) -> Loop:
    """Names every message and says how each of its values travels.

    `kinds` are those along the axis that a fragment's replicas divide.
    """
    reductions = _reductions(loop)
    by_name = {p.name: p for p in placed}
    count = 0

    def transfer(node: Transfer) -> Transfer:
        nonlocal count
        count += 1
        ends = by_name[node.source], by_name[node.target]
        parcels = tuple(_parcel(p.value, ends, kinds, reductions) for p in node.parcels)
        name = f"{node.source}>{node.target}#{count}"
        return replace(node, name=name, parcels=parcels, crossed=_is_crossed(*ends))

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(
            transfer(n)
            if isinstance(n, Transfer)
            else replace(n, body=block(n.body))
            if isinstance(n, Loop)
            else n
            for n in nodes
        )

    return replace(loop, body=block(loop.body))


def _reductions(loop: Loop) -> Mapping[Value, str]:
    return {
        value: op.eqn.params["operation"]
        for op in walk((loop,))
        if isinstance(op, Op) and is_all_reduce(op)
        for value in op.inputs
        if value is not None
    }


def _is_crossed(source: Placed, target: Placed) -> bool:
    return source.over != target.over and source.replicas > 1 and target.replicas > 1


def _parcel(
    value: Value,
    ends: tuple[Placed, Placed],
    kinds: Callable[[Placed], Known],
    reductions: Mapping[Value, str],
) -> Parcel:
    source, target = ends
    crossed = _is_crossed(source, target)
    if source.replicas == target.replicas and not crossed:
        return Parcel(value=value, collective="one-to-one")
    cut = join = None
    if target.replicas > source.replicas or crossed:
        kind = kinds(target)[source.name][value]
        cut = kind.axis if kind.tag is Tag.VARYING else None
    if source.replicas > target.replicas or crossed:
        kind = kinds(source)[source.name][value]
        if kind.tag is Tag.PARTIAL:
            return Parcel(value=value, collective=f"reduce-{reductions[value]}", cut=cut)
        join = kind.axis if kind.tag is Tag.VARYING else None
    match cut, join:
        case None, None:
            how = "pick" if source.replicas > target.replicas and not crossed else "broadcast"
        case None, _:
            how = "gather"
        case _, None:
            how = "scatter"
        case _:
            how = "exchange"
    return Parcel(value=value, collective=how, cut=cut, join=join)


def as_sends_and_receives(loop: Loop, name: str) -> Loop:
    """`loop` as fragment `name` runs it: its messages become sends and receives."""

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(view(n) for n in nodes)

    def view(node: Node) -> Node:
        if isinstance(node, Transfer):
            return Send(transfer=node) if node.source == name else Receive(transfer=node)
        return replace(node, body=block(node.body)) if isinstance(node, Loop) else node

    return replace(loop, body=block(loop.body))


def transfers_in(loop: Loop) -> tuple[tuple[Transfer, int], ...]:
    """All messages, each with the number of times it is sent per training iteration."""
    found: list[tuple[Transfer, int]] = []

    def block(nodes: Sequence[Node], trips: int) -> None:
        for node in nodes:
            match node:
                case Transfer():
                    found.append((node, trips))
                case Send():
                    found.append((node.transfer, trips))
                case Loop():
                    block(node.body, trips * (node.length or 1))
                case _:
                    pass

    block(loop.body, 1)
    return tuple(found)


def crossings(fdg: FDG) -> Mapping[str, int]:
    """By message, the number of times it is sent per training iteration."""
    return {
        transfer.name: trips
        for fragment in fdg.fragments.values()
        for transfer, trips in transfers_in(fragment.loop)
    }


def parcel_bytes(fdg: FDG, transfer: Transfer, parcel: Parcel) -> int:
    """Bytes that one crossing of this value moves, over all replicas."""
    source, target = fdg.fragments[transfer.source], fdg.fragments[transfer.target]
    whole = num_bytes(fdg.program.avals[fdg.program.extent][parcel.value])
    copies = target.replicas if transfer.crossed else max(target.replicas // source.replicas, 1)
    match parcel.collective:
        case "scatter" | "exchange":
            return whole
        case "gather":
            return whole * (copies if transfer.crossed else 1)
        case "broadcast":
            return whole * copies
        case "pick":
            return whole * target.replicas
        case "one-to-one":
            return num_bytes(fdg.program.avals[source.extent][parcel.value]) * source.replicas
        case _:
            return whole * source.replicas * (1 if parcel.cut is not None else copies)


def transfer_bytes(fdg: FDG, transfer: Transfer) -> int:
    """Bytes that one crossing of a message moves, over all replicas."""
    return sum(parcel_bytes(fdg, transfer, p) for p in transfer.parcels)
