"""The compiler's stages: the results of its passes, in the order in which they are made.

A stage is what is known of the training loop so far. Each has a check (`check_stages.py`) and a
printed form (`print_stages.py`). The plan, which is made of the graph, is the runtime's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fragflow.graph.fragment_extent import Axis
from fragflow.graph.ir import FDG, Loop, Program, Value
from fragflow.graph.passes.dataflow import Dataflow
from fragflow.graph.passes.split import Split
from fragflow.graph.replicas.kinds import Kind
from fragflow.graph.tracing.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStage:
    """One iteration as JAX has traced it, for every extent; that of the undivided program first."""

    name: ClassVar[str] = "trace"
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStage:
    """One program of all traces, opened where the policy cuts."""

    name: ClassVar[str] = "program"
    program: Program


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsStage:
    """The kind of every value, as if all of the program were replicated over environments."""

    name: ClassVar[str] = "kinds"
    program: Program
    kinds: Mapping[Value, Kind]
    axis: Axis | None
    """the programs that were compared; None if nothing is divided, and so all is uniform"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersStage:
    """The fragment of every operation."""

    name: ClassVar[str] = "owners"
    program: Program
    flow: Dataflow
    owners: Mapping[str, str]
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStage:
    """The home of every value, and the values that each fragment needs."""

    name: ClassVar[str] = "split"
    program: Program
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesStage:
    """The program with all messages in it, named, and each value's way to travel."""

    name: ClassVar[str] = "messages"
    program: Program
    split: Split
    loop: Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsStage:
    """The finished graph: each fragment's own program."""

    name: ClassVar[str] = "fragments"
    fdg: FDG


Stage: TypeAlias = (
    TraceStage
    | ProgramStage
    | KindsStage
    | OwnersStage
    | SplitStage
    | MessagesStage
    | FragmentsStage
)
STAGES: tuple[type[Stage], ...] = (
    TraceStage,
    ProgramStage,
    KindsStage,
    OwnersStage,
    SplitStage,
    MessagesStage,
    FragmentsStage,
)
"""in the order in which they are made"""
