"""Records the events of one thread while it runs, to be compared with what a simulation allows."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fragflow.runtime.drivers.codegen import DriverSource
from fragflow.runtime.planning.instructions import Message, Put, Work
from fragflow.runtime.planning.simulate import Event, event_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """An event of a real run."""

    event: Event
    nanoseconds: int
    """when a message began to be sent, or anything else had ended: all processes of a machine have
    this clock in common"""


def in_order_of_time(events: Iterable[TimedEvent]) -> list[Event]:
    """The events of all threads in one order; those of each are given in the order it made them."""
    return [timed.event for timed in sorted(events, key=lambda timed: timed.nanoseconds)]


class Recorder:
    """Keeps the events of one driver, whose thread alone adds to them.

    A driver without instructions, which runs one program, has none.
    """

    def __init__(self) -> None:
        self.events: list[TimedEvent] = []
        self._iteration = 0
        self._steps: list[int] = []

    def watched(
        self,
        scope: Mapping[str, Any],
        script: DriverSource,
        replicas: Mapping[str, tuple[int, ...]],
    ) -> dict[str, Any]:
        """The names that are defined for a driver's source, whose calls are now noted."""
        functions = {
            name: self._noted(scope[name], fragment, replicas[fragment], instruction)
            for name, (fragment, instruction) in script.functions.items()
        }
        loops = {name: _WatchedLoop(scope[name], self._steps) for name in script.steps}
        return {**scope, **functions, **loops, "range": self._iterations}

    def _iterations(self, start: int, end: int) -> Iterator[int]:
        """In place of `range`, which the source uses for iterations and nothing else."""
        for self._iteration in range(start, end):
            yield self._iteration

    def _noted(
        self,
        function: Callable[..., Any],
        fragment: str,
        replicas: tuple[int, ...],
        instruction: Work | Message,
    ) -> Callable[..., Any]:
        is_sent = isinstance(instruction, Put)

        def call(*arguments: Any) -> Any:
            began = time.monotonic_ns()
            result = function(*arguments)
            made = event_of(self._iteration, fragment, replicas, instruction, tuple(self._steps))
            # Its receiver may have noted a message before its sender goes on.
            at = began if is_sent else time.monotonic_ns()
            self.events.append(TimedEvent(event=made, nanoseconds=at))
            return result

        return call


@dataclass(slots=True)
class _WatchedLoop:
    """The steps of a loop; while one is made, its number is the last of `steps`."""

    items: Iterable[Any]
    steps: list[int]

    def __iter__(self) -> Iterator[Any]:
        for step, item in enumerate(self.items):
            self.steps.append(step)
            yield item
            self.steps.pop()
