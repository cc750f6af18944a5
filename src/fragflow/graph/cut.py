"""The compiler: an algorithm, a policy and a deployment become a fragmented dataflow graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fragflow._jax import ClosedJaxpr, contains_all_reduce
from fragflow.api.algorithm import Algorithm
from fragflow.api.environment import num_agents_of, teams_of
from fragflow.api.host import Host
from fragflow.api.vector import AnyEnvironment
from fragflow.graph.build import build
from fragflow.graph.check import (
    check_fdg,
    check_owners,
    check_replicas,
    refuse_host_in_one_program,
)
from fragflow.graph.colour import colour, replicas_over
from fragflow.graph.dataflow import dataflow
from fragflow.graph.extent import Axis, Extent, agents_axis, environments_axis
from fragflow.graph.infer import Inference, initial_kinds
from fragflow.graph.interfaces import (
    Known,
    as_sends_and_receives,
    transfers_in,
    with_collectives,
)
from fragflow.graph.ir import FDG, Fragment, Loop, Op, Program, Value, walk
from fragflow.graph.kinds import UNIFORM, Kind
from fragflow.graph.optimise import coalesce, unhoist
from fragflow.graph.split import Options, insert_transfers, project, split
from fragflow.graph.synchronise import late_messages, server_of
from fragflow.graph.trace import Trace, components_in, trace, trace_init
from fragflow.graph.turns import with_turns
from fragflow.policies.policy import Deployment, Over, Placed, Policy, assign, place
from fragflow.policies.synchronisation import Asynchronous

EVERYWHERE = "everywhere"
BLOCK = 8
"""environments in a canonical block"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An algorithm on an environment, traced on demand for each extent."""

    algorithm: Algorithm
    environment: AnyEnvironment | Host
    num_envs: int
    """how many are in the program that is cut"""
    total: int
    """how many there are in all: more, if it is one worker's program"""
    traces: dict[Extent, Trace]

    @property
    def extent(self) -> Extent:
        return Extent(self.num_envs)

    @property
    def teams(self) -> tuple[int, ...]:
        """Agents in each team; empty for one agent without an axis of its own."""
        environment = self.environment
        spaces = environment.environment if isinstance(environment, Host) else environment
        return () if num_agents_of(spaces) is None else teams_of(spaces)

    def at(self, extent: Extent) -> Trace:
        if extent not in self.traces:
            self.traces[extent] = trace(self.algorithm, self.environment, self.total, extent)
        return self.traces[extent]

    def init_at(self, extent: Extent) -> ClosedJaxpr:
        return trace_init(self.algorithm, self.environment, self.total, extent)


def traced(
    algorithm: Algorithm,
    environment: AnyEnvironment | Host,
    num_envs: int,
    total: int | None = None,
) -> Traced:
    """Prepares tracing; the first trace is made when it is asked for."""
    return Traced(
        algorithm=algorithm,
        environment=environment,
        num_envs=num_envs,
        total=total or num_envs,
        traces={},
    )


def cut(
    source: Traced,
    policy: Policy,
    deployment: Deployment,
    options: Options | None = None,
    *,
    deterministic: bool = False,
) -> FDG:
    """Cuts the training loop into fragments as `policy` says.

    `deterministic` prepares canonical blocks: every component is visible, and traced for a block.
    """
    options = options or Options()
    undivided = source.at(source.extent)
    components = components_in(undivided)
    placed = place(policy, deployment, components, source.num_envs, source.teams)
    refuse_host_in_one_program(policy, placed, undivided, source.environment.name)
    assignment = assign(policy, components)
    owner_names = {part: p.name for p in placed for part in p.name.split("+")}

    def fragment_of(component: str) -> str:
        return owner_names[assignment[component]]

    replicas = {p.name: p.replicas for p in placed}
    is_async = isinstance(policy.synchronisation, Asynchronous)
    is_replicated = any(count > 1 for count in replicas.values())
    in_turns = policy.first is not None
    needs_replica_check = deterministic or is_replicated or is_async or in_turns
    axes = _axes(source, placed) if needs_replica_check else []
    wanted = [source.extent, *(_extent(p) for p in placed)]
    wanted += [extent for axis in axes for extent in axis.extents]
    if deterministic:
        wanted += [replace(_extent(p), envs=BLOCK) for p in placed]
    if policy.first is not None:
        wanted.append(Extent(max(policy.first, 1)))
    program = build(
        [source.at(extent) for extent in dict.fromkeys(wanted)],
        source.extent,
        fragment_of,
        open_all=deterministic,
    )
    flow = dataflow(program)

    state = {axis.over: _state_kinds(source, program, axis) for axis in axes}

    def everywhere(axis: Axis, whole: Sequence[str] = ()) -> Mapping[Value, Kind]:
        """Kinds if all were replicated along `axis` but components of the `whole` fragments."""

        def holds_all(op: Op) -> bool:
            return any(fragment_of(c) in whole for c in op.components)

        inference = Inference(program, axis, state[axis.over], {EVERYWHERE: 2}, holds_all)
        return inference.run({EVERYWHERE: program.loop})[EVERYWHERE]

    row_kinds = everywhere(axes[0]) if axes else _all_uniform(program)
    views: dict[Over, Mapping[Value, Kind]] = {"environments": row_kinds}
    if len(axes) > 1:
        views = {
            axis.over: everywhere(axis, [p.name for p in placed if p.over != axis.over])
            for axis in axes
        }
    owners = colour(program, flow, placed, fragment_of, views)
    check_owners(flow, owners, list(replicas))

    names = list(replicas)
    decided = split(program, flow, owners, names, options)
    loop = insert_transfers(program, decided, names, options)
    if not options.hoist:
        loop = unhoist(loop, decided)
    if options.coalesce:
        loop = coalesce(loop, decided)

    def parts(whole: Loop) -> dict[str, Loop]:
        return {name: project(whole, name, decided, options) for name in names}

    known: dict[Over, Known] = {"environments": {name: {} for name in names}}
    for axis in axes:
        count = replicas_over(axis.over, placed)
        known[axis.over] = Inference(program, axis, state[axis.over], count).run(parts(loop))
        check_replicas(program, parts(loop), count, known[axis.over], axis)
    loop = with_collectives(loop, placed, lambda p: known[p.over])
    fragments = {
        p.name: _fragment(p, program, part)
        for p, part in zip(placed, parts(loop).values(), strict=True)
    }
    fdg = FDG(
        policy=policy.name,
        program=program,
        fragments=fragments,
        transfers=tuple(t for t, _ in transfers_in(loop)),
        kinds={p.name: known.get(p.over, known["environments"])[p.name] for p in placed},
        row_kinds=row_kinds if axes else {},
    )
    check_fdg(fdg)
    fdg = with_turns(fdg, policy.first, source.environment)
    return replace(
        fdg,
        synchronisation=str(policy.synchronisation),
        workers=source.total // source.num_envs,
        delays=late_messages(policy, fdg),
        server=server_of(policy, fdg) if is_async else None,
    )


def _axes(source: Traced, placed: Sequence[Placed]) -> list[Axis]:
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


def _extent(placed: Placed) -> Extent:
    parts = placed.replicas if placed.over == "agents" else 1
    return Extent(placed.num_envs, parts=parts)


def _state_kinds(source: Traced, program: Program, axis: Axis) -> Mapping[Value, Kind]:
    large, small = axis.extents
    found = initial_kinds(source.init_at(large), source.init_at(small), axis)
    return {c.init: kind for c, kind in zip(program.loop.carries, found, strict=True)}


def _all_uniform(program: Program) -> Mapping[Value, Kind]:
    return dict.fromkeys(program.avals[program.extent], UNIFORM)


def _fragment(placed: Placed, program: Program, part: Loop) -> Fragment:
    loop = as_sends_and_receives(part, placed.name)
    used = _values_read(loop)
    reduces = any(isinstance(n, Op) and contains_all_reduce(n.eqn) for n in walk((loop,)))
    return Fragment(
        name=placed.name,
        components=placed.components,
        replicas=placed.replicas,
        device=placed.device,
        extent=_extent(placed),
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
