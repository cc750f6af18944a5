"""Refuses what a user asks for and cannot be: above all, replicas that differ from the whole."""

import contextlib
import re
from collections.abc import Generator, Mapping, Sequence

from fragflow._jax import contains_host_call, hosts_compiled_into, source_line
from fragflow.errors import PolicyError, ReplicaError
from fragflow.graph.fragment_extent import Axis
from fragflow.graph.ir import Loop, Op, Program, Transfer, Value, walk
from fragflow.graph.passes.dataflow import is_all_reduce
from fragflow.graph.replicas.analysis import Known, ReplicaAnalysis
from fragflow.graph.replicas.eqn_pair import sized_dims
from fragflow.graph.replicas.kinds import (
    COUNT,
    NEEDED,
    SIZED,
    SOMETIMES,
    Kind,
    Tag,
)
from fragflow.graph.replicas.rule_guards import well_formed
from fragflow.graph.replicas.rules.shapes_and_reductions import reduced
from fragflow.graph.tracing.trace import Trace
from fragflow.policies.policy import Over, Placed, Policy, replicas_over


class _Refused(ReplicaError):
    """A refusal, with its reason."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


NEEDS_ALL = "depends on all environments at once and cannot be cut"
_CONSEQUENCES = (SOMETIMES, SIZED, NEEDS_ALL, NEEDED)
"""reasons that follow from another: rows that were lost went to a fragment that has all of them"""


def check_fragments(
    held: ReplicaAnalysis, parts: Mapping[str, Loop], by_environment: Mapping[Value, Kind]
) -> Mapping[Over, Known]:
    """Finds what fragments hold of each value; checks that replicas compute what the whole does."""
    known: dict[Over, Known] = {"environments": {name: {} for name in parts}}
    for over in held.axes.of_fragments:
        axes = held.axes.by_fragment(over, held.placed)
        count = replicas_over(over, held.placed)
        known[over] = held.in_fragments(over, parts)
        try:
            check_replicas(held.program, parts, count, known[over], axes)
        except ReplicaError as error:
            uncut: Mapping[Value, Kind] = by_environment if over == "environments" else {}
            raise cause_of(error, held.program, uncut, count, axes) from None
    return known


def check_replicas(
    program: Program,
    loops: Mapping[str, Loop],
    replicas: Mapping[str, int],
    kinds: Mapping[str, Mapping[Value, Kind]],
    axes: Mapping[str, Axis],
) -> None:
    """Checks that replicas compute what one fragment with all environments (or agents) would.

    `axes` are those of the fragments; all of them divide environments, or all divide agents.
    """
    with _in_words_for(axes):
        for name, loop in loops.items():
            for node in walk((loop,)):
                if isinstance(node, Transfer) and node.target == name:
                    _check_crossing(program, node, loops[name], replicas, kinds, axes)
        replicated = [name for name in loops if replicas[name] > 1]
        # What goes wrong in the parameters soon goes wrong everywhere: name them first.
        results = [
            (value, role, kinds[name][inner], name)
            for name in replicated
            for value, role, inner in _results(loops[name])
        ]
        results.sort(key=lambda r: r[0] not in program.params)
        for value, role, kind, name in results:
            _refuse(program, value, role, kind, name)


@contextlib.contextmanager
def _in_words_for(axes: Mapping[str, Axis]) -> Generator[None]:
    """What is refused is said of environments; along the agents' axis, of agents."""
    try:
        yield
    except _Refused as error:
        if all(axis.over == "environments" for axis in axes.values()):
            raise
        raise ReplicaError(_of_agents(str(error))) from None


def cause_of(
    error: ReplicaError,
    program: Program,
    uncut: Mapping[Value, Kind],
    replicas: Mapping[str, int],
    axes: Mapping[str, Axis],
) -> ReplicaError:
    """The error itself, or the one it follows from: rows that are mixed before anything is cut."""
    if not isinstance(error, _Refused):
        return error
    if error.reason in _CONSEQUENCES:
        extents = next(iter(axes.values())).extents
        name = next((name for name, count in replicas.items() if count > 1), "")
        for carry in program.loop.carries:
            kind = uncut.get(carry.inside)
            a, b = (program.avals[extent][carry.inside] for extent in extents)
            if kind is not None and kind.tag is Tag.MIXED and sized_dims(a, b):
                try:
                    _refuse(program, carry.inside, "the state's", kind, name)
                except _Refused as cause:
                    return ReplicaError(str(cause))
    return ReplicaError(str(error))


def _of_agents(message: str) -> str:
    """`message` with agents for environments; fragments and components keep their names."""
    for pattern, word in (
        (r"draw with env\.keys\(key\).*?environment\b", "draw them where all agents are"),
        (r"\benvironments\b", "agents"),
        (r"\benvironment axis", "agents' axis"),
        (r"\b(per|every|each) environment\b", r"\1 agent"),
        (r"\bper-environment\b", "per-agent"),
    ):
        message = re.sub(pattern, word, message)
    return message


def _check_crossing(
    program: Program,
    transfer: Transfer,
    target_loop: Loop,
    replicas: Mapping[str, int],
    kinds: Mapping[str, Mapping[Value, Kind]],
    axes: Mapping[str, Axis],
) -> None:
    source, target = replicas[transfer.source], replicas[transfer.target]
    if source == target:
        return
    axis = axes[transfer.target if target > source else transfer.source]
    for parcel in transfer.parcels:
        kind = kinds[transfer.source][parcel.value]
        what = describe(program, parcel.value)
        where = f"on its way from {transfer.source} ×{source} to {transfer.target} ×{target}"
        if kind.tag in (Tag.MIXED, Tag.ROW):
            message = f"{what} {kind.reason}{_at(kind)}, {where}. {advice(kind)}"
            raise _Refused(message, kind.reason)
        if kind.tag is Tag.PARTIAL:
            readers = [
                n for n in walk((target_loop,)) if isinstance(n, Op) and parcel.value in n.inputs
            ]
            if not readers or not all(is_all_reduce(op) for op in readers):
                raise _Refused(
                    f"{what} is reduced over one replica's environments only{_at(kind)}, {where}: "
                    "apply ff.all_mean (or all_sum, all_max) to it."
                )
            for op in readers:
                dtype = program.avals[axis.extents[0]][parcel.value].dtype
                made = reduced(kind, op.eqn.params["operation"], dtype, source_line(op.eqn))
                if made.tag is Tag.MIXED:
                    raise _Refused(f"{what} {made.reason}{_at(made)}, {where}. {advice(made)}")
        elif kind.degree and not kind.zero:
            raise _Refused(
                f"{what} {COUNT}, {where}: use a mean instead of a sum, or env.per_env for counts."
            )
        a, b = (program.avals[extent][parcel.value] for extent in axis.extents)
        if not kind.joint and not well_formed(kind, a, b, axis.sizes):
            raise _Refused(
                f"{what} {NEEDS_ALL}, {where}. Compute it per environment, or place its users in "
                "one fragment.",
                NEEDS_ALL,
            )
        if kind.joint:
            raise _Refused(
                f"{what} has the agents of several teams and cannot be cut, {where}. Take those "
                "of each team (ops.members) before components that learn."
            )
        if kind.tag is Tag.VARYING and not kind.is_cuttable:
            raise _Refused(
                f"{what} has other axes folded in front of the environment axis and cannot be "
                f"cut, {where}. Keep the environment axis apart (no reshape of [T, N] to [T*N])."
            )


def _results(loop: Loop) -> list[tuple[Value, str, Value]]:
    """The values that a training loop hands on: its state and its metrics."""
    return [
        *((c.inside, "the state's", c.inside) for c in loop.carries),
        *((s.outside, "the metric", s.element) for s in loop.stacks),
    ]


def _refuse(program: Program, value: Value, role: str, kind: Kind, name: str) -> None:
    label = f"{role} {program.labels[value]}"
    if kind.tag is Tag.PARTIAL:
        raise _Refused(
            f"{label} differs among the replicas of fragment {name!r}: it is made from a reduction "
            f"over one replica's environments{_at(kind)}, without ff.all_mean (or all_sum, "
            "all_max) after it."
        )
    if kind.tag in (Tag.MIXED, Tag.ROW):
        raise _Refused(
            f"{label} would differ under replicas of fragment {name!r}: it follows from something "
            f"that {kind.reason}{_at(kind)}. {advice(kind)}",
            kind.reason,
        )
    if kind.tag is Tag.VARYING and role == "the metric" and value not in program.episodes:
        raise _Refused(
            f"{label} still has the environment axis{_made_at(program, value)}: reduce it "
            "(ff.all_mean of its mean)."
        )
    if kind.tag is Tag.VARYING and not kind.is_cuttable:
        raise _Refused(
            f"{label} has other axes folded in front of the environment axis, so that the replicas "
            f"of fragment {name!r} cannot have a part each: keep the environment axis apart."
        )
    if kind.degree != 0 and not kind.zero:
        raise _Refused(
            f"{label} depends on how many environments a replica of fragment {name!r} holds"
            f"{_made_at(program, value)}: use a mean instead of a sum, or env.per_env for counts."
        )


def advice(kind: Kind) -> str:
    if "one replica" in kind.reason:
        return "Apply ff.all_mean (or all_sum, all_max) first."
    if "env.keys" in kind.reason:
        return ""
    return "Under replicas only per-environment work, and reductions with ff.all_..., are allowed."


def _at(kind: Kind) -> str:
    return f" (at {kind.line})" if kind.line else ""


def describe(program: Program, value: Value) -> str:
    """A value's name for the user."""
    if value in program.labels:
        return f"the state's {program.labels[value]}"
    match _origin(program, value):
        case Op() as op:
            made = "/".join(sorted(op.components)) or op.eqn.primitive.name
            line = source_line(op.eqn)
            return f"a result of {made}" + (f" ({line})" if line else "")
        case None:
            return f"value {value}"
        case other:
            return describe(program, other)


def _origin(program: Program, value: Value) -> Op | Value | None:
    """The operation that a value is a result of, or the value within a loop that it stands for."""
    for node in walk((program.loop,)):
        match node:
            case Op() if value in node.outputs:
                return node
            case Loop():
                for carry in node.carries:
                    if value in (carry.final, carry.inside):
                        return carry.next
                for stack in node.stacks:
                    if value == stack.outside:
                        return stack.element
            case _:
                pass
    return None


def _made_at(program: Program, value: Value) -> str:
    """The user's line that a value comes from, if there is one."""
    seen: set[Value] = set()
    origin: Op | Value | None = value
    while isinstance(origin, Value) and origin not in seen:
        seen.add(origin)
        origin = _origin(program, origin)
    line = source_line(origin.eqn) if isinstance(origin, Op) else None
    return f" (at {line})" if line else ""


def refuse_host_in_one_program(
    policy: Policy, placed: Sequence[Placed], trace: Trace, environment: str
) -> None:
    """Refuses an environment on the host in a program for an accelerator.

    One that compiles can be in a program for the CPU, but not in one that is cut over devices.
    """
    instead = "Use a policy with environments on CPUs, like single-learner-coarse."
    eqns = trace.closed.jaxpr.eqns
    if policy.is_one_program and any(contains_host_call(eqn) for eqn in eqns):
        raise PolicyError(
            f"policy {policy.name!r} compiles the environment into the program of fragment "
            f"{policy.places[0].name!r}, but {environment} is not a JAX program: it runs on the "
            f"host. {instead}"
        )
    if any(host for eqn in eqns for host in hosts_compiled_into(eqn)):
        for fragment in placed:
            if fragment.replicas > 1 and "environment.step" in fragment.components:
                raise PolicyError(
                    f"policy {policy.name!r} spreads fragment {fragment.name!r} over "
                    f"{fragment.replicas} devices, but {environment} compiles into a program for "
                    f"one: use --workers 1. {instead}"
                )
