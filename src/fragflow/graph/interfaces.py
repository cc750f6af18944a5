"""How values travel: the collective of every message follows from replicas and environment axis."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fragflow.graph.dataflow import is_all_reduce, num_bytes
from fragflow.graph.ir import (
    FDG,
    Loop,
    Node,
    Op,
    Parcel,
    Program,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
)
from fragflow.graph.kinds import Kind, Tag


def with_collectives(
    loop: Loop, replicas: Mapping[str, int], kinds: Mapping[str, Mapping[Value, Kind]]
) -> Loop:
    """Names every message and says how each of its values travels."""
    reductions = _reductions(loop)
    count = 0

    def transfer(node: Transfer) -> Transfer:
        nonlocal count
        count += 1
        parcels = tuple(
            _parcel(p.value, node, replicas, kinds[node.source].get(p.value), reductions)
            for p in node.parcels
        )
        return replace(node, name=f"{node.source}>{node.target}#{count}", parcels=parcels)

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


def _parcel(
    value: Value,
    transfer: Transfer,
    replicas: Mapping[str, int],
    kind: Kind | None,
    reductions: Mapping[Value, str],
) -> Parcel:
    source, target = replicas[transfer.source], replicas[transfer.target]
    if source == target:
        return Parcel(value=value, collective="one-to-one")
    assert kind is not None, f"nothing is known of {value}"
    if kind.tag is Tag.PARTIAL:
        return Parcel(value=value, collective=f"reduce-{reductions[value]}")
    if kind.tag is Tag.VARYING:
        return Parcel(
            value=value, collective="gather" if source > target else "scatter", axis=kind.axis
        )
    return Parcel(value=value, collective="pick" if source > target else "broadcast")


def as_sends_and_receives(loop: Loop, name: str) -> Loop:
    """A fragment's view of the messages it takes part in."""

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(view(n) for n in nodes)

    def view(node: Node) -> Node:
        if isinstance(node, Transfer):
            return Send(transfer=node) if node.source == name else Receive(transfer=node)
        return replace(node, body=block(node.body)) if isinstance(node, Loop) else node

    return replace(loop, body=block(loop.body))


def transfers_in(loop: Loop) -> tuple[tuple[Transfer, int], ...]:
    """All messages with how often each is sent per training iteration."""
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
    """How often each message is sent per training iteration."""
    return {
        transfer.name: trips
        for fragment in fdg.fragments.values()
        for transfer, trips in transfers_in(fragment.loop)
    }


def parcel_bytes(program: Program, parcel: Parcel, source: int, target: int) -> int:
    """Bytes that one crossing of this value moves, over all replicas."""
    whole = num_bytes(program.avals[program.num_envs][parcel.value])
    match parcel.collective:
        case "gather" | "scatter":
            return whole
        case "broadcast":
            return whole * (target // source)
        case "pick":
            return whole * target
        case "one-to-one":
            local = program.avals[program.num_envs // source][parcel.value]
            return num_bytes(local) * source
        case _:
            return whole * source


def transfer_bytes(fdg: FDG, transfer: Transfer) -> int:
    """Bytes that one crossing of a message moves, over all replicas."""
    source = fdg.fragments[transfer.source].replicas
    target = fdg.fragments[transfer.target].replicas
    return sum(parcel_bytes(fdg.program, p, source, target) for p in transfer.parcels)
