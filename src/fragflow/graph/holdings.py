"""What replicas hold of every value, along each axis that fragments are replicated over.

Asked twice: before the cut, where all of the program is taken to be replicated, to see what may
cross between fragments; and after it, of each fragment as it has become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fragflow.graph.check import check_replicas
from fragflow.graph.colour import replicas_over
from fragflow.graph.extent import Axis, Extent, agents_axis, environments_axis
from fragflow.graph.infer import Inference, initial_kinds
from fragflow.graph.interfaces import Known
from fragflow.graph.ir import Loop, Op, Program, Value
from fragflow.graph.kinds import UNIFORM, Kind
from fragflow.graph.traced import Traced
from fragflow.policies.policy import Over, Placed

EVERYWHERE = "everywhere"


def axes_of(source: Traced, placed: Sequence[Placed]) -> list[Axis]:
    """What fragments are replicated over, each with two extents whose traces are compared.

    Few environments are enough, and cheap to trace; an algorithm that cannot do with so few is
    compared at its own size.
    """
    large, small = 4, 2
    try:
        for size in (large, small):
            source.at(Extent(size))
    except Exception:
        small = max(source.num_envs, 2)
        large = 2 * small
    axes = [environments_axis(large, small)]
    parts = [p.replicas for p in placed if p.over == "agents" and p.replicas > 1]
    if parts:
        axes.append(agents_axis(small, max(parts), source.teams))
    return axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Along no axis, nothing is replicated and every value is whole."""

    program: Program
    placed: Sequence[Placed]
    holders: Mapping[str, str]
    """by component, the fragment that has it"""
    axes: Sequence[Axis]
    state: Mapping[Over, Mapping[Value, Kind]]

    def by_environment(self) -> Mapping[Value, Kind]:
        """If all were replicated over environments."""
        if not self.axes:
            return dict.fromkeys(self.program.avals[self.program.extent], UNIFORM)
        return self._everywhere(self.axes[0], whole=())

    def views(self, by_environment: Mapping[Value, Kind]) -> Mapping[Over, Mapping[Value, Kind]]:
        """Along every axis; what is replicated over another one is whole in it."""
        if len(self.axes) < 2:
            return {"environments": by_environment}
        return {
            axis.over: self._everywhere(axis, [p.name for p in self.placed if p.over != axis.over])
            for axis in self.axes
        }

    def in_fragments(self, parts: Mapping[str, Loop]) -> Mapping[Over, Known]:
        """Of the fragments, checked: replicas must compute what the whole does."""
        known: dict[Over, Known] = {"environments": {name: {} for name in parts}}
        for axis in self.axes:
            count = replicas_over(axis.over, self.placed)
            found = Inference(self.program, axis, self.state[axis.over], count).run(parts)
            check_replicas(self.program, parts, count, found, axis)
            known[axis.over] = found
        return known

    def _everywhere(self, axis: Axis, whole: Sequence[str]) -> Mapping[Value, Kind]:
        def holds_all(op: Op) -> bool:
            return any(self.holders[c] in whole for c in op.components)

        state = self.state[axis.over]
        inference = Inference(self.program, axis, state, {EVERYWHERE: 2}, holds_all)
        return inference.run({EVERYWHERE: self.program.loop})[EVERYWHERE]


def holdings(
    source: Traced,
    program: Program,
    placed: Sequence[Placed],
    holders: Mapping[str, str],
    axes: Sequence[Axis],
) -> Holdings:
    """Begins with what the first state tells."""
    state: dict[Over, Mapping[Value, Kind]] = {}
    for axis in axes:
        large, small = axis.extents
        found = initial_kinds(source.init_at(large), source.init_at(small), axis)
        carries = program.loop.carries
        state[axis.over] = {c.init: kind for c, kind in zip(carries, found, strict=True)}
    return Holdings(program=program, placed=placed, holders=holders, axes=axes, state=state)
