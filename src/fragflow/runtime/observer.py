"""Reports of a run while it goes on, and the observers that receive them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fragflow.graph.ir import FDG, EpisodeStat, Program, Value

RECENT_EPISODES = 100
Devices = Mapping[str, Sequence[str]]
"""by fragment, the device of each of its replicas, such as `cpu:0` of the process it is in"""


@dataclass(slots=True)
class Results:
    """The results of one iteration."""

    metrics: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """by label"""
    episodes: dict[EpisodeStat, np.ndarray] = field(default_factory=dict[EpisodeStat, np.ndarray])

    def add(self, program: Program, value: Value, array: np.ndarray) -> None:
        """Adds an output of the training loop."""
        if value in program.episodes:
            self.episodes[program.episodes[value]] = array
        else:
            self.metrics[program.labels[value]] = array


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
    """The facts of a run that are known when everything is compiled and training begins."""

    fdg: FDG | None
    iterations: int
    steps_per_iteration: int
    devices: Devices
    programs: int
    equality: str
    """relation to one undivided program: 'bitwise', 'rounding: ...' or 'different: ...'"""
    probe: str
    """result of the probe, which tries this in double precision, or the reason why it did not"""
    implementations: Mapping[str, str]
    """by kernel, the implementation in use"""
    compile_seconds: float
    """to trace, cut and compile, and to start workers"""
    trial_seconds: float
    """to probe the cut, and to compare bits"""
    state: Callable[[], Any]
    """the state as it is now; to be asked between chunks"""


class Observer(Protocol):
    """Receives the reports of a run while it goes on."""

    def phase(self, name: str, done: int, total: int) -> None: ...
    def started(self, start: Start) -> None: ...
    def rows(self, rows: Sequence[Row]) -> None: ...
    def should_stop(self) -> bool:
        """Asked between chunks; True ends the run early, in good order."""
        ...


class Silent:
    """An observer that ignores all reports."""

    def phase(self, name: str, done: int, total: int) -> None: ...
    def started(self, start: Start) -> None: ...
    def rows(self, rows: Sequence[Row]) -> None: ...
    def should_stop(self) -> bool:
        return False


def mean_return(rows: Sequence[Row]) -> float | None:
    """Mean return over the last iterations that hold a hundred episodes; None without any."""
    count, total = 0, 0.0
    for row in reversed(rows):
        count, total = count + row.episodes, total + row.return_sum
        if count >= RECENT_EPISODES:
            break
    return total / count if count else None
