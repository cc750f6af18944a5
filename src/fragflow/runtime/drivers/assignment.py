"""Which workers share a thread, or a process: those of a team, or one replica of a fragment."""

from dataclasses import dataclass

from fragflow.graph.ir import FDG
from fragflow.runtime.drivers.codegen import DriverSource, fragments_by_thread, generate
from fragflow.runtime.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: a replica of a fragment, or all of a group that is not divided."""

    fragment: str
    index: int
    count: int
    """of workers that the fragment has"""
    replicas: tuple[int, ...]


def assign_workers(
    fdg: FDG, plan: Plan, divide_groups: bool = False
) -> list[tuple[list[WorkerSpec], DriverSource | None]]:
    """The workers of each driver, and its source; without one, it is one program.

    A group that is divided has a worker for each replica, which run the same program together.
    """
    found: list[tuple[list[WorkerSpec], DriverSource | None]] = []
    for team in fragments_by_thread(fdg, plan):
        script = None if plan.parts[team[0]].fused else generate(fdg, plan, team)
        worker_specs = [
            worker_spec for name in team for worker_spec in _worker_specs(plan, name, divide_groups)
        ]
        groups = (
            [worker_specs] if len(team) > 1 else [[worker_spec] for worker_spec in worker_specs]
        )
        found += [(group, script) for group in groups]
    return found


def _worker_specs(plan: Plan, name: str, divide_groups: bool) -> list[WorkerSpec]:
    fragment = plan.parts[name].fragment
    if fragment.group and not divide_groups:
        replicas = tuple(range(fragment.replicas))
        return [WorkerSpec(fragment=name, index=0, count=1, replicas=replicas)]
    count = fragment.replicas
    return [WorkerSpec(fragment=name, index=r, count=count, replicas=(r,)) for r in range(count)]
