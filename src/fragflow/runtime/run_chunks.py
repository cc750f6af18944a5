"""Runs a graph chunk by chunk, and reports its metrics."""

import time
from collections.abc import Sequence

import numpy as np

from fragflow.errors import NonFiniteError
from fragflow.runtime.observer import Observer, Results, Row
from fragflow.runtime.protocols import Runtime

CHUNK_SECONDS = 0.25
MAX_CHUNK = 256


def train(
    runtime: Runtime, iterations: int, steps: int, observer: Observer
) -> tuple[list[Row], float]:
    """Runs chunks of iterations, sized so that reports come out about four times a second."""
    rows: list[Row] = []
    began = time.perf_counter()
    chunk = 1

    def report(results: Sequence[Results], seconds: float) -> None:
        new = [_row(len(rows) + k, steps, made, seconds) for k, made in enumerate(results)]
        rows.extend(new)
        if new:
            observer.rows(new)
        _refuse_non_finite(new)

    while len(rows) < iterations and not observer.should_stop():
        chunk = min(chunk, iterations - len(rows))
        before = time.perf_counter()
        results = runtime.run(len(rows), chunk)
        after = time.perf_counter()
        report(results, after - began)
        wanted = int(chunk * CHUNK_SECONDS / max(after - before, 1e-6))
        chunk = max(1, min(wanted, 2 * chunk, MAX_CHUNK))
    rest = runtime.settle(len(rows))
    report(rest, time.perf_counter() - began)
    return rows, time.perf_counter() - began


def _row(index: int, steps: int, results: Results, seconds: float) -> Row:
    def total(field: str) -> float:
        found = [array for stat, array in results.episodes.items() if stat.field == field]
        return float(sum(np.sum(array, dtype=np.float64) for array in found))

    return Row(
        iteration=index,
        env_steps=(index + 1) * steps,
        metrics={label: float(np.mean(array)) for label, array in results.metrics.items()},
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
