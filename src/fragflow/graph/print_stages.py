"""Prints every stage of the compiler as text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fragflow.graph.ir import (
    FDG,
    Constant,
    Loop,
    Node,
    Op,
    Program,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
    walk_with_trips,
)
from fragflow.graph.passes.dataflow import FREE
from fragflow.graph.passes.split import keeps
from fragflow.graph.print_trace import (
    INDENT,
    in_lines,
    literal,
    print_trace,
    statement,
    type_of,
    typed,
    unique_names,
)
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.graph.show import fragment_label, value_names
from fragflow.graph.stages import (
    FragmentsStage,
    KindsStage,
    MessagesStage,
    OwnersStage,
    ProgramStage,
    SplitStage,
    Stage,
    TraceStage,
)

EVERYWHERE = "everywhere"
"""the owner, as it is shown, of operations that every fragment computes itself"""


def print_stage(stage: Stage) -> str:
    """The text of a stage."""
    if isinstance(stage, TraceStage):
        return print_trace(stage)
    match stage:
        case ProgramStage():
            lines = _program(stage.program)
        case KindsStage():
            lines = _kinds(stage)
        case OwnersStage():
            lines = _owners(stage)
        case SplitStage():
            lines = _split(stage)
        case MessagesStage():
            lines = _messages(stage)
        case FragmentsStage():
            lines = _fragments(stage.fdg)
    return "\n".join(lines) + "\n"


def names_in(program: Program) -> Mapping[Value, str]:
    """A name for each value, as `value_names` has it, but no two alike."""
    known, unique = value_names(program), unique_names()
    names: dict[Value, str] = {}

    def give(values: Sequence[Value | None]) -> None:
        for value in values:
            if value is not None and value not in names:
                names[value] = unique(known.get(value, value))

    def block(nodes: Sequence[Node]) -> None:
        for node in nodes:
            match node:
                case Op():
                    give(node.outputs)
                case Loop():
                    give([c.inside for c in node.carries])
                    give([s.inside for s in node.slices])
                    block(node.body)
                    give([c.final for c in node.carries])
                    give([s.outside for s in node.stacks])
                case _:
                    pass

    give([*program.sources.values(), program.loop.counter])
    give([c.output for c in program.constants])
    give([c.inside for c in program.loop.carries])
    block(program.loop.body)
    give([value for value in program.labels if value not in names])
    return {value: value for value in program.avals[program.extent]} | names


class _Listing:
    """Prints the nodes of a program or a fragment, with a margin to their left."""

    def __init__(
        self,
        names: Mapping[Value, str],
        avals: Mapping[Value, Any],
        margin: Callable[[Node | None], str] = lambda _: "",
    ):
        self._names = names
        self._avals = avals
        self._margin = margin

    def training_loop(self, loop: Loop) -> Iterator[str]:
        names = self._names
        yield "train, in every iteration:"
        for carry in loop.carries:
            is_changed = carry.next != carry.inside
            next_ = f"next {names[carry.next]}" if is_changed else "unchanged"
            yield from self._line(f"carry {self._typed(carry.inside)}, {next_}", INDENT)
        yield from self._block(loop.body, INDENT)
        for stack in loop.stacks:
            yield from self._line(f"report {names[stack.outside]}: {names[stack.element]}", INDENT)

    def _line(self, text: str, indent: str, node: Node | None = None) -> list[str]:
        return in_lines(text, indent, self._margin(node))

    def _block(self, nodes: Sequence[Node], indent: str) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, Loop):
                backwards = ", backwards" if node.reverse else ""
                yield from self._line(f"loop, {node.length} steps{backwards}:", indent)
                yield from self._loop(node, indent + INDENT)
            else:
                yield from self._line(self._statement(node), indent, node)

    def _loop(self, loop: Loop, indent: str) -> Iterator[str]:
        names = self._names
        for carry in loop.carries:
            text = (
                f"carry {self._typed(carry.inside)} from {names[carry.init]}, next "
                f"{names[carry.next]}, at last {names[carry.final]}"
            )
            yield from self._line(text, indent)
        for slice_ in loop.slices:
            text = f"slice {self._typed(slice_.inside)} of {names[slice_.outside]}"
            yield from self._line(text, indent)
        yield from self._block(loop.body, indent)
        for stack in loop.stacks:
            text = f"stack {self._typed(stack.outside)} of {names[stack.element]}"
            yield from self._line(text, indent)

    def _statement(self, node: Node) -> str:
        match node:
            case Op():
                given = zip(node.inputs, node.eqn.invars, strict=True)
                return statement(
                    ["_" if v is None else self._typed(v) for v in node.outputs],
                    node.eqn,
                    [literal(x.val) if v is None else self._names[v] for v, x in given],
                )
            case Constant():
                array = next(iter(node.arrays.values()))
                return f"{self._typed(node.output)} = {literal(array)}"
            case Send():
                return f"send {self._message(node.transfer)}"
            case Receive():
                return f"receive {self._message(node.transfer)}"
            case Transfer():
                return f"message {self._message(node)}"
            case Loop():
                raise AssertionError("a loop has lines of its own")

    def _message(self, transfer: Transfer) -> str:
        parcels = (f"{p.collective} {self._typed(p.value)}" for p in transfer.parcels)
        return f"{transfer.name}: {', '.join(parcels)}"

    def _typed(self, value: Value) -> str:
        return typed(self._names[value], self._avals[value])


def _whole(program: Program) -> Mapping[Value, Any]:
    return program.avals[program.extent]


def _program(program: Program) -> Iterator[str]:
    whole, *others = program.avals
    also = f", and the same for {', '.join(map(str, others))}" if others else ""
    yield from in_lines(f"program · {whole}{also}")
    yield ""
    names = names_in(program)
    for constant in program.constants:
        yield typed(names[constant.output], _whole(program)[constant.output]) + " is given"
    yield from _Listing(names, _whole(program)).training_loop(program.loop)


def _kinds(stage: KindsStage) -> Iterator[str]:
    program = stage.program
    names, avals = names_in(program), _whole(program)
    if stage.axis is None:
        yield "kinds · nothing is divided"
    else:
        a, b = stage.axis.extents
        yield f"kinds · {a} beside {b}"
    yield ""
    ends = {v for c in program.loop.carries for v in (c.init, c.final)}
    rows = [
        (kind_in_words(stage.kinds[value]), type_of(avals[value]), names[value], value)
        for value in names
        if value in stage.kinds and value in avals and value not in ends
    ]
    wide, middle = (max((len(row[k]) for row in rows), default=0) for k in (0, 1))
    for kind, type_, name, value in rows:
        yield from in_lines(f"{kind:{wide}}  {type_:{middle}}  {name}")
        reason = stage.kinds[value].reason
        if reason:
            yield from in_lines(reason, 2 * INDENT)


def kind_in_words(kind: Kind) -> str:
    """A kind as `varying(0)`: the axis, or the reduction that is left to do."""
    match kind.tag:
        case Tag.VARYING | Tag.ROW:
            folded = f", {kind.outer}·n·{kind.inner}" if kind.outer > 1 else ""
            return f"{kind.tag.value}({kind.axis}{folded})"
        case Tag.PARTIAL:
            return f"partial({kind.reduction})"
        case Tag.UNIFORM if kind.degree and not kind.zero:
            return f"uniform, n^{kind.degree} times the whole's"
        case _:
            return kind.tag.value


def _owned_listing(
    program: Program, owners: Mapping[str, str], loop: Loop, fragments: Sequence[str]
) -> Iterator[str]:
    """The program with the owner of each operation in the margin; glue is in brackets."""
    shown = {FREE: f"({EVERYWHERE})"}
    wide = max(map(len, (*shown.values(), *(f"({name})" for name in fragments))))

    def margin(node: Node | None) -> str:
        word = ""
        if isinstance(node, Op):
            owner = owners[node.path]
            word = owner if node.components else shown.get(owner, f"({owner})")
        return f"{word:{wide}} |"

    yield from _Listing(names_in(program), _whole(program), margin).training_loop(loop)


def _owners(stage: OwnersStage) -> Iterator[str]:
    yield "owners · of components; (of glue)"
    yield ""
    yield from _owned_listing(stage.program, stage.owners, stage.program.loop, stage.fragments)


def _split(stage: SplitStage) -> Iterator[str]:
    program, split = stage.program, stage.split
    names, avals = names_in(program), _whole(program)
    yield "split"
    found = list(_crossings(stage))
    for source in split.needs:
        for target in split.needs:
            rows = [(value, trips) for s, t, value, trips in found if (s, t) == (source, target)]
            if rows:
                yield from ("", f"from {source} to {target}, in every iteration")
            for value, trips in rows:
                times = "once" if trips == 1 else f"{trips} times"
                yield from in_lines(f"{typed(names[value], avals[value])}, {times}", INDENT)
    for name, mine in split.needs.items():
        kept = [names[c.inside] for c in program.loop.carries if split.keepers[c.final] == name]
        mirrored = [
            names[c.inside]
            for c in program.loop.carries
            if split.keepers[c.final] != name and keeps(c, name, split.needs, split.homes)
        ]
        reported = [
            names[s.outside] for s in program.loop.stacks if split.keepers[s.outside] == name
        ]
        copied = [
            names[v]
            for node in walk((program.loop,))
            if isinstance(node, Op) and split.owners[node.path] == FREE
            for v in node.outputs
            if v is not None and v in mine
        ]
        yield from ("", name)
        told = {"keeps": kept, "mirrors": mirrored, "reports": reported, "computes too": copied}
        for word, values in told.items():
            if values:
                yield from in_lines(f"{word} {', '.join(values)}", INDENT)


def _crossings(stage: SplitStage) -> Iterator[tuple[str, str, Value, int]]:
    """(from, to, value, times per iteration) of all that one fragment makes and another needs."""
    split = stage.split

    def needing(value: Value, home: str) -> Iterator[str]:
        for name, mine in split.needs.items():
            if value in mine and home not in (name, FREE):
                yield name

    for node, trips in walk_with_trips((stage.program.loop,)):
        match node:
            case Op():
                for value in node.outputs:
                    if value is not None:
                        home = split.homes[value]
                        yield from ((home, name, value, trips) for name in needing(value, home))
            case Loop() if node is not stage.program.loop:
                for carry in node.carries:
                    home = split.homes[carry.final]
                    for name in needing(carry.final, home):
                        if not keeps(carry, name, split.needs, split.homes):
                            yield home, name, carry.final, trips
                for stack in node.stacks:
                    home = split.homes[stack.element]
                    for name in needing(stack.outside, home):
                        if stack.element not in split.needs[name]:
                            yield home, name, stack.outside, trips
            case _:
                pass


def _messages(stage: MessagesStage) -> Iterator[str]:
    yield "messages · in the program; owners as before"
    yield ""
    split = stage.split
    yield from _owned_listing(stage.program, split.owners, stage.loop, list(split.needs))


def _fragments(fdg: FDG) -> Iterator[str]:
    yield f"fragments · policy {fdg.policy}"
    names = names_in(fdg.program)
    for fragment in fdg.fragments.values():
        yield from ("", f"fragment {fragment_label(fragment)}, for {fragment.extent}")
        avals = fdg.program.avals[fragment.extent]
        yield from _Listing(names, avals).training_loop(fragment.loop)
