"""Work beside training: writes metrics, evaluates agents, shows progress."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fragflow.run import Row, Start, mean_return
from fragflow.runtime.observer import RECENT_EPISODES
from fragflow.tools.experiment.evaluate_agent import Evaluator, HostEvaluator
from fragflow.tools.experiment.progress import Display, Update, fragments_text, losses_of
from fragflow.tools.experiment.run_directory import RunDirectory, versions


class Watcher:
    """Listens to a run: writes, evaluates, shows."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        display: Display,
        directory: RunDirectory | None,
        evaluator: Evaluator | HostEvaluator | None,
        weights: Callable[[Any], Any],
        stop: Callable[[], bool],
    ):
        self._asked = asked
        self._display = display
        self._directory = directory
        self._evaluator = evaluator
        self._weights = weights
        self._stop = stop
        self._start: Start | None = None
        self._with_episodes: deque[Row] = deque(maxlen=RECENT_EPISODES)
        self._num_evaluations = 0
        self._eval_return: float | None = None
        self.eval_seconds = 0.0
        self.metrics: list[dict[str, Any]] = []
        self.interrupted = False

    def phase(self, name: str, done: int, total: int) -> None:
        if done < total:
            self._display.phase(name, done, total)

    def started(self, start: Start) -> None:
        self._start = start
        steps = start.iterations * start.steps_per_iteration
        rounding = (
            f"total-steps {self._asked['total_steps']:,} is not a whole number of iterations of "
            f"{start.steps_per_iteration:,} steps: rounded up to {steps:,}"
            if steps != self._asked["total_steps"]
            else None
        )
        if self._directory is not None:
            self._directory.write_config(
                {
                    **self._asked,
                    "iterations": start.iterations,
                    "steps_per_iteration": start.steps_per_iteration,
                    "rounding": rounding,
                    "fragments": fragments_text(start.devices),
                    "versions": versions(),
                }
            )
            self._display.note(f"run directory: {self._directory.path}")
        self._display.note(f"fragments: {fragments_text(start.devices)}")
        self._display.note(f"equality with one undivided program: {start.equality}")
        self._display.note(f"probe: {start.probe}")
        if start.implementations:
            ways = [f"{name} by {how}" for name, how in start.implementations.items()]
            self._display.note(f"computed: {', '.join(ways)}")
        if rounding:
            self._display.note(rounding)
        self._display.note(
            f"{start.programs} programs traced, cut and compiled in {start.compile_seconds:.1f} s, "
            f"tried in {start.trial_seconds:.1f} s; training "
            f"{start.iterations:,} iterations of {start.steps_per_iteration:,} steps"
        )

    def rows(self, rows: Sequence[Row]) -> None:
        assert self._start is not None
        self._with_episodes += [row for row in rows if row.episodes]
        seconds = rows[-1].seconds - self.eval_seconds
        every = self._asked["eval_every"]
        lines = [_line(row, self.eval_seconds) for row in rows]
        if every and rows[-1].env_steps // every > self._num_evaluations:
            self._num_evaluations = rows[-1].env_steps // every
            self._eval_return = self.evaluate(self._start.state())
            lines[-1]["eval_return"] = self._eval_return
        self.metrics += lines
        if self._directory is not None:
            self._directory.append_metrics(lines)
        self._display.update(
            Update(
                env_steps=rows[-1].env_steps,
                total_steps=self._start.iterations * self._start.steps_per_iteration,
                steps_per_second=rows[-1].env_steps / seconds if seconds > 0 else 0.0,
                mean_return=mean_return(self._with_episodes),
                eval_return=self._eval_return,
                losses=losses_of(rows[-1].metrics),
            )
        )

    def should_stop(self) -> bool:
        self.interrupted = self._stop()
        return self.interrupted

    def evaluate(self, state: Any) -> float | None:
        """The mean return of greedy episodes; None without an evaluator."""
        if self._evaluator is None:
            return None
        began = time.perf_counter()
        evaluation = self._evaluator(self._weights(state), seed=self._asked["seed"])
        self.eval_seconds += time.perf_counter() - began
        return evaluation.mean_return

    def evaluate_at_end(self, state: Any) -> float | None:
        if self.interrupted or self._evaluator is None:
            return None
        self._display.phase("evaluating", 0, 1)
        return self.evaluate(state)


def _line(row: Row, eval_seconds: float) -> dict[str, Any]:
    return {
        **row.metrics,
        "iteration": row.iteration,
        "env_steps": row.env_steps,
        "mean_return": row.return_sum / row.episodes if row.episodes else None,
        "mean_length": row.length_sum / row.episodes if row.episodes else None,
        "episodes": row.episodes,
        "seconds": row.seconds - eval_seconds,
    }
