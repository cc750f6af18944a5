"""Jobs of worker processes: programs, interfaces and first values. Data, no code.

Graphs and plans are sent without the parts that only their compilation needs, so that a process
can run any algorithm without having its code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fragflow._jax import plain_aval
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import (
    FDG,
    Carry,
    Constant,
    Fragment,
    Loop,
    Parcel,
    Program,
    Slice,
    Stack,
    Transfer,
    Value,
)
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.remote.protocol.codec import Codec
from fragflow.remote.protocol.environment_recipes import Recipe
from fragflow.remote.protocol.exported import ExportedProgram
from fragflow.remote.protocol.join_group import Membership
from fragflow.remote.transport.endpoint import Address
from fragflow.remote.transport.mailbox import Route
from fragflow.runtime.drivers.codegen import DriverSource
from fragflow.runtime.drivers.recorder import TimedEvent
from fragflow.runtime.planning.instructions import (
    Ask,
    Enter,
    Get,
    Keep,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
)
from fragflow.runtime.planning.out_of_order_loop import OutOfOrderLoop
from fragflow.runtime.planning.plan import FragmentPlan, LoopPlan
from fragflow.runtime.planning.segments import HostCall, Segment
from fragflow.runtime.planning.simulate import Event
from fragflow.runtime.programs.kernels_in_program import Computed
from fragflow.runtime.protocols import Metrics
from fragflow.runtime.traffic import Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvironments:
    """Environments on the host that a process opens before anything else."""

    fragment: str
    environment: Recipe
    ids: tuple[int, ...]
    one_by_one: bool
    path: tuple[str, ...]
    """directories in which Python finds their modules"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentJob:
    """One fragment's replica (or group of them) in a process."""

    part: FragmentPlan
    replicas: tuple[int, ...]
    devices: tuple[int, ...]
    """numbers of devices on the fragment's platform"""
    programs: tuple[ExportedProgram, ...]
    constants: Mapping[Value, Any]
    values: Mapping[Value, Any]
    """sources, and state by its names inside the training loop"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a process needs to run iterations."""

    me: str
    fdg: FDG
    script: DriverSource | None
    part_jobs: tuple[FragmentJob, ...]
    routes: tuple[Route, ...]
    addresses: Mapping[str, Address]
    timeout_seconds: float
    large_bytes: int
    """size from which messages to this host go through shared memory"""
    incarnation: int = 0
    expendable: frozenset[str] = frozenset()
    """processes that are replaced when they are lost"""
    resume: Mapping[int, int] | None = None
    """by route, messages sent or taken before the iteration that a replacement begins with"""
    is_recorded: bool = False
    """asks for the events of this process, which the request "events" returns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Facts about a worker that its process reports once it is ready."""

    computed: Computed
    """implementations of kernels that are in its programs"""
    devices: tuple[str, ...]
    processor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """The state of an expendable process after an iteration, from which another can go on."""

    iteration: int
    """number of the next one"""
    state: Mapping[str, Mapping[Value, Any]]
    """by fragment, the state that no other process has"""
    counts: Mapping[int, int]
    """by route, messages sent or taken"""
    metrics: Mapping[str, Metrics]
    sent: Sent
    """by this process, so far"""


CODEC = Codec(
    [
        *(
            OpenEnvironments,
            Membership,
            FragmentJob,
            Job,
            Settled,
            RecoveryPoint,
            Sent,
            ExportedProgram,
            Route,
            Address,
            Recipe,
            Event,
            TimedEvent,
        ),
        *(FDG, Program, Fragment, Extent, Loop, Carry, Slice, Stack, Transfer, Parcel, Constant),
        *(Kind, Tag, FragmentPlan, LoopPlan, Segment, HostCall, OutOfOrderLoop, DriverSource),
        *(Run, Ask, Keep, RunOutOfOrder, Put, Get, Enter, Repeat),
    ]
)


def thin_graph(fdg: FDG, parts: Sequence[FragmentPlan]) -> FDG:
    """Reduces a graph to what workers of `parts` need: interfaces, no programs."""
    names = {part.fragment.name for part in parts}
    used = _values_of(fdg, parts)
    avals = {
        part.fragment.extent: {
            row.outside: plain_aval(fdg.program.avals[part.fragment.extent][row.outside])
            for other in parts
            if other.fragment.extent == part.fragment.extent
            for loop in other.loops
            for row in loop.rows
        }
        for part in parts
    }
    return replace(
        fdg,
        program=Program(
            loop=_thin_loop(fdg.program.loop),
            constants=(),
            sources={},
            avals=avals,
            extent=fdg.program.extent,
            labels={},
            params=frozenset(),
            episodes={},
        ),
        fragments={
            name: replace(f, constants=(), loop=_thin_loop(f.loop))
            for name, f in fdg.fragments.items()
        },
        kinds={
            name: {v: k for v, k in kinds.items() if v in used}
            for name, kinds in fdg.kinds.items()
            if name in names
        },
        row_kinds={v: k for v, k in fdg.row_kinds.items() if v in used},
    )


def thin_part(part: FragmentPlan) -> FragmentPlan:
    """Reduces a fragment's plan: without the nodes that its programs were compiled from."""
    wanted = {v for out_of_order in part.out_of_order for v in out_of_order.inputs}
    fragment = replace(
        part.fragment,
        constants=tuple(c for c in part.fragment.constants if c.output in wanted),
        loop=_thin_loop(part.fragment.loop),
    )
    return replace(
        part,
        fragment=fragment,
        segments=tuple(_thin_segment(s) for s in part.segments),
        packed_avals={},
        out_of_order=tuple(
            replace(
                out_of_order,
                loop=_thin_loop(out_of_order.loop),
                before=_thin_segment(out_of_order.before),
                after=_thin_segment(out_of_order.after),
            )
            for out_of_order in part.out_of_order
        ),
    )


def _thin_loop(loop: Loop) -> Loop:
    return replace(loop, body=())


def _thin_segment(segment: Segment) -> Segment:
    return replace(segment, nodes=())


def _values_of(fdg: FDG, parts: Sequence[FragmentPlan]) -> set[Value]:
    """Values whose kinds a worker asks for."""
    used = {p.value for t in fdg.transfers for p in t.parcels}
    for part in parts:
        used |= {c.inside for c in part.fragment.loop.carries}
        used |= {c.output for c in part.fragment.constants}
        used |= {v for out_of_order in part.out_of_order for v in out_of_order.inputs}
    return used | set(fdg.program.sources.values())
