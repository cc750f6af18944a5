"""Plans a fragment as instructions: compiled segments, with messages and loops between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fragflow.graph.analyses.out_of_order_check import host_steps
from fragflow.graph.ir import (
    FDG,
    Fragment,
    Loop,
    Node,
    Op,
    Receive,
    Send,
    Stack,
    Transfer,
    Value,
    is_compilable,
    is_host_call,
    walk,
)
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.passes.dataflow import num_bytes
from fragflow.runtime.planning.check_plan import CodeSizes, check_code, check_messages
from fragflow.runtime.planning.instructions import (
    Ask,
    Code,
    Enter,
    Get,
    Instruction,
    Keep,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
)
from fragflow.runtime.planning.message_pieces import (
    fan,
    is_joined,
    joiner,
    piece_name,
    put_row,
    splitter,
    take_row,
    zeros,
)
from fragflow.runtime.planning.out_of_order_loop import OutOfOrderLoop, plan_out_of_order
from fragflow.runtime.planning.pack_loop_outputs import PlanDraft, pack_rows
from fragflow.runtime.planning.segments import (
    HostCall,
    RuntimeOp,
    Segment,
    defined_by,
    defines_of,
    ops_in,
    reads_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """A loop that the driver runs step by step; around the steps it only renames values."""

    length: int
    counter: Value
    entry: tuple[tuple[Value, Value], ...]
    """(inside, first value) of each carry"""
    step: tuple[tuple[Value, Value], ...]
    """(inside, next value)"""
    exit: tuple[tuple[Value, Value], ...]
    """(final value, inside)"""
    reverse: bool
    rows: tuple[Stack, ...] = ()
    """outputs that are made and collected on the host"""

    @property
    def order(self) -> range:
        """The numbers of the steps, in the order in which they are made."""
        return range(self.length - 1, -1, -1) if self.reverse else range(self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentPlan:
    """All that one fragment runs in an iteration."""

    fragment: Fragment
    segments: tuple[Segment, ...]
    loops: tuple[LoopPlan, ...]
    code: Code
    fused: bool
    """needs no messages: whole chunks of iterations run as one program"""
    packed_avals: Mapping[Value, Any] = field(default_factory=dict)
    """types of the arrays in which a loop's outputs are collected"""
    host_calls: tuple[HostCall, ...] = ()
    out_of_order: tuple[OutOfOrderLoop, ...] = ()
    """loops whose steps environments make at their own pace; their segments come last"""
    in_place: frozenset[Value] = frozenset()
    """state that programs write into"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph ready to be run."""

    parts: Mapping[str, FragmentPlan]
    optimisations: Optimisations = ALL_OPTIMISATIONS


def make_plan(fdg: FDG, optimisations: Optimisations = ALL_OPTIMISATIONS) -> Plan:
    """Plans every fragment of a graph."""
    plan = Plan(
        parts={name: _part(fdg, f, optimisations) for name, f in fdg.fragments.items()},
        optimisations=optimisations,
    )
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Checks that instructions refer to what there is, loops nest, and all that is put is got."""
    for name, part in plan.parts.items():
        sizes = CodeSizes(
            segments=len(part.segments),
            rows=[len(loop.rows) for loop in part.loops],
            host_calls=len(part.host_calls),
            out_of_order=len(part.out_of_order),
        )
        check_code(name, part.code, sizes)
    check_messages({name: part.code for name, part in plan.parts.items()})


def _part(fdg: FDG, fragment: Fragment, optimisations: Optimisations) -> FragmentPlan:
    large = large_state(fdg, fragment) if optimisations.donate else {}
    if optimisations.whole_chunks and is_compilable(fragment.loop):
        return FragmentPlan(
            fragment=fragment, segments=(), loops=(), code=(), fused=True, in_place=frozenset(large)
        )
    planner = _Planner(fdg, fragment, optimisations)
    planner.block(fragment.loop.body)
    planner.flush()
    draft = planner.draft()
    if optimisations.pack:
        pack_rows(draft, fdg.program.avals[fragment.extent])
    segments = _finished(draft, large, optimisations)
    return FragmentPlan(
        fragment=fragment,
        segments=(
            *segments,
            *(s for out_of_order in planner.out_of_order for s in out_of_order.segments),
        ),
        in_place=frozenset(v for segment in segments for v in segment.donated if v in large),
        loops=tuple(draft.loops),
        code=tuple(draft.code),
        host_calls=tuple(planner.host_calls),
        out_of_order=tuple(planner.out_of_order),
        fused=False,
        packed_avals=draft.packed_avals,
    )


class _Planner:
    """Walks a fragment's program once, gathering compute nodes into segments."""

    def __init__(self, fdg: FDG, fragment: Fragment, optimisations: Optimisations):
        self.code: list[Instruction] = []
        self.loops: list[LoopPlan] = []
        self.host_calls: list[HostCall] = []
        self.out_of_order: list[OutOfOrderLoop] = []
        self._fdg = fdg
        self._optimisations = optimisations
        self._fragment = fragment
        self._avals = fdg.program.avals[fragment.extent]
        self._pending: list[Node | RuntimeOp] = []
        self._segments: list[tuple[Node | RuntimeOp, ...]] = []
        outer = fragment.loop
        # Values that the driver reads outside segments: for sends, and for loops' renamings.
        self._shell_reads = {c.next for c in outer.carries} | {s.element for s in outer.stacks}

    def block(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            match node:
                case Send():
                    self._send(node.transfer)
                case Receive():
                    self._receive(node.transfer)
                case Loop() if self._fragment.first is not None and host_steps(node.body):
                    self._turn(node)
                case Loop() if not is_compilable(node):
                    self._loop(node)
                case Op() if is_host_call(node):
                    self._ask(HostCall.of(node))
                case _:
                    self._pending.append(node)

    def flush(self) -> None:
        """Ends the current segment."""
        if self._pending:
            self.code.append(Run(len(self._segments)))
            self._segments.append(tuple(self._pending))
            self._pending = []

    def _ask(self, call: HostCall) -> None:
        self._shell_reads |= set(call.inputs)
        self.flush()
        self.code.append(Ask(len(self.host_calls)))
        self.host_calls.append(call)

    def _turn(self, loop: Loop) -> None:
        out_of_order = plan_out_of_order(self._fragment, loop, self._optimisations)
        self._shell_reads |= set(out_of_order.inputs)
        self.flush()
        self.code.append(RunOutOfOrder(len(self.out_of_order)))
        self.out_of_order.append(out_of_order)

    def _send(self, transfer: Transfer) -> None:
        pieces = fan(self._fdg, transfer).receivers
        for parcel in transfer.parcels:
            if parcel.cut is not None:
                names = tuple(piece_name(parcel.value, k) for k in range(pieces))
                self._pending.append(
                    RuntimeOp(
                        inputs=(parcel.value,),
                        outputs=names,
                        function=splitter(pieces, parcel.cut),
                    )
                )
                self._shell_reads |= set(names)
            else:
                self._shell_reads.add(parcel.value)
        self.flush()
        self.code.append(Put(transfer))

    def _receive(self, transfer: Transfer) -> None:
        # Glue may wait for the message and join the next segment; a component must not.
        if any(isinstance(n, Op) and n.components for n in walk(ops_in(self._pending))):
            self.flush()
        self.code.append(Get(transfer))
        pieces = fan(self._fdg, transfer).senders
        for parcel in transfer.parcels:
            if is_joined(parcel):
                names = tuple(piece_name(parcel.value, k) for k in range(pieces))
                join = joiner(parcel, self._avals[parcel.value])
                self._pending.append(
                    RuntimeOp(inputs=names, outputs=(parcel.value,), function=join)
                )

    def _loop(self, loop: Loop) -> None:
        length = loop.length
        assert length is not None
        counter = f"{loop.path}@step"
        made = {
            v for n in walk(loop.body) if isinstance(n, Op) and is_host_call(n) for v in n.outputs
        }
        made |= {c.inside for c in loop.carries if c.next in made}
        is_kept = self._optimisations.host_rows
        rows = tuple(s for s in loop.stacks if is_kept and s.element in made)
        stacks = [s for s in loop.stacks if s not in rows]
        for stack in stacks:
            buffer = self._avals[stack.outside]
            self._pending.append(
                RuntimeOp(inputs=(), outputs=(stack.outside,), function=zeros(buffer))
            )
        for carry in loop.carries:
            self._shell_reads |= {carry.init, carry.next, carry.inside}
        self.flush()
        index = len(self.loops)
        self.loops.append(
            LoopPlan(
                length=length,
                counter=counter,
                entry=tuple((c.inside, c.init) for c in loop.carries),
                step=tuple((c.inside, c.next) for c in loop.carries),
                exit=tuple((c.final, c.inside) for c in loop.carries),
                reverse=loop.reverse,
                rows=rows,
            )
        )
        self.code.append(Enter(index, length))
        first = len(self.code)
        for slice_ in loop.slices:
            self._pending.append(
                RuntimeOp(
                    inputs=(slice_.outside, counter), outputs=(slice_.inside,), function=take_row
                )
            )
        defined = {c.inside for c in loop.carries} | {s.inside for s in loop.slices}
        waiting = list(stacks)
        unkept = list(enumerate(rows))

        def collect() -> None:
            for k, stack in list(unkept):
                if stack.element in defined:
                    unkept.remove((k, stack))
                    self._shell_reads.add(stack.element)
                    self.code.append(Keep(index, k))
            for stack in list(waiting):
                if stack.element in defined:
                    waiting.remove(stack)
                    self._pending.append(
                        RuntimeOp(
                            inputs=(stack.outside, stack.element, counter),
                            outputs=(stack.outside,),
                            function=put_row,
                            stack=stack.outside,
                        )
                    )

        collect()
        for node in loop.body:
            self.block((node,))
            defined |= defined_by(node)
            collect()
        for stack in waiting:  # elements from outside the loop
            defined.add(stack.element)
        collect()
        self.flush()
        self.code.append(Repeat(index, length, first))

    def draft(self) -> PlanDraft:
        return PlanDraft(
            segments=[list(nodes) for nodes in self._segments],
            loops=self.loops,
            code=self.code,
            shell_reads=self._shell_reads,
        )


def _finished(
    draft: PlanDraft, large: Mapping[Value, Value], optimisations: Optimisations
) -> tuple[Segment, ...]:
    """Makes segments with their inputs and outputs, once all readers are known.

    A segment writes into a value of `large` if it is the only reader and makes the next value.
    """
    reads = [reads_of(nodes) for nodes in draft.segments]
    defines = [defines_of(nodes) for nodes in draft.segments]
    repeated, depth = set(), 0
    for instruction in draft.code:
        depth += isinstance(instruction, Enter) - isinstance(instruction, Repeat)
        if isinstance(instruction, Run) and depth:
            repeated.add(instruction.segment)
    finished = []
    for i, nodes in enumerate(draft.segments):
        elsewhere = draft.shell_reads.union(*(r for j, r in enumerate(reads) if j != i))
        # A collected buffer is read and written again in the next step.
        updated = {v for v in defines[i] if v in reads[i]}
        written = {
            v
            for v, after in large.items()
            if v in reads[i] and v not in elsewhere and after in defines[i] and i not in repeated
        }
        finished.append(
            Segment(
                nodes=tuple(nodes),
                inputs=tuple(reads[i]),
                outputs=tuple(v for v in defines[i] if v in elsewhere or v in updated),
                donated=frozenset(updated | written if optimisations.donate else ()),
                is_small=optimisations.small_programs and i in repeated,
            )
        )
    return tuple(finished)


LARGE_BYTES = 1 << 20
"""below this a copy costs less than a call"""


def large_state(fdg: FDG, fragment: Fragment) -> dict[Value, Value]:
    """By name in an iteration, the value of each large leaf of the state at the iteration's end.

    Values that are sent are left out: their receivers have the same array. The result is empty if
    fragments run ahead of one another: the last state is still read while the next one is made.
    """
    if fdg.delays or fdg.server is not None:
        return {}
    avals = fdg.program.avals[fragment.extent]
    carries = fragment.loop.carries
    shared = {c.next for c in carries if c.next == c.inside}
    shared |= {parcel.value for transfer in fdg.transfers for parcel in transfer.parcels}
    return {
        c.inside: c.next
        for c in carries
        if not {c.inside, c.next} & shared and num_bytes(avals[c.inside]) >= LARGE_BYTES
    }
