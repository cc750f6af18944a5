"""Plans a loop that each environment goes through at its own pace."""

from collections.abc import Sequence
from dataclasses import dataclass

from fragflow.graph.analyses.out_of_order_check import host_steps
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Fragment, Loop, Node, Value
from fragflow.graph.optimisations import Optimisations
from fragflow.runtime.planning.segments import HostCall, Segment, defines_of, reads_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfOrderLoop:
    """A loop around one step of environments on the host."""

    loop: Loop
    call: HostCall
    before: Segment
    """from an observation to an action, for the environments that have answered"""
    after: Segment
    """operations that follow the environments' answer"""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (self.before, self.after)


def plan_out_of_order(
    fragment: Fragment, loop: Loop, optimisations: Optimisations
) -> OutOfOrderLoop:
    """Cuts `loop` at its step of the environments."""
    (op,) = host_steps(loop.body)
    assert fragment.first is not None
    first = Extent(fragment.first)
    call, position = HostCall.of(op), loop.body.index(op)
    before, after = loop.body[:position], loop.body[position + 1 :]
    collected = {s.element for s in loop.stacks} | {c.next for c in loop.carries}
    asked = set(call.inputs)
    answered = {v for v in call.outputs if v is not None}

    def segment(nodes: Sequence[Node], wanted: set[Value]) -> Segment:
        return Segment(
            nodes=tuple(nodes),
            inputs=tuple(reads_of(nodes)),
            outputs=tuple(v for v in defines_of(nodes) if v in wanted),
            is_small=optimisations.small_programs,
            extent=first,
        )

    inside = {c.inside for c in loop.carries} | {s.inside for s in loop.slices}
    made = {*inside, *answered, *defines_of(before), *defines_of(after)}
    read = dict.fromkeys([*reads_of(before), *reads_of(after), *asked, *sorted(collected)])
    return OutOfOrderLoop(
        loop=loop,
        call=call,
        before=segment(before, asked | collected | set(reads_of(after))),
        after=segment(after, collected),
        inputs=tuple(
            dict.fromkeys(
                [
                    *(c.init for c in loop.carries),
                    *(s.outside for s in loop.slices),
                    *(v for v in read if v not in made),
                ]
            )
        ),
        outputs=(*(c.final for c in loop.carries), *(s.outside for s in loop.stacks)),
    )
