"""Composes everything: trace, cut, place, run. The only module that knows all the stages."""

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from fragflow.api.algorithm import Algorithm
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import Host, HostEnvironment
from fragflow.error_owner import judging
from fragflow.errors import ConfigError, PolicyError
from fragflow.graph.cut import cut
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.tracing.trace import (
    Tracer,
    env_steps_per_iteration,
    init_function,
    iteration_function,
    tracer,
)
from fragflow.policies.policy import Deployment, Policy
from fragflow.policies.synchronisation import LOCKSTEP, Asynchronous
from fragflow.remote.launch.cluster import Cluster as Cluster
from fragflow.runtime.asynchrony.runtime import AsyncRuntime
from fragflow.runtime.eager import EagerRuntime
from fragflow.runtime.first_state import evaluate_with_host
from fragflow.runtime.host_environments.pool import (
    HostPool,
    answer_by,
    as_placed,
    close_pools,
    open_pools,
)
from fragflow.runtime.lagged import LaggedRuntime
from fragflow.runtime.lockstep import LocalRuntime
from fragflow.runtime.observer import Observer as Observer
from fragflow.runtime.observer import Row as Row
from fragflow.runtime.observer import Silent as Silent
from fragflow.runtime.observer import Start as Start
from fragflow.runtime.observer import mean_return as mean_return
from fragflow.runtime.programs.devices import deployment_here, prepare_devices
from fragflow.runtime.programs.implementations import in_words, inexact
from fragflow.runtime.promises.compare_bits import other_bits
from fragflow.runtime.promises.equality import after_restarts, elsewhere, equality, with_figures
from fragflow.runtime.promises.run_probe import NOT_DIVIDED, Tried, tried
from fragflow.runtime.run_chunks import Runtime, train

if TYPE_CHECKING:  # needs libraries that a run in threads does not
    from fragflow.remote.launch.launcher import Launcher

RuntimeName = Literal["local", "eager", "processes", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The learning problem, without any deployment."""

    algorithm: Algorithm
    environment: AnyEnvironment
    num_envs: int
    total_steps: int
    seed: int = 0


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


def iterations_for(total_steps: int, steps_per_iteration: int) -> int:
    """Whole iterations that make at least `total_steps`."""
    return max(1, -(-total_steps // steps_per_iteration))


def graph(
    experiment: Experiment,
    policy: Policy,
    deployment: Deployment,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
) -> FDG:
    """The graph that `run` would execute."""
    _check_numbers(experiment)
    source, deployment = _source(experiment, policy, deployment)
    return cut(source, policy, deployment, optimisations)


def run(
    experiment: Experiment,
    policy: Policy,
    *,
    workers: int = 1,
    learners: int = 1,
    runtime: RuntimeName = "local",
    cluster: Cluster | None = None,
    deterministic: bool = False,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
    slots: Mapping[str, int] | None = None,
    implementations: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    probe: bool = True,
    stall_timeout_seconds: float = 120.0,
) -> Outcome:
    """Trains, and reports to `observer` while it does.

    With `probe`, what replicas compute is first compared with the undivided program, once.

    `slots` gives, by platform, the number of replicas with a place of their own; more are fused. By
    default there is one per accelerator; on CPUs every replica has a thread of its own.
    `implementations` names implementations of kernels; by default the workers pick.
    `cluster` is where the ray runtime runs; by default a cluster of its own on this machine.
    """
    observer = observer or Silent()
    if cluster is not None and runtime != "ray":
        raise ConfigError(f"a Ray cluster is given, but the runtime is {runtime}: use ray")
    _check_numbers(experiment)
    began = time.perf_counter()
    if runtime == "eager":
        if policy.synchronisation != LOCKSTEP:
            raise ConfigError(
                f"the eager runtime runs the undivided loop, in lockstep: {policy.synchronisation} "
                "needs the local runtime"
            )
        if policy.first is not None:
            raise ConfigError("the eager runtime steps all environments together: leave out first")
        if implementations:
            raise ConfigError("the eager runtime has one implementation of everything: plain JAX")
        ready = _prepare_eager(experiment)
    else:
        prepare_devices(policy, Deployment(workers=workers, learners=learners))
        observer.phase("tracing", 0, 1)
        deployment = deployment_here(workers, learners, slots)
        source, local = _source(experiment, policy, deployment)
        fdg = cut(source, policy, local, optimisations, deterministic=deterministic)
        ready = _prepare_local(
            experiment,
            source,
            fdg,
            observer,
            is_deterministic=deterministic,
            asynchronous=_asynchronous(policy, workers),
            launcher=_launcher(runtime, cluster),
            implementations=implementations,
            optimisations=optimisations,
            probe=functools.partial(
                tried,
                lambda: _in_lockstep(experiment, source, fdg, policy, deployment),
                is_deterministic=deterministic,
                is_wanted=probe,
            ),
            stall_timeout_seconds=stall_timeout_seconds,
        )
    engine = ready.engine
    start = Start(
        fdg=ready.fdg,
        iterations=ready.iterations,
        steps_per_iteration=ready.steps,
        devices=engine.devices,
        programs=engine.num_programs,
        equality=ready.equality,
        probe=ready.probe,
        implementations=in_words(engine.picks),
        compile_seconds=time.perf_counter() - began - ready.trial_seconds,
        trial_seconds=ready.trial_seconds,
        state=ready.state,
    )
    try:
        with judging(is_running=True):
            observer.started(start)
            rows, seconds = train(engine, ready.iterations, ready.steps, observer)
            final = ready.state()
    finally:
        engine.close()
    return Outcome(
        state=final,
        rows=rows,
        start=start,
        env_steps=len(rows) * ready.steps,
        train_seconds=seconds,
        messages=engine.sent.messages,
        bytes_moved=engine.sent.bytes,
        equality=after_restarts(start.equality, getattr(engine, "restarts", 0)),
        replacements=getattr(engine, "replacements", 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A runtime with everything compiled, and what is known of the run."""

    engine: Runtime
    fdg: FDG | None
    equality: str
    probe: str
    trial_seconds: float
    iterations: int
    steps: int
    state: Callable[[], Any]


def _check_numbers(experiment: Experiment) -> None:
    if experiment.num_envs < 1:
        raise ConfigError(f"num-envs is {experiment.num_envs}: expected at least 1")
    if not 1 <= experiment.total_steps < 2**31:
        raise ConfigError(
            f"total-steps is {experiment.total_steps}: expected at least 1 and less than 2^31"
        )


def _sources(experiment: Experiment, steps: int, iterations: int) -> dict[str, np.ndarray]:
    return {
        "env_ids": np.arange(experiment.num_envs, dtype=np.int32),
        "run_key": np.asarray(jax.random.key_data(jax.random.key(experiment.seed))),
        "steps_per_iteration": np.asarray(steps, np.int32),
        "total_iterations": np.asarray(iterations, np.int32),
    }


def _refuse_no_steps(experiment: Experiment, steps: int) -> None:
    if steps == 0:
        raise ConfigError(
            f"{type(experiment.algorithm).__name__}.step never calls env.step: nothing to train on"
        )


def _source(
    experiment: Experiment, policy: Policy, deployment: Deployment
) -> tuple[Tracer, Deployment]:
    """The program to cut, and its deployment; if asynchronous, for one worker and the server."""
    environment = as_placed(experiment.environment, policy, deployment)
    total, workers = experiment.num_envs, deployment.workers
    if not isinstance(policy.synchronisation, Asynchronous):
        return tracer(experiment.algorithm, environment, total), deployment
    if total % workers:
        raise PolicyError(
            f"num-envs is {total}, which cannot be divided among {workers} asynchronous workers: "
            f"use a multiple of {workers}"
        )
    source = tracer(experiment.algorithm, environment, total // workers, total)
    return source, replace(deployment, workers=1)


def _in_lockstep(
    experiment: Experiment, source: Tracer, fdg: FDG, policy: Policy, deployment: Deployment
) -> tuple[FDG, Tracer]:
    """The graph to probe, and its tracer; if asynchronous, those of all workers in lockstep."""
    if not isinstance(policy.synchronisation, Asynchronous) or deployment.workers == 1:
        return fdg, source
    whole = tracer(experiment.algorithm, source.environment, experiment.num_envs)
    together = replace(policy, synchronisation=LOCKSTEP)
    return cut(whole, together, deployment), whole


def _asynchronous(policy: Policy, workers: int) -> dict[str, int]:
    """Arguments of the asynchronous runtime; empty if the policy is not asynchronous."""
    if not isinstance(policy.synchronisation, Asynchronous):
        return {}
    bound = policy.synchronisation.bound_for(workers, policy.ahead)
    return {"workers": workers, "bound": bound, "ahead": policy.ahead}


def _prepare_local(
    experiment: Experiment,
    source: Tracer,
    fdg: FDG,
    observer: Observer,
    *,
    is_deterministic: bool,
    asynchronous: Mapping[str, int],
    launcher: "Callable[[], Launcher] | None",
    implementations: Mapping[str, str] | None,
    optimisations: Optimisations,
    probe: Callable[..., Tried],
    stall_timeout_seconds: float,
) -> _Ready:
    trace = source.at(source.extent)
    steps = env_steps_per_iteration(trace, experiment.num_envs)
    _refuse_no_steps(experiment, steps)
    iterations = iterations_for(experiment.total_steps, steps)
    sources = _sources(experiment, steps, iterations)
    observer.phase("initialising", 0, 1)
    names = [carry.inside for carry in fdg.program.loop.carries]
    if launcher is not None:
        pools, runtime, release = _processes(fdg, asynchronous, launcher(), optimisations)
    else:
        pools = open_pools(fdg, asynchronous.get("workers", 1))
        release = functools.partial(close_pools, pools)
        if asynchronous:
            runtime = functools.partial(AsyncRuntime, **asynchronous)
        else:
            runtime = LaggedRuntime if fdg.delays else LocalRuntime
    try:
        first = _first_state(experiment, source, sources, pools)
        began = time.perf_counter()
        promise = probe(first, observer)
        how_equal = equality(
            fdg,
            source,
            is_deterministic,
            observer,
            promise,
            functools.partial(
                other_bits,
                fdg,
                source,
                dict(zip(names, first, strict=True)),
                sources,
                is_deterministic=is_deterministic,
                implementations=implementations,
                optimisations=optimisations,
            ),
            optimisations,
        )
        trial_seconds = time.perf_counter() - began
        engine = runtime(
            fdg,
            dict(zip(names, first, strict=True)),
            sources,
            pools=pools,
            row_kinds=fdg.row_kinds if is_deterministic else None,
            implementations=implementations,
            optimisations=optimisations,
            stall_timeout_seconds=stall_timeout_seconds,
            progress=observer.phase,
        )
    except BaseException:
        release()
        raise
    others = inexact(fdg, engine.picks)
    if others and not how_equal.startswith("different"):
        how_equal = with_figures(f"rounding: {', '.join(others)}", promise)
    how_equal = elsewhere(how_equal, fdg, getattr(engine, "processors", ()))

    def state() -> Any:
        leaves = engine.state()
        return jax.tree.unflatten(trace.state_structure, [leaves[name] for name in names])

    return _Ready(
        engine=engine,
        fdg=fdg,
        equality=how_equal,
        probe=promise.text,
        trial_seconds=trial_seconds,
        iterations=iterations,
        steps=steps,
        state=state,
    )


def _launcher(runtime: RuntimeName, cluster: Cluster | None) -> "Callable[[], Launcher] | None":
    """The maker of the launcher that starts a run's processes; None if it has only this one."""
    if runtime == "processes":
        from fragflow.remote.launch.local import LocalLauncher

        return LocalLauncher
    if runtime == "ray":
        from fragflow.remote.launch.on_ray import RayLauncher

        return lambda: RayLauncher(cluster or Cluster())
    return None


def _processes(
    fdg: FDG, asynchronous: Mapping[str, int], launcher: "Launcher", optimisations: Optimisations
) -> tuple[Mapping[str, Sequence[Any]], Callable[..., Any], Callable[[], None]]:
    """Starts a run's processes; returns their environments, their runtime and how to end them."""
    from fragflow.remote.coordinator.processes import WorkerProcesses
    from fragflow.remote.coordinator.runtimes import (
        AsyncInProcesses,
        InProcesses,
        LaggedInProcesses,
    )

    processes = WorkerProcesses(fdg, launcher, optimisations)
    if asynchronous:
        runtime = functools.partial(AsyncInProcesses, **asynchronous)
    else:
        runtime = LaggedInProcesses if fdg.delays else InProcesses
    return (
        processes.pools,
        functools.partial(runtime, processes=processes),
        processes.close,
    )


def _first_state(
    experiment: Experiment,
    source: Tracer,
    sources: Mapping[str, np.ndarray],
    pools: Mapping[str, Sequence[Any]],
) -> list[Any]:
    """The leaves of the first state."""
    arguments = (sources["run_key"], sources["env_ids"])
    if pools:
        init = source.init_at(Extent(experiment.num_envs))
        return evaluate_with_host(init, arguments, answer_by(pools))
    init = init_function(experiment.algorithm, experiment.environment, experiment.num_envs)
    return jax.tree.leaves(jax.jit(init)(*arguments))


def _prepare_eager(experiment: Experiment) -> _Ready:
    environment: Any = experiment.environment
    pool = None
    if isinstance(environment, HostEnvironment):
        environment = Host(environment)
        pool = environment.pool = HostPool(environment, range(experiment.num_envs))
    parts = (experiment.algorithm, environment, experiment.num_envs)
    try:
        engine = EagerRuntime(
            lambda on_step: iteration_function(*parts, on_step),
            init_function(*parts),
            _sources(experiment, 0, 1),
            pool,
        )
        steps = engine.env_steps() * experiment.num_envs
        _refuse_no_steps(experiment, steps)
    except BaseException:
        if pool is not None:
            pool.close()
        raise
    iterations = iterations_for(experiment.total_steps, steps)
    engine.sources = _sources(experiment, steps, iterations)
    return _Ready(
        engine=engine,
        fdg=None,
        equality="rounding: eager runs every operation by itself",
        probe=NOT_DIVIDED.text,
        trial_seconds=0.0,
        iterations=iterations,
        steps=steps,
        state=engine.final_state,
    )
