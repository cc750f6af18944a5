"""The compiler: an algorithm, a policy and a deployment become a fragmented dataflow graph."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fragflow._jax import ClosedJaxpr, contains_all_reduce
from fragflow.api.algorithm import Algorithm
from fragflow.api.host import Host
from fragflow.api.vector import AnyEnvironment
from fragflow.graph.build import build
from fragflow.graph.check import (
    check_fdg,
    check_owners,
    check_replicas,
    refuse_host_in_one_program,
)
from fragflow.graph.colour import colour
from fragflow.graph.dataflow import dataflow
from fragflow.graph.infer import Inference, initial_kinds
from fragflow.graph.interfaces import as_sends_and_receives, transfers_in, with_collectives
from fragflow.graph.ir import FDG, Fragment, Loop, Op, Program, Value, walk
from fragflow.graph.kinds import UNIFORM, Kind
from fragflow.graph.optimise import coalesce, unhoist
from fragflow.graph.split import Options, insert_transfers, project, split
from fragflow.graph.synchronise import late_messages, server_of
from fragflow.graph.trace import Trace, components_in, trace, trace_init
from fragflow.graph.turns import with_turns
from fragflow.policies.policy import Deployment, Placed, Policy, assign, place
from fragflow.policies.synchronisation import Asynchronous

EVERYWHERE = "everywhere"
BLOCK = 8
"""environments in a canonical block"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An algorithm on an environment, traced on demand for each number of environments."""

    algorithm: Algorithm
    environment: AnyEnvironment | Host
    num_envs: int
    """how many are in the program that is cut"""
    total: int
    """how many there are in all: more, if it is one worker's program"""
    traces: dict[int, Trace]

    def at(self, num_envs: int) -> Trace:
        if num_envs not in self.traces:
            self.traces[num_envs] = trace(self.algorithm, self.environment, self.total, num_envs)
        return self.traces[num_envs]

    def init_at(self, num_envs: int) -> ClosedJaxpr:
        return trace_init(self.algorithm, self.environment, self.total, num_envs)


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
    components = components_in(source.at(source.num_envs))
    placed = place(policy, deployment, components, source.num_envs)
    refuse_host_in_one_program(policy, placed, source.at(source.num_envs), source.environment.name)
    assignment = assign(policy, components)
    owner_names = {part: p.name for p in placed for part in p.name.split("+")}

    def fragment_of(component: str) -> str:
        return owner_names[assignment[component]]

    replicas = {p.name: p.replicas for p in placed}
    is_async = isinstance(policy.synchronisation, Asynchronous)
    is_replicated = any(count > 1 for count in replicas.values())
    in_turns = policy.first is not None
    needs_replica_check = deterministic or is_replicated or is_async or in_turns
    sizes = _analysis_sizes(source) if needs_replica_check else (0, 0)
    wanted = [source.num_envs, *(p.num_envs for p in placed)]
    if needs_replica_check:
        wanted += sizes
    if deterministic:
        wanted.append(BLOCK)
    if policy.first is not None:
        wanted.append(max(policy.first, 1))
    program = build(
        [source.at(n) for n in dict.fromkeys(wanted)],
        source.num_envs,
        fragment_of,
        open_all=deterministic,
    )
    flow = dataflow(program)

    state: Mapping[Value, Kind] = {}
    kinds: Mapping[Value, Kind] = {}
    if needs_replica_check:
        state = _state_kinds(source, program, sizes)
        kinds = Inference(program, sizes, state, {EVERYWHERE: 2}).run({EVERYWHERE: program.loop})[
            EVERYWHERE
        ]
    owners = (
        colour(program, flow, placed, fragment_of, kinds)
        if needs_replica_check
        else colour(program, flow, placed, fragment_of, _all_uniform(program))
    )
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

    fragment_kinds: Mapping[str, Mapping[Value, Kind]] = {name: {} for name in names}
    if needs_replica_check:
        fragment_kinds = Inference(program, sizes, state, replicas).run(parts(loop))
        check_replicas(program, parts(loop), replicas, fragment_kinds, sizes)
    loop = with_collectives(loop, replicas, fragment_kinds)
    fragments = {
        p.name: _fragment(p, program, part)
        for p, part in zip(placed, parts(loop).values(), strict=True)
    }
    fdg = FDG(
        policy=policy.name,
        program=program,
        fragments=fragments,
        transfers=tuple(t for t, _ in transfers_in(loop)),
        kinds=fragment_kinds,
        row_kinds=kinds,
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


def _analysis_sizes(source: Traced) -> tuple[int, int]:
    """Two numbers of environments, both above one, whose traces are compared.

    Few environments are enough, and cheap to trace; an algorithm that cannot do with so few is
    compared at its own size.
    """
    few = (4, 2)
    try:
        for size in few:
            source.at(size)
    except Exception:
        small = max(source.num_envs, 2)
        return 2 * small, small
    return few


def _state_kinds(source: Traced, program: Program, sizes: tuple[int, int]) -> Mapping[Value, Kind]:
    found = initial_kinds(source.init_at(sizes[0]), source.init_at(sizes[1]), sizes)
    return {c.init: kind for c, kind in zip(program.loop.carries, found, strict=True)}


def _all_uniform(program: Program) -> Mapping[Value, Kind]:
    return dict.fromkeys(program.avals[program.num_envs], UNIFORM)


def _fragment(placed: Placed, program: Program, part: Loop) -> Fragment:
    loop = as_sends_and_receives(part, placed.name)
    used = _values_read(loop)
    reduces = any(isinstance(n, Op) and contains_all_reduce(n.eqn) for n in walk((loop,)))
    return Fragment(
        name=placed.name,
        components=placed.components,
        replicas=placed.replicas,
        device=placed.device,
        num_envs=placed.num_envs,
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
