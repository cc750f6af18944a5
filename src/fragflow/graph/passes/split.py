"""The one transformation: each fragment gets its own copy of every loop it takes part in.

A carry belongs to the fragment that computes its next value, and is mirrored where it is read: the
reader keeps it from its first value on and receives each next one. A collected output is collected
where its elements are, or are used. All messages are placed in one global order of the program,
from which each fragment's sends and receives are read off: so they match, and cannot deadlock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fragflow.graph.ir import (
    Carry,
    Constant,
    Loop,
    Node,
    Op,
    Parcel,
    Program,
    Receive,
    Send,
    Stack,
    Transfer,
    Value,
    walk,
)
from fragflow.graph.optimisations import Optimisations
from fragflow.graph.passes.dataflow import FREE, Dataflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The owners of operations, the homes of values, and the values that fragments need."""

    owners: Mapping[str, str]
    homes: Mapping[Value, str]
    needs: Mapping[str, frozenset[Value]]
    keepers: Mapping[Value, str]
    """for each state leaf and metric, the fragment it is read from at the end"""


def split(
    program: Program,
    flow: Dataflow,
    owners: Mapping[str, str],
    fragments: Sequence[str],
    optimisations: Optimisations,
) -> Split:
    """Decides where every value lives and which fragments need it."""
    homes = _homes(program, flow, owners)
    needs: dict[str, set[Value]] = {name: set() for name in fragments}
    nodes = list(walk((program.loop,)))
    keepers: dict[Value, str] = {}
    for carry in program.loop.carries:
        if homes[carry.inside] != FREE:
            keepers[carry.final] = homes[carry.inside]
            needs[homes[carry.inside]].add(carry.next)
    for stack in program.loop.stacks:
        home = homes[stack.element]
        keepers[stack.outside] = fragments[0] if home == FREE else home
        needs[keepers[stack.outside]].add(stack.element)

    def close_needs() -> None:
        size = -1
        while size != (size := sum(map(len, needs.values()))):
            for node in reversed(nodes):
                for name in fragments:
                    _add_needs(node, name, needs, homes, owners, optimisations)

    close_needs()
    for carry in program.loop.carries:
        if homes[carry.inside] == FREE:
            readers = [name for name in fragments if carry.inside in needs[name]]
            keepers[carry.final] = (readers or fragments)[0]
            needs[keepers[carry.final]].add(carry.inside)
    close_needs()
    return Split(
        owners=owners,
        homes=homes,
        needs={name: frozenset(values) for name, values in needs.items()},
        keepers=keepers,
    )


def _homes(program: Program, flow: Dataflow, owners: Mapping[str, str]) -> Mapping[Value, str]:
    """The fragment that computes each value, `FREE` if every one does."""
    homes: dict[Value, str] = {value: FREE for value in flow.free}
    for value, maker in flow.producer.items():
        if value not in homes:
            homes[value] = owners[maker] if maker is not None else FREE
    # A carry whose next value is free, but whose first is not, stays where its first value is.
    for node in walk((program.loop,)):
        if isinstance(node, Loop):
            for carry in node.carries:
                if carry.inside not in flow.free and homes.get(carry.inside, FREE) == FREE:
                    homes[carry.inside] = homes[carry.final] = homes[carry.init]
    for carry in program.loop.carries:
        homes[carry.init] = FREE
    return homes


def _add_needs(
    node: Node,
    name: str,
    needs: dict[str, set[Value]],
    homes: Mapping[Value, str],
    owners: Mapping[str, str],
    optimisations: Optimisations,
) -> None:
    mine = needs[name]
    match node:
        case Op():
            owner = owners[node.path]
            wanted = any(v in mine for v in node.outputs)
            if owner == name or (owner == FREE and wanted):
                mine.update(v for v in node.inputs if v is not None)
        case Loop():
            for carry in node.carries:
                if keeps(carry, name, needs, homes):
                    mine.update((carry.next, carry.init))
            for slice_ in node.slices:
                if slice_.inside in mine:
                    mine.add(slice_.outside)
            for stack in node.stacks:
                if stack.outside in mine and not _is_sunk(stack, name, mine, homes, optimisations):
                    mine.add(stack.element)
                wanted = any(
                    stack.outside in needs[other]
                    and _is_sunk(stack, other, needs[other], homes, optimisations)
                    for other in needs
                )
                if homes[stack.element] == name and wanted:
                    mine.add(stack.element)
        case _:
            pass


def _is_sunk(
    stack: Stack,
    name: str,
    mine: set[Value] | frozenset[Value],
    homes: Mapping[Value, str],
    optimisations: Optimisations,
) -> bool:
    """True if `name` gets the collected output after the loop, rather than its elements within."""
    at_home = homes[stack.element] in (name, FREE)
    return optimisations.sink and not at_home and stack.element not in mine


def keeps(
    carry: Carry,
    name: str,
    needs: Mapping[str, frozenset[Value] | set[Value]],
    homes: Mapping[Value, str],
) -> bool:
    """True if `name` has this carry in its own loop, as its owner or as a mirror."""
    home = homes[carry.inside]
    if carry.inside in needs[name]:
        return True
    if home == FREE:
        return carry.final in needs[name]
    return home == name and any(carry.final in values for values in needs.values())


def collects(
    stack: Stack, name: str, split_: Split, optimisations: Optimisations, wanted: bool
) -> bool:
    """True if `name` collects this output in its own loop."""
    mine = split_.needs[name]
    if stack.outside in mine and not _is_sunk(stack, name, mine, split_.homes, optimisations):
        return True
    return wanted and split_.homes[stack.element] == name


def insert_transfers(
    program: Program, split_: Split, fragments: Sequence[str], optimisations: Optimisations
) -> Loop:
    """The program with a `Transfer` after each value that another fragment needs."""

    def own(value: Value, name: str) -> bool:
        return split_.homes[value] in (name, FREE)

    def after(values: Sequence[Value]) -> list[Transfer]:
        out: list[Transfer] = []
        for value in values:
            home = split_.homes[value]
            for name in fragments:
                if value in split_.needs[name] and not own(value, name):
                    out.append(_transfer(home, name, value))
        return out

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        out: list[Node] = []
        for node in nodes:
            match node:
                case Op():
                    out.append(node)
                    out += after([v for v in node.outputs if v is not None])
                case Loop():
                    inner = replace(node, body=block(node.body))
                    out.append(inner)
                    for carry in node.carries:
                        out += [
                            t
                            for t in after([carry.final])
                            if not keeps(carry, t.target, split_.needs, split_.homes)
                        ]
                    for stack in node.stacks:
                        home = split_.homes[stack.element]
                        for name in fragments:
                            needed = stack.outside in split_.needs[name]
                            if needed and _is_sunk(
                                stack, name, split_.needs[name], split_.homes, optimisations
                            ):
                                out.append(_transfer(home, name, stack.outside))
                case _:
                    out.append(node)
        return tuple(out)

    return replace(program.loop, body=block(program.loop.body))


def _transfer(source: str, target: str, value: Value) -> Transfer:
    parcel = Parcel(value=value, collective="")
    return Transfer(name="", source=source, target=target, parcels=(parcel,))


def project(loop: Loop, name: str, split_: Split, optimisations: Optimisations) -> Loop:
    """The part of the program that fragment `name` runs."""
    mine = split_.needs[name]
    sunk_elsewhere = {
        parcel.value
        for node in walk((loop,))
        if isinstance(node, Transfer) and node.source == name
        for parcel in node.parcels
    }

    def block(nodes: Sequence[Node]) -> tuple[Node, ...]:
        out: list[Node] = []
        for node in nodes:
            match node:
                case Op():
                    owner = split_.owners[node.path]
                    if owner == name or (owner == FREE and any(v in mine for v in node.outputs)):
                        out.append(node)
                case Constant():
                    if node.output in mine:
                        out.append(node)
                case Transfer():
                    if name in (node.source, node.target):
                        out.append(node)
                case Loop():
                    inner = loop_part(node)
                    if inner.body or inner.carries or inner.stacks:
                        out.append(inner)
                case Send() | Receive():
                    pass  # a transfer becomes these later
        return tuple(out)

    def loop_part(node: Loop) -> Loop:
        is_outermost = node.path == loop.path
        return replace(
            node,
            carries=tuple(
                c
                for c in node.carries
                if keeps(c, name, split_.needs, split_.homes)
                or (is_outermost and split_.keepers[c.final] == name)
            ),
            slices=tuple(s for s in node.slices if s.inside in mine),
            stacks=tuple(
                s
                for s in node.stacks
                if (is_outermost and split_.keepers[s.outside] == name)
                or (
                    not is_outermost
                    and collects(s, name, split_, optimisations, s.outside in sunk_elsewhere)
                )
            ),
            body=block(node.body),
        )

    return loop_part(loop)
