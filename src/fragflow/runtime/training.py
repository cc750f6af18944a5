"""Runs an engine chunk by chunk, and reports what it gives."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fragflow.errors import NonFiniteError
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.observer import Devices, Observer, Row
from fragflow.runtime.programs.implementations import Picks

CHUNK_SECONDS = 0.25
MAX_CHUNK = 256


class Runtime(Protocol):
    """What runs iterations: a runtime."""

    num_programs: int
    picks: Picks
    """by fragment, how it computes what has several implementations"""

    @property
    def sent(self) -> Sent: ...
    @property
    def devices(self) -> Devices: ...
    def run(self, start: int, count: int) -> list[dict[str, np.ndarray]]:
        """Metrics of `count` iterations by label; some threads may go on with the next ones."""
        ...

    def settle(self, made: int) -> list[dict[str, np.ndarray]]:
        """Finishes iterations that were begun; their metrics from number `made` on."""
        ...

    def close(self) -> None: ...


def train(
    engine: Runtime, iterations: int, steps: int, observer: Observer
) -> tuple[list[Row], float]:
    """Runs chunks of iterations, sized so that reports come out about four times a second."""
    rows: list[Row] = []
    began = time.perf_counter()
    chunk = 1

    def report(results: Sequence[Mapping[str, np.ndarray]], seconds: float) -> None:
        new = [_row(len(rows) + k, steps, values, seconds) for k, values in enumerate(results)]
        rows.extend(new)
        if new:
            observer.rows(new)
        _refuse_non_finite(new)

    while len(rows) < iterations and not observer.should_stop():
        chunk = min(chunk, iterations - len(rows))
        before = time.perf_counter()
        results = engine.run(len(rows), chunk)
        after = time.perf_counter()
        report(results, after - began)
        wanted = int(chunk * CHUNK_SECONDS / max(after - before, 1e-6))
        chunk = max(1, min(wanted, 2 * chunk, MAX_CHUNK))
    rest = engine.settle(len(rows))
    report(rest, time.perf_counter() - began)
    return rows, time.perf_counter() - began


def _row(index: int, steps: int, values: Mapping[str, np.ndarray], seconds: float) -> Row:
    metrics = {
        label.removeprefix("0."): float(np.mean(value))
        for label, value in values.items()
        if label.startswith("0.")
    }

    def total(name: str) -> float:
        labels = [label for label in values if label.startswith("1.") and label.endswith(name)]
        return float(sum(np.sum(values[label], dtype=np.float64) for label in labels))

    return Row(
        iteration=index,
        env_steps=(index + 1) * steps,
        metrics=metrics,
        episodes=int(total("episodes")),
        return_sum=total("return_sum"),
        length_sum=int(total("length_sum")),
        seconds=seconds,
    )


def _refuse_non_finite(rows: Sequence[Row]) -> None:
    for row in rows:
        for name, value in row.metrics.items():
            if not np.isfinite(value):
                raise NonFiniteError(
                    f"the metric {name} is {value} at iteration {row.iteration} "
                    f"({row.env_steps} steps): training has diverged. Try a smaller learning rate."
                )
