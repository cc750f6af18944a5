"""Prints a plan, instruction by instruction, or any stage of the compiler before it."""

from collections.abc import Iterator, Mapping, Sequence

from fragflow.errors import ConfigError, unknown
from fragflow.graph.cut import stages
from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.print_stages import names_in, print_stage
from fragflow.graph.print_trace import INDENT, in_lines
from fragflow.graph.show import fragment_label
from fragflow.graph.stages import STAGES, FragmentsStage
from fragflow.graph.tracing.trace import Tracer
from fragflow.policies.policy import Deployment, Policy
from fragflow.runtime.planning.check_plan import PLAN
from fragflow.runtime.planning.instructions import (
    Ask,
    Enter,
    Get,
    Instruction,
    Keep,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
)
from fragflow.runtime.planning.message_pieces import incoming, outgoing, piece_name
from fragflow.runtime.planning.plan import FragmentPlan, Plan, make_plan
from fragflow.runtime.planning.segments import HostCall, RuntimeOp, Segment

STAGE_NAMES = (*(stage.name for stage in STAGES), PLAN)
"""in the order in which they are made"""


def text_after(
    name: str,
    source: Tracer,
    policy: Policy,
    deployment: Deployment,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
    *,
    deterministic: bool = False,
) -> str:
    """The text of the stage `name`; those after it are not made, and refuse nothing."""
    if name not in STAGE_NAMES:
        raise ConfigError(unknown("stage", name, STAGE_NAMES))
    for stage in stages(source, policy, deployment, optimisations, deterministic=deterministic):
        if stage.name == name:
            return print_stage(stage)
        if isinstance(stage, FragmentsStage):
            return print_plan(stage.fdg, make_plan(stage.fdg, optimisations))
    raise AssertionError("the graph is the last stage before the plan")


def print_plan(fdg: FDG, plan: Plan) -> str:
    """The text of a graph's plan."""
    out = [f"plan · policy {fdg.policy}"]
    for part in plan.parts.values():
        out += ["", f"fragment {fragment_label(part.fragment)}", *_PartPrinter(fdg, part).lines()]
    return "\n".join(out) + "\n"


class _PartPrinter:
    """Prints what one fragment does."""

    def __init__(self, fdg: FDG, part: FragmentPlan):
        self._part = part
        known = names_in(fdg.program)
        self._names = {**known, **_names_of_pieces(fdg, known)}
        self._names |= {loop.counter: f"step of loop {k}" for k, loop in enumerate(part.loops)}
        self._names |= {rows: f"rows {k}" for k, rows in enumerate(part.packed_avals)}

    def lines(self) -> Iterator[str]:
        if self._part.fused:
            yield f"{INDENT}all of it as one program, for many iterations at once"
        depth = 1
        for instruction in self._part.code:
            depth -= isinstance(instruction, Repeat)
            for k, line in enumerate(self._instruction(instruction)):
                yield from in_lines(line, INDENT * (depth + (2 if k else 0)))
            depth += isinstance(instruction, Enter)

    def _instruction(self, instruction: Instruction) -> Iterator[str]:
        """One line, and those that say more of it."""
        part = self._part
        match instruction:
            case Run():
                yield f"run segment {instruction.segment}"
                yield from self._segment(part.segments[instruction.segment])
            case Ask():
                yield self._ask(part.host_calls[instruction.call])
            case Keep():
                row = part.loops[instruction.loop].rows[instruction.row]
                yield f"keep {self._listed([row.element])} in {self._listed([row.outside])}"
            case RunOutOfOrder():
                rollout = part.out_of_order[instruction.out_of_order]
                yield f"run the loop of {rollout.loop.length} steps, each environment at its pace"
                yield self._ask(rollout.call)
                for word, segment in (("before", rollout.before), ("after", rollout.after)):
                    yield f"{word} it segment {part.segments.index(segment)}"
                    yield from self._segment(segment)
            case Put(transfer=transfer):
                yield f"put {self._message(transfer)}"
            case Get(transfer=transfer):
                yield f"get {self._message(transfer)}"
            case Enter():
                loop = part.loops[instruction.loop]
                backwards = ", backwards" if loop.reverse else ""
                yield f"enter loop {instruction.loop}, {instruction.length} steps{backwards}"
                if loop.entry:
                    yield f"with {self._renamed(loop.entry)}"
            case Repeat():
                loop = part.loops[instruction.loop]
                yield f"repeat loop {instruction.loop}"
                if loop.step:
                    yield f"with {self._renamed(loop.step)}"
                    yield f"at last {self._renamed(loop.exit)}"

    def _segment(self, segment: Segment) -> Iterator[str]:
        added = sum(isinstance(n, RuntimeOp) for n in segment.nodes)
        count = len(segment.nodes) - added
        ours = f", {added} of the runtime" if added else ""
        of = f": {', '.join(segment.components)}" if segment.components else ""
        yield f"{count} node{'s' * (count != 1)}{ours}{of}"
        if segment.inputs:
            yield f"reads {self._listed(segment.inputs)}"
        if segment.outputs:
            yield f"makes {self._listed(segment.outputs)}"
        if segment.donated:
            yield f"writes into {self._listed([v for v in segment.inputs if v in segment.donated])}"

    def _ask(self, call: HostCall) -> str:
        made = self._listed([v for v in call.outputs if v is not None])
        return f"ask the host to {call.method} with {self._listed(call.inputs)}, for {made}"

    def _message(self, transfer: Transfer) -> str:
        return f"{transfer.name}: {self._listed([p.value for p in transfer.parcels])}"

    def _renamed(self, pairs: Sequence[tuple[Value, Value]]) -> str:
        return ", ".join(f"{self._names[new]} = {self._names[old]}" for new, old in pairs)

    def _listed(self, values: Sequence[Value]) -> str:
        return ", ".join(self._names.get(value, value) for value in values)


def _names_of_pieces(fdg: FDG, names: Mapping[Value, str]) -> Mapping[Value, str]:
    return {
        piece: piece_name(names[parcel.value], k)
        for transfer in fdg.transfers
        for pieces_of in (outgoing, incoming)
        for parcel, pieces in zip(transfer.parcels, pieces_of(fdg, transfer), strict=True)
        for k, piece in enumerate(pieces)
        if piece != parcel.value
    }
