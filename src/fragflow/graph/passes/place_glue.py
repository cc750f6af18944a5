"""Assigns each operation to a fragment.

Components are placed by the policy. What lies between them (glue) goes where the fewest bytes
cross, found by minimum cuts; glue that follows from the run's sources alone is computed wherever it
is needed. Some edges must not be cut: a value that replicas hold in no cuttable way costs infinity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fragflow.graph.ir import Op, Program, Value
from fragflow.graph.passes.dataflow import FREE, Dataflow, is_all_reduce, num_bytes
from fragflow.graph.passes.minimum_cut import Capacity, Unbounded, minimum_cut
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.policies.policy import Over, Placed, replicas_over

Owner = str


def colour(
    program: Program,
    flow: Dataflow,
    placed: Sequence[Placed],
    fragment_of: Callable[[str], str],
    kinds: Mapping[Over, Mapping[Value, Kind]],
) -> Mapping[str, Owner]:
    """The fragment of every operation, `FREE` for those that every fragment computes itself.

    `kinds` are those of values along each axis that fragments are replicated over.
    """
    replicas = {p.name: p.replicas for p in placed}
    owners: dict[str, Owner] = {}
    for path, op in flow.ops.items():
        touched = {fragment_of(c) for c in op.components}
        if touched:
            owners[path] = touched.pop()
        elif all(v is None or v in flow.free for v in op.outputs):
            owners[path] = FREE
    for path, op in flow.ops.items():
        if path not in owners and is_all_reduce(op):
            owners[path] = _reduction_owner(op, flow, owners, replicas)
    views = [AxisView(replicas=replicas_over(over, placed), kinds=k) for over, k in kinds.items()]
    for view in views:
        _pin_local_reductions(flow, owners, view.replicas, view.kinds)
    glue = [path for path in flow.ops if path not in owners]
    edges = list(_hyperedges(program, flow, owners, views))
    names = list(replicas)
    # Isolating cuts, the last fragment taking what no other one claims.
    for name in names[:-1]:
        for path in _isolated(name, glue, owners, edges):
            owners.setdefault(path, name)
    for path in glue:
        owners.setdefault(path, names[-1])
    return owners


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisView:
    """A program along one of the axes that fragments are replicated over."""

    replicas: Mapping[str, int]
    kinds: Mapping[Value, Kind]

    def allows(self, value: Value, readers: Sequence[Op]) -> bool:
        """True if a value may be sent from one fragment to another."""
        kind = self.kinds[value]
        if kind.is_cuttable or kind.tag is Tag.UNIFORM or len(set(self.replicas.values())) == 1:
            return True
        # Every replica sends its part, but only to where the parts are reduced.
        return kind.tag is Tag.PARTIAL and all(is_all_reduce(op) for op in readers)

    def copies(self, value: Value) -> int:
        return max(self.replicas.values()) if self.kinds[value].tag is Tag.PARTIAL else 1


def _reduction_owner(
    op: Op, flow: Dataflow, owners: Mapping[str, Owner], replicas: Mapping[str, int]
) -> Owner:
    """The owner of an all_...: that of its users if it has fewer replicas, else of its operands."""
    readers = _nearest(op.outputs, lambda v: flow.users.get(v, ()), flow, owners, forward=True)
    makers = _nearest(op.inputs, lambda v: (flow.producer.get(v),), flow, owners, forward=False)
    source = min(makers, key=lambda name: replicas[name], default=None)
    if source is not None and replicas[source] == 1:
        return source
    if readers:
        most = max(readers, key=lambda name: replicas[name])
        if source is None or replicas[most] < replicas[source]:
            return most
        return source
    fewest = min(replicas, key=lambda name: replicas[name])
    if source is None or replicas[fewest] == 1:
        return fewest
    return source


def _nearest(
    values: Sequence[Value | None],
    step: Callable[[Value], Sequence[str | None]],
    flow: Dataflow,
    owners: Mapping[str, Owner],
    forward: bool,
) -> set[str]:
    """The fragments first met when following values through glue."""
    found: set[str] = set()
    seen: set[str] = set()
    queue = [v for v in values if v is not None]
    while queue:
        for path in step(queue.pop()):
            if path is None or path in seen:
                continue
            seen.add(path)
            owner = owners.get(path)
            if owner is not None and owner != FREE:
                found.add(owner)
            elif owner is None:
                op = flow.ops[path]
                if forward:
                    queue += [v for v, maker in flow.producer.items() if maker == path]
                else:
                    queue += [v for v in op.inputs if v is not None]
    return found


def _pin_local_reductions(
    flow: Dataflow,
    owners: dict[str, Owner],
    replicas: Mapping[str, int],
    kinds: Mapping[Value, Kind],
) -> None:
    """Pins glue that reduces over environments, with no all_... after it, to where they all are."""
    single = [name for name, count in replicas.items() if count == 1]
    if not single or len(single) == len(replicas):
        return
    for path, op in flow.ops.items():
        if path in owners:
            continue
        results = [kinds[v] for v in op.outputs if v is not None]
        loses = any(k.tag is Tag.MIXED for k in results) or any(
            k.tag is Tag.PARTIAL and not _leads_to_reduction(v, flow)
            for v, k in zip([v for v in op.outputs if v is not None], results, strict=True)
        )
        if loses:
            owners[path] = single[-1]


def _leads_to_reduction(value: Value, flow: Dataflow) -> bool:
    """True if every way from `value` through glue ends in an all_... operation."""
    seen: set[str] = set()
    queue, ends = [value], 0
    while queue:
        for path in flow.users.get(queue.pop(), ()):
            if path in seen:
                continue
            seen.add(path)
            op = flow.ops[path]
            if is_all_reduce(op):
                ends += 1
            elif op.components:
                return False
            else:
                queue += [v for v, maker in flow.producer.items() if maker == path]
    return ends > 0


def _hyperedges(
    program: Program,
    flow: Dataflow,
    owners: Mapping[str, Owner],
    views: Sequence[AxisView],
):
    """`(operations that share a value, bytes it costs to separate them)`."""
    avals = program.avals[program.extent]
    for value, paths in flow.users.items():
        maker = flow.producer.get(value)
        if maker is None or value in flow.free or owners.get(maker) == FREE:
            continue
        members = [maker, *(p for p in paths if owners.get(p) != FREE)]
        readers = [flow.ops[p] for p in members[1:]]
        legal = all(view.allows(value, readers) for view in views)
        cost = num_bytes(avals[value]) * flow.trips[value]
        cost *= max(view.copies(value) for view in views)
        if len(set(members)) > 1:
            yield tuple(dict.fromkeys(members)), cost if legal else math.inf


def _isolated(
    name: str,
    glue: Sequence[str],
    owners: Mapping[str, Owner],
    edges: Sequence[tuple[tuple[str, ...], Capacity]],
) -> list[str]:
    """Glue on `name`'s side of the cheapest cut between it and all other fragments."""
    free_glue = [path for path in glue if path not in owners]
    if not free_glue:
        return []
    capacities: dict[tuple[str, str], Capacity] = {}

    def terminal(path: str) -> str:
        owner = owners.get(path)
        if owner is None:
            return f"op {path}"
        return "source" if owner == name else "sink"

    for k, (members, cost) in enumerate(edges):
        ends = {terminal(path) for path in members}
        if len(ends) == 1 or {"source", "sink"} <= ends:
            continue  # never separated, or always: it decides nothing
        capacities[f"in {k}", f"out {k}"] = cost
        for end in sorted(ends):
            capacities[end, f"in {k}"] = capacities[f"out {k}", end] = math.inf
    try:
        _, side = minimum_cut(capacities, "source", "sink")
    except Unbounded:
        # Some forbidden edge must be cut: the check that follows says which value and why.
        return []
    return [path for path in free_glue if f"op {path}" in side]
