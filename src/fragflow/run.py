"""Runs what was planned: probes it, starts its workers, runs chunks of iterations, reports."""

import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fragflow.api.host import Host, HostEnvironment
from fragflow.error_owner import judging
from fragflow.graph.cut import cut
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, Value
from fragflow.graph.probe.graph_hash import of_programs
from fragflow.graph.tracing.trace import (
    Tracer,
    init_function,
    iteration_function,
    tracer,
)
from fragflow.planned_run import Execution as Execution
from fragflow.planned_run import Experiment as Experiment
from fragflow.planned_run import Graph, iterations_for, refuse_no_steps
from fragflow.planned_run import PlannedRun as PlannedRun
from fragflow.planned_run import RuntimeName as RuntimeName
from fragflow.planned_run import plan_run as plan_run
from fragflow.planned_run import text_of_stage as text_of_stage
from fragflow.policies.policy import Deployment, Policy
from fragflow.policies.synchronisation import LOCKSTEP, Asynchronous
from fragflow.remote.launch.cluster import Cluster
from fragflow.runtime.asynchrony.runtime import AsyncRuntime
from fragflow.runtime.asynchrony.server import Server
from fragflow.runtime.asynchrony.thread_workers import AsyncThreadWorkers
from fragflow.runtime.drivers.thread_workers import ThreadWorkers
from fragflow.runtime.eager import EagerRuntime
from fragflow.runtime.first_state import evaluate_with_host
from fragflow.runtime.host_environments.pool import (
    AnsweringPool,
    HostPool,
    answer_by,
    close_pools,
    open_pools,
)
from fragflow.runtime.lagged import LaggedRuntime
from fragflow.runtime.lockstep import LockstepRuntime
from fragflow.runtime.observer import Observer as Observer
from fragflow.runtime.observer import Row as Row
from fragflow.runtime.observer import Silent as Silent
from fragflow.runtime.observer import Start as Start
from fragflow.runtime.observer import mean_return as mean_return
from fragflow.runtime.programs.devices import are_loops_apart, deploy_here
from fragflow.runtime.programs.implementations import Picks, in_words, inexact, pick
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.promises import compare_bits, selftest
from fragflow.runtime.promises import equality as equality_of_runs
from fragflow.runtime.promises import promise as promises
from fragflow.runtime.promises.compare_bits import bits_depend_on, other_bits
from fragflow.runtime.promises.equality import after_restarts, equality
from fragflow.runtime.promises.probe_cache import recall, remember
from fragflow.runtime.promises.promise import EAGER_PROMISE, Promise
from fragflow.runtime.promises.run_probe import key_of, tried
from fragflow.runtime.protocols import Runtime, WorkerSet
from fragflow.runtime.run_chunks import train

if TYPE_CHECKING:  # needs libraries that a run in threads does not
    from fragflow.remote.launch.launcher import Launcher


JUDGES = (compare_bits, equality_of_runs, promises, selftest)
"""modules that make the statement about a run: what other versions of them said does not count"""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of a run."""

    state: Any
    rows: list[Row]
    start: Start
    env_steps: int
    train_seconds: float
    messages: int
    bytes_moved: int
    equality: str
    """the relation of the results to those of one undivided program, restarts included"""
    replacements: int = 0
    """worker processes that were lost and replaced"""
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


def run(
    experiment: Experiment,
    policy: Policy,
    *,
    workers: int = 1,
    learners: int = 1,
    slots: Mapping[str, int] | None = None,
    observer: Observer | None = None,
    **execution: Any,
) -> Outcome:
    """Plans a run on this machine and executes it; `execution` holds fields of `Execution`.

    `slots` gives, by platform, the number of replicas with a place of their own; more are fused. By
    default there is one per accelerator; on CPUs every replica has a thread of its own.
    """
    how = Execution(**execution)
    deployment = (
        Deployment(workers=workers, learners=learners)
        if how.runtime == "eager"
        else deploy_here(policy, workers, learners, slots)
    )
    observer = observer or Silent()
    return execute(plan_run(experiment, policy, deployment, how, observer.phase), observer)


def execute(planned: PlannedRun, observer: Observer, promise: Promise | None = None) -> Outcome:
    """Trains, and reports to `observer` while it does.

    Replicas are first compared with the undivided program, unless that has led to `promise` before.
    """
    began = time.perf_counter()
    ready = (
        _prepare_eager(planned.experiment)
        if planned.graph is None
        else _prepare(planned, planned.graph, observer, promise)
    )
    runtime = ready.runtime
    seconds = time.perf_counter() - began + planned.seconds - ready.promise.seconds
    start = Start(
        fdg=planned.graph.fdg if planned.graph else None,
        iterations=ready.iterations,
        steps_per_iteration=ready.steps,
        devices=runtime.report().devices,
        programs=ready.programs,
        equality=ready.promise.equality,
        probe=ready.promise.probe,
        implementations=in_words(ready.picks),
        compile_seconds=seconds,
        trial_seconds=ready.promise.seconds,
        state=ready.state,
    )
    try:
        with judging(is_running=True):
            observer.started(start)
            rows, seconds = train(runtime, ready.iterations, ready.steps, observer)
            final = ready.state()
            report = runtime.report()
    finally:
        runtime.close()
    return Outcome(
        state=final,
        rows=rows,
        start=start,
        env_steps=len(rows) * ready.steps,
        train_seconds=seconds,
        messages=report.sent.messages,
        bytes_moved=report.sent.bytes,
        equality=after_restarts(start.equality, report.restarts),
        replacements=report.replacements,
    )


def promise_of(planned: PlannedRun, observer: Observer) -> Promise:
    """Probes a planned run: opens its environments here, and tries what replicas compute."""
    graph = planned.graph
    if graph is None:
        return EAGER_PROMISE
    sources = _sources(planned.experiment, graph.steps_per_iteration, graph.iterations)
    pools = open_pools(graph.fdg, graph.fdg.workers)
    try:
        first = _first_state(planned.experiment, graph, sources, pools)
    finally:
        close_pools(pools)
    promise = _promise(planned, graph, first, sources, observer)
    picks = pick(graph.plan, planned.execution.implementations, planned.execution.deterministic)
    promise = promise.weakened_by(inexact(graph.fdg, picks))
    key = _promise_key(planned, graph)
    if key is not None and planned.execution.probe:
        remember(key, {"equality": promise.equality})
    return promise


def remembered_equality(planned: PlannedRun) -> str | None:
    """The statement that an earlier run or probe of the same graph led to, on this machine."""
    if planned.graph is None:
        return EAGER_PROMISE.equality
    key = _promise_key(planned, planned.graph)
    known = None if key is None else (recall(key) or {}).get("equality")
    return known if isinstance(known, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A runtime with everything compiled, and what is known of the run."""

    runtime: Runtime
    promise: Promise
    programs: int
    picks: Picks
    iterations: int
    steps: int
    state: Callable[[], Any]


def _sources(experiment: Experiment, steps: int, iterations: int) -> dict[str, np.ndarray]:
    return {
        "env_ids": np.arange(experiment.num_envs, dtype=np.int32),
        "run_key": np.asarray(jax.random.key_data(jax.random.key(experiment.seed))),
        "steps_per_iteration": np.asarray(steps, np.int32),
        "total_iterations": np.asarray(iterations, np.int32),
    }


def _first_state(
    experiment: Experiment,
    graph: Graph,
    sources: Mapping[str, np.ndarray],
    pools: Mapping[str, Sequence[AnsweringPool]],
) -> dict[Value, Any]:
    """The leaves of the first state."""
    arguments = (sources["run_key"], sources["env_ids"])
    if pools:
        init = graph.source.init_at(Extent(experiment.num_envs))
        leaves = evaluate_with_host(init, arguments, answer_by(pools))
    else:
        init = init_function(experiment.algorithm, experiment.environment, experiment.num_envs)
        leaves = jax.tree.leaves(jax.jit(init)(*arguments))
    names = [carry.inside for carry in graph.fdg.program.loop.carries]
    return dict(zip(names, leaves, strict=True))


def _promise(
    planned: PlannedRun,
    graph: Graph,
    first: Mapping[Value, Any],
    sources: Mapping[str, np.ndarray],
    observer: Observer,
) -> Promise:
    execution, began = planned.execution, time.perf_counter()
    trial = tried(
        lambda: _in_lockstep(planned, graph),
        list(first.values()),
        observer,
        is_deterministic=execution.deterministic,
        is_wanted=execution.probe,
    )
    how_equal = equality(
        graph.fdg,
        graph.source,
        execution.deterministic,
        observer,
        trial,
        functools.partial(
            other_bits,
            graph.fdg,
            graph.source,
            first,
            sources,
            is_deterministic=execution.deterministic,
            implementations=execution.implementations,
            optimisations=execution.optimisations,
        ),
        execution.optimisations,
    )
    seconds = time.perf_counter() - began
    return Promise(trial=trial, equality=how_equal, seconds=seconds)


def _promise_key(planned: PlannedRun, graph: Graph) -> str | None:
    """The key of all that the statement about a run follows from; None if that is not known.

    What an environment on the host begins with is known when it was asked.
    """
    execution, experiment, fdg = planned.execution, planned.experiment, graph.fdg
    if isinstance(graph.source.environment, Host | HostEnvironment):
        return None
    init = of_programs([graph.source.init_at(Extent(experiment.num_envs))])
    if init is None:
        return None
    asked = sorted(execution.implementations.items())
    how = (execution.deterministic, execution.probe, asked, execution.optimisations)
    when = (fdg.synchronisation, sorted(fdg.delays.items()), fdg.server, fdg.workers)
    which = (experiment.seed, graph.iterations, init, are_loops_apart())
    judge = [Path(module.__file__ or "").read_bytes() for module in JUDGES]
    words = [str(how), str(when), str(which), hashlib.sha256(b"".join(judge)).hexdigest()]
    return key_of(fdg, "promise", *words, *bits_depend_on(fdg))


def _in_lockstep(planned: PlannedRun, graph: Graph) -> tuple[FDG, Tracer]:
    """The graph to probe, and its tracer; if asynchronous, those of all workers in lockstep."""
    policy, source = planned.policy, graph.source
    if graph.fdg.server is None or planned.deployment.workers == 1:
        return graph.fdg, source
    whole = tracer(source.algorithm, source.environment, planned.experiment.num_envs)
    together = replace(policy, synchronisation=LOCKSTEP)
    execution = planned.execution
    fdg = cut(
        whole,
        together,
        planned.deployment,
        execution.optimisations,
        deterministic=execution.deterministic,
    )
    return fdg, whole


def _prepare(
    planned: PlannedRun, graph: Graph, observer: Observer, promise: Promise | None
) -> _Ready:
    """Opens environments, starts workers, and compiles all programs."""
    fdg, execution = graph.fdg, planned.execution
    sources = _sources(planned.experiment, graph.steps_per_iteration, graph.iterations)
    observer.phase("initialising", 0, 1)
    workers = _workers(planned, graph)
    try:
        first = _first_state(planned.experiment, graph, sources, workers.pools)
        promise = promise or _promise(planned, graph, first, sources, observer)
        assembly = Assembly(
            fdg,
            graph.plan,
            first,
            sources,
            row_kinds=fdg.row_kinds if execution.deterministic else None,
            implementations=execution.implementations,
            progress=observer.phase,
        )
        workers.start(assembly)
        runtime = _runtime(planned, graph, workers, assembly)
    except BaseException:
        workers.close()
        raise
    promise = promise.weakened_by(inexact(fdg, assembly.picks))
    promise = promise.on(runtime.report().processors, fdg)
    structure = graph.source.at(graph.source.extent).state_structure
    return _Ready(
        runtime=runtime,
        promise=promise,
        programs=assembly.num_programs,
        picks=assembly.picks,
        iterations=graph.iterations,
        steps=graph.steps_per_iteration,
        state=lambda: jax.tree.unflatten(structure, list(runtime.state().values())),
    )


def _workers(planned: PlannedRun, graph: Graph) -> WorkerSet:
    """The workers of a run, whose environments are open; they are to be started."""
    fdg, execution = graph.fdg, planned.execution
    patience = execution.stall_timeout_seconds
    if execution.runtime == "local":
        return ThreadWorkers(fdg, patience) if fdg.server is None else AsyncThreadWorkers(fdg)
    from fragflow.remote.coordinator.process_workers import ProcessWorkers

    if execution.runtime == "ray":
        from fragflow.remote.launch.on_ray import RayLauncher

        launcher: Launcher = RayLauncher(execution.cluster or Cluster())
    else:
        from fragflow.remote.launch.local import LocalLauncher

        launcher = LocalLauncher()
    large = {} if execution.large_bytes is None else {"large_bytes": execution.large_bytes}
    return ProcessWorkers(fdg, graph.plan, launcher, patience, **large)


def _runtime(planned: PlannedRun, graph: Graph, workers: WorkerSet, assembly: Assembly) -> Runtime:
    """The runtime that goes with the policy's synchronisation."""
    fdg, patience = graph.fdg, planned.execution.stall_timeout_seconds
    synchronisation = planned.policy.synchronisation
    if isinstance(synchronisation, Asynchronous):
        ahead = planned.policy.ahead
        return AsyncRuntime(
            fdg,
            workers,
            Server(assembly),
            graph.iterations,
            bound=synchronisation.bound_for(planned.deployment.workers, ahead),
            ahead=ahead,
            stall_timeout_seconds=patience,
        )
    if fdg.delays:
        return LaggedRuntime(fdg, workers, graph.iterations, patience)
    return LockstepRuntime(fdg, workers, patience)


def _prepare_eager(experiment: Experiment) -> _Ready:
    environment: Any = experiment.environment
    pool = None
    if isinstance(environment, HostEnvironment):
        environment = Host(environment)
        pool = environment.pool = HostPool(environment, range(experiment.num_envs))
    parts = (experiment.algorithm, environment, experiment.num_envs)

    def sources(env_steps: int) -> dict[str, np.ndarray]:
        steps = env_steps * experiment.num_envs
        iterations = iterations_for(experiment.total_steps, steps) if steps else 1
        return _sources(experiment, steps, iterations)

    try:
        runtime = EagerRuntime(
            lambda on_step: iteration_function(*parts, on_step),
            init_function(*parts),
            sources,
            pool,
        )
        steps = runtime.env_steps * experiment.num_envs
        refuse_no_steps(experiment, steps)
    except BaseException:
        if pool is not None:
            pool.close()
        raise
    return _Ready(
        runtime=runtime,
        promise=EAGER_PROMISE,
        programs=0,
        picks={},
        iterations=iterations_for(experiment.total_steps, steps),
        steps=steps,
        state=lambda: runtime.tree,
    )
