"""The compiler: an algorithm, a policy and a deployment become a fragmented dataflow graph."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from fragflow._jax import contains_all_reduce
from fragflow.graph.analyses.out_of_order_check import with_out_of_order
from fragflow.graph.analyses.staleness import late_messages, server_of
from fragflow.graph.check import check_fragments, refuse_host_in_one_program
from fragflow.graph.check_stages import check_stage
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, Fragment, Loop, Op, Program, Value, walk
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.passes.collectives import as_sends_and_receives, transfers_in, with_collectives
from fragflow.graph.passes.dataflow import dataflow
from fragflow.graph.passes.optimise import coalesce, unhoist
from fragflow.graph.passes.place_glue import colour
from fragflow.graph.passes.split import Split, insert_transfers, project, split
from fragflow.graph.replicas.analysis import NO_AXES, Axes, analyse_replicas, axes_of, extent_of
from fragflow.graph.replicas.one_environment_each import check_stands_for
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
from fragflow.graph.tracing.build_program import build
from fragflow.graph.tracing.trace import Tracer, components_in
from fragflow.policies.policy import Deployment, Placed, Policy, assign, place
from fragflow.policies.synchronisation import Asynchronous

BLOCK = 8
"""environments in a canonical block"""


def cut(
    source: Tracer,
    policy: Policy,
    deployment: Deployment,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
    *,
    deterministic: bool = False,
    on_stage: Callable[[Stage], None] | None = None,
) -> FDG:
    """Cuts the training loop into fragments as `policy` says; tells `on_stage` of every stage.

    `deterministic` prepares canonical blocks: every component is visible, and traced for a block.
    """
    made = stages(source, policy, deployment, optimisations, deterministic=deterministic)
    for stage in made:
        if on_stage is not None:
            on_stage(stage)
        if isinstance(stage, FragmentsStage):
            return stage.fdg
    raise AssertionError("the last stage is the graph")


def stages(
    source: Tracer,
    policy: Policy,
    deployment: Deployment,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
    *,
    deterministic: bool = False,
) -> Iterator[Stage]:
    """The stages of a cut, each checked; none is made before it is asked for."""
    passes = _passes(source, policy, deployment, optimisations, deterministic)
    for stage in passes:
        check_stage(stage)
        yield stage


def _passes(
    source: Tracer,
    policy: Policy,
    deployment: Deployment,
    optimisations: Optimisations,
    deterministic: bool,
) -> Iterator[Stage]:
    # The fragments, and the components they own.
    undivided = source.at(source.extent)
    components = components_in(undivided)
    placed = place(policy, deployment, components, source.num_envs, source.teams)
    refuse_host_in_one_program(policy, placed, undivided, source.environment.name)
    holders = _holders(policy, placed, components)
    names = tuple(p.name for p in placed)
    is_divided = deterministic or _is_divided(policy, placed)
    blocks = [
        *([BLOCK] if deterministic else ()),
        *([max(policy.first, 1)] if policy.first else ()),
    ]
    axes = axes_of(source, placed, blocks) if is_divided else NO_AXES

    # The program, and what replicas would hold of it.
    traces = tuple(source.at(extent) for extent in _extents(source, placed, axes, blocks))
    yield TraceStage(traces=traces)
    program = build(traces, source.extent, holders.__getitem__, open_all=deterministic)
    yield ProgramStage(program=program)
    flow = dataflow(program)
    held = analyse_replicas(source, program, placed, holders, axes)
    row_kinds = held.by_environment()
    yield KindsStage(program=program, kinds=row_kinds, axis=axes.first)

    # The fragment of each operation, and the messages that follow.
    owners = colour(program, flow, placed, holders.__getitem__, held.views(row_kinds))
    yield OwnersStage(program=program, flow=flow, owners=owners, fragments=names)
    decided = split(program, flow, owners, names, optimisations)
    yield SplitStage(program=program, split=decided)
    loop = _with_transfers(program, decided, names, optimisations)

    # The fragments, each checked to compute its part of the whole.
    known = check_fragments(held, _parts(loop, names, decided, optimisations), row_kinds)
    unproven = _unproven(placed, axes)
    for axis in axes.all():
        if unproven and axis.is_stood_for:
            check_stands_for(source, axis)
    loop = with_collectives(loop, placed, lambda p: known[p.over])
    yield MessagesStage(program=program, split=decided, loop=loop)
    parts = _parts(loop, names, decided, optimisations)
    fdg = FDG(
        policy=policy.name,
        program=program,
        fragments={p.name: _fragment(p, program, parts[p.name]) for p in placed},
        transfers=tuple(t for t, _ in transfers_in(loop)),
        kinds={p.name: known.get(p.over, known["environments"])[p.name] for p in placed},
        row_kinds=row_kinds if is_divided else {},
        unproven=unproven,
    )
    yield FragmentsStage(fdg=_with_times(fdg, source, policy))


def _with_times(fdg: FDG, source: Tracer, policy: Policy) -> FDG:
    """The graph with the times at which messages are awaited."""
    fdg = with_out_of_order(fdg, policy.first, source.environment)
    is_async = isinstance(policy.synchronisation, Asynchronous)
    return replace(
        fdg,
        synchronisation=str(policy.synchronisation),
        workers=source.total // source.num_envs,
        delays=late_messages(policy, fdg),
        server=server_of(policy, fdg) if is_async else None,
    )


def _holders(
    policy: Policy, placed: Sequence[Placed], components: Collection[str]
) -> Mapping[str, str]:
    """By component, the fragment that has it."""
    assignment = assign(policy, components)
    owners = {name: p.name for p in placed for name in p.places}
    return {component: owners[assignment[component]] for component in components}


def _is_divided(policy: Policy, placed: Sequence[Placed]) -> bool:
    """True if anything works on some of the environments or agents by themselves."""
    is_async = isinstance(policy.synchronisation, Asynchronous)
    return is_async or policy.first is not None or any(p.replicas > 1 for p in placed)


def _unproven(placed: Sequence[Placed], axes: Axes) -> tuple[str, ...]:
    """Fragments whose own program was not compared, but another one that stands for it."""
    stood_for = {axis.replica for axis in axes.all() if axis.is_stood_for}
    return tuple(p.name for p in placed if p.replicas > 1 and extent_of(p) in stood_for)


def _extents(
    source: Tracer, placed: Sequence[Placed], axes: Axes, blocks: Sequence[int]
) -> list[Extent]:
    """All extents that the program is traced for: those that run, and those that are compared."""
    wanted = [source.extent, *(extent_of(p) for p in placed)]
    wanted += [extent for axis in axes.all() for extent in axis.extents]
    wanted += [replace(extent_of(p), envs=size) for size in blocks for p in placed]
    return list(dict.fromkeys(wanted))


def _with_transfers(
    program: Program, decided: Split, names: Sequence[str], optimisations: Optimisations
) -> Loop:
    loop = insert_transfers(program, decided, names, optimisations)
    if not optimisations.hoist:
        loop = unhoist(loop, decided)
    return coalesce(loop, decided) if optimisations.coalesce else loop


def _parts(
    loop: Loop, names: Sequence[str], decided: Split, optimisations: Optimisations
) -> dict[str, Loop]:
    return {name: project(loop, name, decided, optimisations) for name in names}


def _fragment(placed: Placed, program: Program, part: Loop) -> Fragment:
    loop = as_sends_and_receives(part, placed.name)
    used = _values_read(loop)
    reduces = any(isinstance(n, Op) and contains_all_reduce(n.eqn) for n in walk((loop,)))
    return Fragment(
        name=placed.name,
        places=placed.places,
        components=placed.components,
        replicas=placed.replicas,
        device=placed.device,
        extent=extent_of(placed),
        over=placed.over,
        asked_replicas=placed.asked_replicas,
        constants=tuple(c for c in program.constants if c.output in used),
        loop=loop,
        group=placed.replicas > 1 and reduces,
        own_devices=placed.own_devices,
        first_device=placed.first_device,
    )


def _values_read(loop: Loop) -> set[Value]:
    read: set[Value] = set()
    for node in walk((loop,)):
        if isinstance(node, Op):
            read |= {v for v in node.inputs if v is not None}
        if isinstance(node, Loop):
            read |= {c.init for c in node.carries} | {c.next for c in node.carries}
            read |= {s.outside for s in node.slices} | {s.element for s in node.stacks}
    return read
