"""Finds what replicas hold of every value, along each axis that fragments are replicated over.

This is done twice: before the cut, where the whole program is taken to be replicated, to see what
may cross between fragments; and after it, for each fragment as it has become.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fragflow.graph.fragment_extent import Axis, Extent, agents_axis, environments_axis
from fragflow.graph.ir import Loop, Op, Program, Value
from fragflow.graph.replicas.fixpoint import Inference, initial_kinds
from fragflow.graph.replicas.kinds import COUNT, UNIFORM, Kind, first_mixed, mixed
from fragflow.graph.tracing.trace import Tracer
from fragflow.policies.policy import Over, Placed, replicas_over

EVERYWHERE = "everywhere"

Known = Mapping[str, Mapping[Value, Kind]]
"""by fragment, the kinds of its values"""


def extent_of(placed: Placed) -> Extent:
    """The extent of a replica."""
    parts = placed.replicas if placed.over == "agents" else 1
    return Extent(placed.num_envs, parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The pairs of programs that are compared: the whole's, and one for a part of it."""

    of_fragments: Mapping[Over, tuple[Axis, ...]]
    """one for each extent that replicas have, the smallest first"""
    further: tuple[Axis, ...] = ()
    """for blocks in which a fragment computes its part: compared for their rows only"""

    def all(self) -> list[Axis]:
        return [*(a for axes in self.of_fragments.values() for a in axes), *self.further]

    @property
    def first(self) -> Axis | None:
        """The one along which environments are followed first; None if nothing is divided."""
        return self.of_fragments["environments"][0] if self.of_fragments else None

    def by_fragment(self, over: Over, placed: Sequence[Placed]) -> dict[str, Axis]:
        """By fragment, its axis; one that holds all compares nothing, so that any axis will do."""
        axes = self.of_fragments[over]
        by_extent = {axis.replica: axis for axis in axes}
        return {p.name: by_extent.get(extent_of(p), axes[0]) for p in placed}


NO_AXES = Axes(of_fragments={})


def axes_of(source: Tracer, placed: Sequence[Placed], blocks: Sequence[int]) -> Axes:
    """The pairs for these fragments, which may compute in `blocks` of so many environments."""
    whole = max(source.total, source.num_envs)  # an asynchronous worker's program is a part of it
    sizes = {p.num_envs for p in placed if p.over == "environments"} | {source.num_envs}
    parts = sorted(size for size in sizes if size < whole)
    further = tuple(
        environments_axis(common, part)
        for size in sorted(sizes)
        for block in blocks
        for part in (size, block)
        if (common := math.lcm(size, block)) != part
    )
    # With nothing to compare, the axis is followed all the same: rows must be known.
    environments = tuple(environments_axis(whole, part) for part in parts)
    if not environments and not further:
        environments = (environments_axis(2 * whole, whole),)
    axes: dict[Over, tuple[Axis, ...]] = {"environments": environments or further}
    counts = {p.replicas for p in placed if p.over == "agents" and p.replicas > 1}
    if counts:
        axes["agents"] = tuple(
            agents_axis(source.num_envs, count, source.teams)
            for count in sorted(counts, reverse=True)
        )
    return Axes(of_fragments=axes, further=tuple(dict.fromkeys(further)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAnalysis:
    """The replica check of a program; without axes nothing is replicated, and all is uniform."""

    program: Program
    placed: Sequence[Placed]
    holders: Mapping[str, str]
    """by component, the fragment that has it"""
    axes: Axes
    state: Mapping[Axis, Mapping[Value, Kind]]

    def by_environment(self) -> Mapping[Value, Kind]:
        """Kinds of values if all were replicated over environments, in all ways that occur."""
        if not self.axes.of_fragments:
            return dict.fromkeys(self.program.avals[self.program.extent], UNIFORM)
        pairs = dict.fromkeys((*self.axes.of_fragments["environments"], *self.axes.further))
        return _agreed([self._everywhere(axis, whole=()) for axis in pairs])

    def views(self, by_environment: Mapping[Value, Kind]) -> Mapping[Over, Mapping[Value, Kind]]:
        """Kinds of values along every axis; what is replicated over another one is whole in it."""
        if len(self.axes.of_fragments) < 2:
            return {"environments": by_environment}
        return {
            over: _agreed(
                [
                    self._everywhere(axis, [p.name for p in self.placed if p.over != over])
                    for axis in axes
                ]
            )
            for over, axes in self.axes.of_fragments.items()
        }

    def in_fragments(self, over: Over, parts: Mapping[str, Loop]) -> Known:
        """Kinds of values in the fragments as they have been cut, along the axis `over`."""
        axes = self.axes.by_fragment(over, self.placed)
        count = replicas_over(over, self.placed)
        return Inference(self.program, axes, self.state, count).run(parts)

    def _everywhere(self, axis: Axis, whole: Sequence[str]) -> Mapping[Value, Kind]:
        def holds_all(op: Op) -> bool:
            return any(self.holders[c] in whole for c in op.components)

        inference = Inference(
            self.program, {EVERYWHERE: axis}, self.state, {EVERYWHERE: 2}, holds_all
        )
        return inference.run({EVERYWHERE: self.program.loop})[EVERYWHERE]


def _agreed(found: Sequence[Mapping[Value, Kind]]) -> Mapping[Value, Kind]:
    """The kinds that hold in all ways in which values may be divided."""
    first, *others = found

    def agreed(value: Value, kind: Kind) -> Kind:
        kinds = (kind, *(other[value] for other in others))
        bad = first_mixed(kinds)
        if bad is not None:
            return bad
        same = all(
            (k.tag, k.axis, k.is_cuttable) == (kind.tag, kind.axis, kind.is_cuttable) for k in kinds
        )
        return kind if same else mixed(COUNT, next((k.line for k in kinds if k.line), ""))

    return {value: agreed(value, kind) for value, kind in first.items()} if others else first


def analyse_replicas(
    source: Tracer,
    program: Program,
    placed: Sequence[Placed],
    holders: Mapping[str, str],
    axes: Axes,
) -> ReplicaAnalysis:
    """Prepares the analysis: it begins with the kinds of the first state's leaves."""
    state: dict[Axis, Mapping[Value, Kind]] = {}
    for axis in axes.all():
        large, small = axis.extents
        found = initial_kinds(source.init_at(large), source.init_at(small), axis)
        carries = program.loop.carries
        state[axis] = {c.init: kind for c, kind in zip(carries, found, strict=True)}
    return ReplicaAnalysis(program=program, placed=placed, holders=holders, axes=axes, state=state)
