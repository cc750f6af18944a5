"""What a run reports while it goes on, and to whom."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fragflow.graph.ir import FDG

RECENT_EPISODES = 100
Devices = Mapping[str, Sequence[str]]
"""by fragment, the device of each of its replicas, such as `cpu:0` of the process it is in"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One iteration's report."""

    iteration: int
    env_steps: int
    metrics: Mapping[str, float]
    episodes: int
    return_sum: float
    length_sum: int
    seconds: float
    """since training began"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known when everything is compiled and training begins."""

    fdg: FDG | None
    iterations: int
    steps_per_iteration: int
    devices: Devices
    programs: int
    equality: str
    """how this run relates to one undivided program: 'bitwise', or 'rounding: ...'"""
    probe: str
    """what was tried of that, in double precision, or why nothing was"""
    implementations: Mapping[str, str]
    """how kernels are computed, and the actor where that was asked for"""
    compile_seconds: float
    state: Callable[[], Any]
    """the state as it is now; to be asked between chunks"""


class Observer(Protocol):
    """Who wants to hear of a run while it goes on."""

    def phase(self, name: str, done: int, total: int) -> None: ...
    def started(self, start: Start) -> None: ...
    def rows(self, rows: Sequence[Row]) -> None: ...
    def should_stop(self) -> bool:
        """Asked between chunks; True ends the run early, in good order."""
        ...


class Silent:
    """An observer that does not look."""

    def phase(self, name: str, done: int, total: int) -> None: ...
    def started(self, start: Start) -> None: ...
    def rows(self, rows: Sequence[Row]) -> None: ...
    def should_stop(self) -> bool:
        return False


def mean_return(rows: Sequence[Row]) -> float | None:
    """Mean over the episodes of the last iterations: as many as make a hundred episodes."""
    count, total = 0, 0.0
    for row in reversed(rows):
        count, total = count + row.episodes, total + row.return_sum
        if count >= RECENT_EPISODES:
            break
    return total / count if count else None
