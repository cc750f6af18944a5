"""Which workers share a thread, or a process: those of a team, or one replica of a fragment."""

from dataclasses import dataclass

from fragflow.graph.ir import FDG
from fragflow.runtime.drivers.codegen import Script, teams, write
from fragflow.runtime.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One worker: a replica of a fragment, or all of a group that is not divided."""

    fragment: str
    index: int
    count: int
    """of workers that the fragment has"""
    replicas: tuple[int, ...]


def rosters(
    fdg: FDG, plan: Plan, divide_groups: bool = False
) -> list[tuple[list[Station], Script | None]]:
    """The workers of each crew, and the script that drives them; without one, it is one program.

    A group that is divided has a worker for each replica, which run the same program together.
    """
    found: list[tuple[list[Station], Script | None]] = []
    for team in teams(fdg, plan):
        script = None if plan.parts[team[0]].fused else write(fdg, plan, team)
        stations = [station for name in team for station in _stations(plan, name, divide_groups)]
        groups = [stations] if len(team) > 1 else [[station] for station in stations]
        found += [(group, script) for group in groups]
    return found


def _stations(plan: Plan, name: str, divide_groups: bool) -> list[Station]:
    fragment = plan.parts[name].fragment
    if fragment.group and not divide_groups:
        replicas = tuple(range(fragment.replicas))
        return [Station(fragment=name, index=0, count=1, replicas=replicas)]
    count = fragment.replicas
    return [Station(fragment=name, index=r, count=count, replicas=(r,)) for r in range(count)]
