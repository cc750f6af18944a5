"""Checks that every stage of the compiler is legal, when it is made.

What is found here is, as a `StageError`, a fault of fragflow, said where it was made and not where
it strikes. The user's mistakes are refused by the passes and in `check.py`, and here only what is
known of no message before: numbers that share a byte.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fragflow.errors import GraphError, PolicyError, StageError
from fragflow.graph.check import describe
from fragflow.graph.ir import (
    FDG,
    Constant,
    Fragment,
    Loop,
    Node,
    Op,
    Program,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
)
from fragflow.graph.passes.dataflow import FREE
from fragflow.graph.passes.split import Split, keeps
from fragflow.graph.replicas.kinds import is_below_a_byte
from fragflow.graph.replicas.rule_guards import well_formed
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
from fragflow.graph.tracing.trace import SOURCES


def check_stage(stage: Stage) -> None:
    """Checks that what a pass has made is legal; StageError names what is not."""
    match stage:
        case TraceStage():
            _check_trace(stage)
        case ProgramStage():
            _check_program(stage.program)
        case KindsStage():
            _check_kinds(stage)
        case OwnersStage():
            _check_owners(stage)
        case SplitStage():
            _check_split(stage)
        case MessagesStage():
            _check_transfers(stage)
        case FragmentsStage():
            _check_fdg(stage.fdg)


def _check_trace(stage: TraceStage) -> None:
    """Every trace has the same leaves, and an input and an output for each of them."""
    first = stage.traces[0]
    for trace in stage.traces:
        where = f"the trace for {trace.extent}"
        for what in ("state_labels", "is_weight", "metric_labels", "episodes"):
            here, there = getattr(trace, what), getattr(first, what)
            if here != there:
                raise StageError(stage.name, f"{where} has {what} {here}, the first one {there}")
        leaves, handed_on = len(trace.state_labels), len(trace.metric_labels) + len(trace.episodes)
        given = (len(trace.closed.jaxpr.invars), len(trace.closed.jaxpr.outvars))
        wanted = (leaves + 1 + len(SOURCES), leaves + handed_on)
        if given != wanted:
            raise StageError(
                stage.name, f"{where} has (inputs, outputs) {given}; its leaves make {wanted}"
            )


def _check_program(program: Program) -> None:
    """Every value is made once, before it is read, and has a type in every extent."""
    scopes = _Scopes(stage="program", who="the program")
    scopes.training_loop(program, program.loop, program.constants)
    for extent, avals in program.avals.items():
        for value in scopes.made:
            if value not in avals:
                raise StageError("program", f"{value} has no type for {extent}")


@dataclass(slots=True, kw_only=True)
class _Scopes:
    """Walks a program in order; every value that is read must be there."""

    stage: str
    who: str
    made: dict[Value, int] = field(default_factory=dict[Value, int])
    """all values so far, with their positions; those that are no longer in scope too"""

    def training_loop(
        self,
        program: Program,
        loop: Loop,
        constants: Sequence[Constant],
        given: Iterable[Value] = (),
    ) -> None:
        scope: set[Value] = set()
        self._make(scope, dict.fromkeys([*program.sources.values(), *given]))
        self._make(scope, [c.output for c in constants])
        self._loop(loop, scope | {c.init for c in loop.carries})

    def _make(self, scope: set[Value], values: Iterable[Value | None]) -> None:
        for value in values:
            if value is not None:
                if value in self.made:
                    raise StageError(self.stage, f"{self.who} makes {value} twice")
                self.made[value] = len(self.made)
                scope.add(value)

    def _read(self, scope: set[Value], values: Iterable[Value | None], what: str) -> None:
        for value in values:
            if value is not None and value not in scope:
                raise StageError(self.stage, f"{self.who} {what} without {value}")

    def _loop(self, loop: Loop, scope: set[Value]) -> None:
        self._read(scope, [c.init for c in loop.carries], f"begins loop {loop.path}")
        self._read(scope, [s.outside for s in loop.slices], f"begins loop {loop.path}")
        inner = set(scope)
        self._make(inner, [loop.counter, *(c.inside for c in loop.carries)])
        self._make(inner, [s.inside for s in loop.slices])
        self._block(loop.body, inner)
        self._read(inner, [c.next for c in loop.carries], f"ends a step of loop {loop.path}")
        self._read(inner, [s.element for s in loop.stacks], f"ends a step of loop {loop.path}")

    def _block(self, nodes: Sequence[Node], scope: set[Value]) -> None:
        for node in nodes:
            match node:
                case Op():
                    self._read(scope, node.inputs, f"runs {node.path} ({node.eqn.primitive.name})")
                    self._make(scope, node.outputs)
                case Constant():
                    self._make(scope, [node.output])
                case Loop():
                    self._loop(node, scope)
                    self._make(scope, [c.final for c in node.carries])
                    self._make(scope, [s.outside for s in node.stacks])
                case Send() | Transfer():
                    transfer = node.transfer if isinstance(node, Send) else node
                    self._read(scope, [p.value for p in transfer.parcels], f"sends {transfer.name}")
                case Receive():
                    scope |= {p.value for p in node.transfer.parcels}


def _check_kinds(stage: KindsStage) -> None:
    """Every value has a kind, which fits its shape."""
    axis, program = stage.axis, stage.program
    for value in _values(program):
        kind = stage.kinds.get(value)
        if kind is None:
            raise StageError(stage.name, f"{value} has no kind")
        if axis is not None:
            a, b = (program.avals[extent][value] for extent in axis.extents)
            if not well_formed(kind, a, b, axis.sizes):
                raise StageError(
                    stage.name, f"{value} is {kind}, but has the shapes {a.shape} and {b.shape}"
                )


def _values(program: Program) -> set[Value]:
    """All values that are made in an iteration."""
    found: set[Value] = set()
    for node in walk((program.loop,)):
        match node:
            case Op():
                found |= {v for v in node.outputs if v is not None}
            case Loop():
                found |= {c.inside for c in node.carries} | {s.inside for s in node.slices}
                if node is not program.loop:
                    found |= {c.final for c in node.carries} | {s.outside for s in node.stacks}
            case _:
                pass
    return found


def _check_owners(stage: OwnersStage) -> None:
    """Every operation has exactly one owner, or is free."""
    for path, op in stage.flow.ops.items():
        owner = stage.owners.get(path)
        if owner not in (*stage.fragments, FREE):
            what = "no owner" if owner is None else f"the owner {owner!r}, which is no fragment"
            raise StageError(stage.name, f"operation {path} ({op.eqn.primitive.name}) has {what}")


def _check_split(stage: SplitStage) -> None:
    """Every value that a fragment reads is among its needs, and is made there or sent to it."""
    program, split = stage.program, stage.split
    nodes = list(walk((program.loop,)))
    for name in split.needs:
        for node in nodes:
            for value, what in _demanded(node, name, split):
                if value not in split.needs[name]:
                    raise StageError(stage.name, f"{name} {what} without {value}")
    for name, mine in split.needs.items():
        for value in mine:
            home = split.homes.get(value, FREE)
            if home != FREE and home not in split.needs:
                raise StageError(stage.name, f"{value}, which {name} needs, is made by no fragment")
    for value in (c.final for c in program.loop.carries):
        if split.keepers.get(value) not in split.needs:
            raise StageError(stage.name, f"no fragment keeps {value}")
    for value in (s.outside for s in program.loop.stacks):
        if split.keepers.get(value) not in split.needs:
            raise StageError(stage.name, f"no fragment keeps {value}")


def _demanded(node: Node, name: str, split: Split) -> Iterable[tuple[Value, str]]:
    """The values that fragment `name` cannot do without at `node`, and for what."""
    mine = split.needs[name]
    match node:
        case Op():
            owner = split.owners[node.path]
            if owner == name or (owner == FREE and any(v in mine for v in node.outputs)):
                what = f"runs {node.path} ({node.eqn.primitive.name})"
                yield from ((v, what) for v in node.inputs if v is not None)
        case Loop():
            for carry in node.carries:
                if keeps(carry, name, split.needs, split.homes):
                    yield carry.init, f"begins loop {node.path}"
                    yield carry.next, f"ends a step of loop {node.path}"
            for slice_ in node.slices:
                if slice_.inside in mine:
                    yield slice_.outside, f"begins loop {node.path}"
            for stack in node.stacks:
                if stack.outside in mine and split.homes[stack.element] in (name, FREE):
                    yield stack.element, f"collects {stack.outside}"
        case _:
            pass


def _check_transfers(stage: MessagesStage) -> None:
    """Every message goes to another fragment, after its values are made and before they are read.

    Values that were joined are in the order in which they are made.
    """
    scopes = _Scopes(stage=stage.name, who="the program")
    scopes.training_loop(stage.program, stage.loop, stage.program.constants)
    for node in walk((stage.loop,)):
        if isinstance(node, Transfer):
            if node.source == node.target:
                raise StageError(stage.name, f"{node.name} goes from {node.source} to itself")
            order = [scopes.made[p.value] for p in node.parcels]
            if not order or order != sorted(set(order)):
                values = ", ".join(p.value for p in node.parcels)
                raise StageError(
                    stage.name, f"the values of {node.name} are not in the order made: {values}"
                )
    _check_read(stage.loop, stage, {})


_AT_ENDS = "the ends of loops"


def _check_read(loop: Loop, stage: MessagesStage, later: dict[str, set[Value]]) -> None:
    """Checks that what is sent is read, going backwards; `later` is what is read from here on."""
    ends = later.setdefault(_AT_ENDS, set())
    ends |= {c.next for c in loop.carries} | {s.element for s in loop.stacks}
    for node in reversed(loop.body):
        match node:
            case Op():
                reads = later.setdefault(stage.split.owners[node.path], set())
                reads |= {v for v in node.inputs if v is not None}
            case Loop():
                _check_read(node, stage, later)
                ends |= {c.init for c in node.carries} | {s.outside for s in node.slices}
            case Transfer():
                for parcel in node.parcels:
                    readers = (node.target, FREE, _AT_ENDS)
                    if not any(parcel.value in later.get(reader, ()) for reader in readers):
                        raise StageError(
                            stage.name,
                            f"{node.target} does not read {parcel.value} after {node.name}",
                        )
            case _:
                pass


def _check_fdg(fdg: FDG) -> None:
    """Every fragment has what it reads, and every message is received as it is sent."""
    for fragment in fdg.fragments.values():
        _check_fragment(fdg.program, fragment)
    _check_messages(fdg)
    _refuse_small_types(fdg)
    owned = [c for fragment in fdg.fragments.values() for c in fragment.components]
    if len(owned) != len(set(owned)):
        raise GraphError(f"a component is placed twice: {sorted(owned)}")


def _check_fragment(program: Program, fragment: Fragment) -> None:
    """Every value that a fragment reads is there before, by itself or by a message."""
    for node in walk((fragment.loop,)):
        if isinstance(node, Transfer):
            raise StageError(
                "fragments", f"fragment {fragment.name} neither sends nor receives {node.name}"
            )
    scopes = _Scopes(stage="fragments", who=f"fragment {fragment.name}")
    scopes.training_loop(program, fragment.loop, fragment.constants)


def _check_messages(fdg: FDG) -> None:
    """Each message is sent and received once per step, in one order on both sides."""
    sent = {name: _order(fragment, Send) for name, fragment in fdg.fragments.items()}
    received = {name: _order(fragment, Receive) for name, fragment in fdg.fragments.items()}
    for transfer in fdg.transfers:
        for name, found in ((transfer.source, sent), (transfer.target, received)):
            count = [t.name for t in found[name]].count(transfer.name)
            if count != 1:
                raise StageError(
                    "fragments", f"message {transfer.name} occurs {count} times in {name}"
                )
    for a in fdg.fragments:
        for b in fdg.fragments:
            ours, theirs = (
                [t.name for t in transfers if (t.source, t.target) == (a, b)]
                for transfers in (sent[a], received[b])
            )
            if ours != theirs:
                raise StageError("fragments", f"{a} sends {ours}, {b} receives {theirs}")


def _order(fragment: Fragment, kind: type[Send] | type[Receive]) -> list[Transfer]:
    return [n.transfer for n in walk((fragment.loop,)) if isinstance(n, kind)]


def _refuse_small_types(fdg: FDG) -> None:
    """Refuses messages of several values in a byte: XLA lays them out in more ways than one."""
    for transfer in fdg.transfers:
        for parcel in transfer.parcels:
            dtype = fdg.program.avals[fdg.program.extent][parcel.value].dtype
            if is_below_a_byte(dtype):
                raise PolicyError(
                    f"{describe(fdg.program, parcel.value)} is of type {dtype}, several of which "
                    f"share a byte, and would go from {transfer.source} to {transfer.target}: make "
                    "it int8 before, or place both in one fragment"
                )
