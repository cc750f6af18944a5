"""Composes everything: trace, cut, place, run. The only module that knows all the stages."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax
import numpy as np

from fragflow.api.algorithm import Algorithm
from fragflow.api.environment import Environment
from fragflow.errors import ConfigError, NonFiniteError
from fragflow.graph.cut import cut, traced
from fragflow.graph.ir import FDG
from fragflow.graph.split import Options
from fragflow.graph.trace import (
    Trace,
    env_steps_per_iteration,
    init_function,
    iteration_function,
)
from fragflow.policies.policy import Deployment, Policy
from fragflow.runtime.devices import accelerator, prepare_devices
from fragflow.runtime.eager import EagerRuntime
from fragflow.runtime.local import LocalRuntime
from fragflow.runtime.selftest import components_with_other_bits

CHUNK_SECONDS = 0.25
LARGEST_CHUNK = 256
RECENT_EPISODES = 100

RuntimeName = Literal["local", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What to learn: no word of where."""

    algorithm: Algorithm
    environment: Environment
    num_envs: int
    total_steps: int
    seed: int = 0


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
    programs: int
    equality: str
    """how this run relates to one undivided program: 'bitwise', or 'rounding: ...'"""
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


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run gives."""

    state: Any
    rows: list[Row]
    start: Start
    env_steps: int
    train_seconds: float
    messages: int
    bytes_moved: int
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    @property
    def compile_seconds(self) -> float:
        return self.start.compile_seconds

    @property
    def steps_per_second(self) -> float:
        return self.env_steps / self.train_seconds if self.train_seconds else 0.0

    @property
    def episodes(self) -> int:
        return sum(row.episodes for row in self.rows)

    @property
    def mean_return(self) -> float | None:
        return mean_return(self.rows)


def mean_return(rows: Sequence[Row]) -> float | None:
    """Mean over the episodes of the last iterations: as many as make a hundred episodes."""
    count, total = 0, 0.0
    for row in reversed(rows):
        count, total = count + row.episodes, total + row.return_sum
        if count >= RECENT_EPISODES:
            break
    return total / count if count else None


def iterations_for(total_steps: int, steps_per_iteration: int) -> int:
    """Whole iterations that make at least `total_steps`."""
    return max(1, -(-total_steps // steps_per_iteration))


def graph(experiment: Experiment, policy: Policy, deployment: Deployment, **options: bool) -> FDG:
    """The graph that `run` would execute."""
    source = traced(experiment.algorithm, experiment.environment, experiment.num_envs)
    return cut(source, policy, deployment, Options(**options))


def run(
    experiment: Experiment,
    policy: Policy,
    *,
    workers: int = 1,
    learners: int = 1,
    runtime: RuntimeName = "local",
    deterministic: bool = False,
    options: Options | None = None,
    observer: Observer | None = None,
    stall_timeout_seconds: float = 120.0,
) -> Outcome:
    """Trains, and reports to `observer` while it does."""
    observer = observer or Silent()
    if experiment.num_envs < 1:
        raise ConfigError(f"num-envs is {experiment.num_envs}: expected at least 1")
    if experiment.total_steps < 1:
        raise ConfigError(f"total-steps is {experiment.total_steps}: expected at least 1")
    if experiment.total_steps >= 2**31:
        raise ConfigError(f"total-steps is {experiment.total_steps}: expected less than 2^31")
    if runtime == "local":
        prepare_devices(policy, Deployment(workers=workers, learners=learners))
    began = time.perf_counter()
    observer.phase("tracing", 0, 1)
    source = traced(experiment.algorithm, experiment.environment, experiment.num_envs)
    trace = source.at(experiment.num_envs)
    steps = env_steps_per_iteration(trace, experiment.num_envs)
    if steps == 0:
        raise ConfigError(
            f"{type(experiment.algorithm).__name__}.step never calls env.step: nothing to train on"
        )
    iterations = iterations_for(experiment.total_steps, steps)
    sources = {
        "env_ids": np.arange(experiment.num_envs, dtype=np.int32),
        "run_key": np.asarray(jax.random.key_data(jax.random.key(experiment.seed))),
        "steps_per_iteration": np.int32(steps),
        "total_iterations": np.int32(iterations),
    }
    init = init_function(experiment.algorithm, experiment.environment, experiment.num_envs)
    if runtime == "eager":
        engine: Any = EagerRuntime(
            iteration_function(experiment.algorithm, experiment.environment, experiment.num_envs),
            _eager_init(init, sources),
            sources,
            trace.metric_labels,
        )
        fdg, equality = None, "rounding: eager runs every operation by itself"
    else:
        deployment = Deployment(workers=workers, learners=learners, accelerator=accelerator())
        fdg = cut(source, policy, deployment, options, deterministic=deterministic)
        observer.phase("initialising", 0, 1)
        state = jax.jit(init)(sources["run_key"], sources["env_ids"])
        leaves = dict(
            zip((c.inside for c in fdg.program.loop.carries), jax.tree.leaves(state), strict=True)
        )
        equality = _equality(fdg, source.at, deterministic, observer)
        engine = LocalRuntime(
            fdg,
            leaves,
            sources,
            row_kinds=fdg.row_kinds if deterministic else None,
            stall_timeout_seconds=stall_timeout_seconds,
            progress=observer.phase,
        )

    def state_now() -> Any:
        if fdg is None:
            return engine.final_state()
        return _state_tree(trace, fdg, engine.state())

    start = Start(
        fdg=fdg,
        iterations=iterations,
        steps_per_iteration=steps,
        programs=engine.num_programs,
        equality=equality,
        compile_seconds=time.perf_counter() - began,
        state=state_now,
    )
    observer.started(start)
    try:
        rows, seconds = _train(engine, iterations, steps, observer)
        final = state_now()
    finally:
        engine.close()
    return Outcome(
        state=final,
        rows=rows,
        start=start,
        env_steps=len(rows) * steps,
        train_seconds=seconds,
        messages=engine.num_messages,
        bytes_moved=engine.bytes_moved,
    )


def _train(engine: Any, iterations: int, steps: int, observer: Observer) -> tuple[list[Row], float]:
    """Chunks of iterations, sized so that reports come out about four times a second."""
    rows: list[Row] = []
    began = time.perf_counter()
    chunk = 1
    while len(rows) < iterations and not observer.should_stop():
        chunk = min(chunk, iterations - len(rows))
        before = time.perf_counter()
        results = engine.run(len(rows), chunk)
        after = time.perf_counter()
        new = [
            _row(len(rows) + k, steps, values, after - began) for k, values in enumerate(results)
        ]
        rows += new
        observer.rows(new)
        _refuse_non_finite(new)
        wanted = int(chunk * CHUNK_SECONDS / max(after - before, 1e-6))
        chunk = max(1, min(wanted, 2 * chunk, LARGEST_CHUNK))
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


def _equality(fdg: FDG, trace_at: Any, deterministic: bool, observer: Observer) -> str:
    """How the run relates to one undivided program."""
    groups = [f.name for f in fdg.fragments.values() if f.group]
    if groups:
        return f"rounding: replicas of {', '.join(groups)} add up gradients in another order"
    partial = [
        t for t in fdg.transfers if any(p.collective.startswith("reduce") for p in t.parcels)
    ]
    if partial:
        return f"rounding: {partial[0].source} reduces in parts"
    if deterministic:
        return "bitwise"
    different: set[str] = set()
    for fragment in fdg.fragments.values():
        if fragment.replicas > 1:
            observer.phase("self-test", 0, 1)
            whole, local = trace_at(fdg.program.num_envs), trace_at(fragment.num_envs)
            owned = set(fragment.components)
            different |= set(
                components_with_other_bits(
                    whole.closed.jaxpr,
                    local.closed.jaxpr,
                    (fdg.program.num_envs, fragment.num_envs),
                    owned.__contains__,
                )
            )
    if different:
        return (
            f"rounding: {', '.join(sorted(different))} round differently in batches of this size "
            "(use --deterministic for equal bits)"
        )
    return "bitwise"


def _state_tree(trace: Trace, fdg: FDG, leaves: Mapping[str, np.ndarray]) -> Any:
    return jax.tree.unflatten(
        trace.state_structure, [leaves[c.inside] for c in fdg.program.loop.carries]
    )


def _eager_init(init: Any, sources: Mapping[str, np.ndarray]) -> Any:
    with jax.disable_jit():
        return init(jax.numpy.asarray(sources["run_key"]), jax.numpy.asarray(sources["env_ids"]))
