"""Joins the parts of all workers: their devices, the state that they keep, their results."""

from collections.abc import Iterator, Sequence

import numpy as np

from fragflow.graph.ir import FDG, Carry, Stack, Value
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.runtime.observer import Results
from fragflow.runtime.programs.layout import kind_of
from fragflow.runtime.protocols import (
    Array,
    DrivenWorker,
    Driver,
    Made,
    Metrics,
    WorkerReport,
    WorkerSet,
)


def report_on(worker_set: WorkerSet, workers: Sequence[DrivenWorker]) -> WorkerReport:
    """The facts about all workers; `workers` are the drivers', and a server's if there is one."""
    devices: dict[str, list[str]] = {}
    for worker in workers:
        devices.setdefault(worker.name, []).extend(worker.devices)
    return WorkerReport(
        devices=devices,
        processors=[(worker.name, worker.processor) for worker in workers],
        sent=worker_set.sent,
        replacements=sum(driver.replacements for driver in worker_set.drivers),
        restarts=sum(driver.restarts for driver in worker_set.drivers),
    )


def in_order(fdg: FDG, drivers: Sequence[Driver]) -> list[tuple[int, DrivenWorker]]:
    """All workers with the index of their driver, sorted by fragment and replica."""
    order = list(fdg.fragments)
    found = [(k, worker) for k, driver in enumerate(drivers) for worker in driver.workers.values()]
    return sorted(found, key=lambda pair: (order.index(pair[1].name), pair[1].replicas))


def joined(parts: Sequence[Array], kind: Kind) -> np.ndarray:
    """One array over all environments or agents: the parts side by side, or the one they share."""
    arrays = [np.asarray(part) for part in parts]
    is_divided = kind.tag is Tag.VARYING and len(arrays) > 1
    return np.concatenate(arrays, kind.axis) if is_divided else arrays[0]


def state_of(fdg: FDG, workers: Sequence[DrivenWorker]) -> dict[Value, np.ndarray]:
    """Every state leaf, from the workers of the fragment that makes it."""
    leaves: dict[Value, np.ndarray] = {}
    for carry in fdg.program.loop.carries:
        holders = [w for w in workers if carry.inside in w.state()]
        maker = owner(fdg, carry, holders)
        parts = [w.state()[carry.inside] for w in holders if w.name == maker]
        leaves[carry.inside] = joined(parts, kind_of(carry.inside, fdg.kinds[maker]))
    return leaves


def owner(fdg: FDG, carry: Carry, holders: Sequence[DrivenWorker]) -> str:
    """The fragment that makes a state leaf; others hold it too, but receive it in a message."""
    names = list(dict.fromkeys(w.name for w in holders))
    received = {(t.target, p.value) for t in fdg.transfers for p in t.parcels}
    makers = [n for n in names if (n, carry.next) not in received]
    return (makers or names)[0]


def results_of(
    fdg: FDG, workers: Sequence[tuple[int, DrivenWorker]], made: Sequence[Made], count: int
) -> list[Results]:
    """The results of `count` iterations; `made` is what each driver has made."""
    by_worker = [(worker, made[k].metrics[worker.name]) for k, worker in workers]
    rows = [Results() for _ in range(count)]
    for stack, parts, kind in _stacks(fdg, by_worker):
        for k in range(count):
            array = joined([part[k] for part in parts], kind)
            rows[k].add(fdg.program, stack.outside, array)
    return rows


def _stacks(
    fdg: FDG, by_worker: Sequence[tuple[DrivenWorker, Metrics]]
) -> Iterator[tuple[Stack, list[list[np.ndarray]], Kind]]:
    """Each output of the training loop: the rows of the workers that make it, and its kind."""
    for stack in fdg.program.loop.stacks:
        holders = [(worker, rows) for worker, rows in by_worker if stack.outside in rows]
        kind = kind_of(stack.element, fdg.kinds[holders[0][0].name])
        yield stack, [rows[stack.outside] for _, rows in holders], kind


def appended(parts: Sequence[Made]) -> Made:
    """One driver's results of successive iterations, as of one run."""
    metrics: dict[str, Metrics] = {}
    for part in parts:
        for fragment, rows in part.metrics.items():
            kept = metrics.setdefault(fragment, {})
            for value, made in rows.items():
                kept.setdefault(value, []).extend(made)
    return Made(metrics=metrics)
