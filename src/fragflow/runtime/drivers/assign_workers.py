"""Assigns workers to drivers: one for the workers of a team, or one for each replica."""

from dataclasses import dataclass

from fragflow.graph.ir import FDG
from fragflow.runtime.drivers.codegen import DriverSource, fragments_by_thread, generate
from fragflow.runtime.drivers.interleave import in_turn, thread_order
from fragflow.runtime.planning.plan import Plan
from fragflow.runtime.planning.simulate import ThreadCode, thread_code


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: a replica of a fragment, or all of a group that is not divided."""

    fragment: str
    index: int
    count: int
    """number of workers that the fragment has"""
    replicas: tuple[int, ...]


def assign_workers(
    fdg: FDG, plan: Plan, divide_groups: bool = False
) -> list[tuple[list[WorkerSpec], DriverSource | None]]:
    """Lists the workers of each driver, and its source; None if the driver runs one program.

    A divided group has a worker for each replica; they run the same program together.
    """
    found: list[tuple[list[WorkerSpec], DriverSource | None]] = []
    for team in fragments_by_thread(fdg, plan):
        source = None if plan.parts[team[0]].fused else generate(fdg, plan, team)
        specs = [spec for name in team for spec in _worker_specs(plan, name, divide_groups)]
        groups = [specs] if len(team) > 1 else [[spec] for spec in specs]
        found += [(group, source) for group in groups]
    return found


def _worker_specs(plan: Plan, name: str, divide_groups: bool) -> list[WorkerSpec]:
    fragment = plan.parts[name].fragment
    if fragment.group and not divide_groups:
        replicas = tuple(range(fragment.replicas))
        return [WorkerSpec(fragment=name, index=0, count=1, replicas=replicas)]
    count = fragment.replicas
    return [WorkerSpec(fragment=name, index=r, count=count, replicas=(r,)) for r in range(count)]


def thread_codes(fdg: FDG, plan: Plan, divide_groups: bool = False) -> tuple[ThreadCode, ...]:
    """All that each driver's thread does in an iteration, to be simulated."""
    codes: list[ThreadCode] = []
    for specs, _ in assign_workers(fdg, plan, divide_groups):
        replicas = {spec.fragment: spec.replicas for spec in specs}
        steps = in_turn(thread_order(fdg, plan, list(replicas)))
        order = ((step.fragment, step.instruction) for step in steps)
        codes.append(thread_code(fdg, plan, replicas, order))
    return tuple(codes)
