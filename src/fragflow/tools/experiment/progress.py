"""Progress of a run: a live display on a terminal, plain lines elsewhere."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from fragflow.runtime.observer import Devices

SECONDS_BETWEEN_UPDATES = 0.25
SECONDS_BETWEEN_LINES = 10.0
LINES_PER_RUN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The progress of training so far."""

    env_steps: int
    total_steps: int
    steps_per_second: float
    mean_return: float | None
    eval_return: float | None
    losses: tuple[tuple[str, float], ...]

    @property
    def is_last(self) -> bool:
        return self.env_steps >= self.total_steps

    @property
    def text(self) -> str:
        words = [f"{self.steps_per_second:,.0f} steps/s"]
        if self.mean_return is not None:
            words.append(f"return {self.mean_return:.1f}")
        if self.eval_return is not None:
            words.append(f"eval return {self.eval_return:.1f}")
        words += [f"{name} {value:.4g}" for name, value in self.losses]
        if self.steps_per_second > 0 and not self.is_last:
            left = (self.total_steps - self.env_steps) / self.steps_per_second
            words.append(f"ETA {duration(left)}")
        return ", ".join(words)


class Display(Protocol):
    """Shows a run."""

    def note(self, text: str) -> None:
        """One line that stays."""
        ...

    def phase(self, name: str, done: int, total: int) -> None:
        """The work in progress before training, and after it."""
        ...

    def update(self, update: Update) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """Shows nothing."""

    def note(self, text: str) -> None: ...
    def phase(self, name: str, done: int, total: int) -> None: ...
    def update(self, update: Update) -> None: ...
    def close(self) -> None: ...


class Plain:
    """Lines for logs: one per phase, then one per twentieth of the run or every ten seconds."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._last_phase = ""
        self._last_steps = 0
        self._last_time = 0.0

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def phase(self, name: str, done: int, total: int) -> None:
        text = phase_text(name, done, total)
        if text != self._last_phase:
            self._last_phase = text
            self.note(text)

    def update(self, update: Update) -> None:
        waited = time.monotonic() - self._last_time
        progressed = (update.env_steps - self._last_steps) * LINES_PER_RUN >= update.total_steps
        due = waited >= SECONDS_BETWEEN_UPDATES and (progressed or waited >= SECONDS_BETWEEN_LINES)
        if due or update.is_last:
            self._last_time, self._last_steps = time.monotonic(), update.env_steps
            percent = 100 * update.env_steps / update.total_steps
            self.note(f"{percent:3.0f} %  {update.env_steps:,} steps, {update.text}")

    def close(self) -> None: ...


class Live:
    """A bar and a line of numbers that change in place."""

    def __init__(self, stream: TextIO):
        from rich.console import Console, Group
        from rich.live import Live as RichLive
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
        from rich.text import Text

        self._text = Text
        self._console = Console(file=stream, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._numbers = Text("")
        self._live = RichLive(
            console=self._console,
            get_renderable=lambda: Group(self._bar, self._numbers) if self._numbers else self._bar,
            refresh_per_second=1 / SECONDS_BETWEEN_UPDATES,
            transient=True,
        )
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def phase(self, name: str, done: int, total: int) -> None:
        self._numbers = self._text("")
        text = phase_text(name, done, total)
        # Not `update`: a bar that was full once would stand still.
        self._bar.reset(
            self._task, description=text, completed=done, total=total if total > 1 else None
        )

    def update(self, update: Update) -> None:
        self._numbers = self._text(f"  {update.text}", overflow="ellipsis", no_wrap=True)
        self._bar.update(
            self._task,
            description=f"training  {update.env_steps:,} steps",
            completed=update.env_steps,
            total=update.total_steps,
        )

    def close(self) -> None:
        self._live.stop()


def display_for(stream: TextIO | None = None) -> Display:
    """A live display if `stream` is a terminal in front of a person."""
    out = sys.stdout if stream is None else stream
    if out is None:  # closed, as by `>&-`
        return Quiet()
    if out.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb":
        return Live(out)
    return Plain(out)


def phase_text(name: str, done: int, total: int) -> str:
    if total > 1:
        return f"{name} {min(done + 1, total)} of {total}"
    return name


def fragments_text(devices: Devices) -> str:
    """`environment+actor x4 @cpu · learner x1 @cpu`."""
    if not devices:
        return "none: the loop runs uncompiled and uncut"
    return " · ".join(
        f"{name} x{len(theirs)} @{theirs[0].partition(':')[0]}" for name, theirs in devices.items()
    )


def losses_of(metrics: Any) -> tuple[tuple[str, float], ...]:
    """At most two metrics that are losses; the one called `loss` alone if there is one."""
    if "loss" in metrics:
        return (("loss", metrics["loss"]),)
    return tuple((name, value) for name, value in metrics.items() if "loss" in name)[:2]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
