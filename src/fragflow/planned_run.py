"""A planned run: an experiment that is traced, cut and planned; nothing is started yet."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fragflow.api.algorithm import Algorithm
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.errors import ConfigError, PolicyError
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.tracing.trace import Tracer, env_steps_per_iteration, tracer
from fragflow.policies.policy import Deployment, Policy
from fragflow.policies.synchronisation import LOCKSTEP, Asynchronous
from fragflow.remote.launch.cluster import Cluster
from fragflow.runtime.host_environments.pool import as_placed
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.planning.print_plan import text_after
from fragflow.runtime.programs.implementations import check_names
from fragflow.runtime.programs.prepare_workers import Progress, no_progress
from fragflow.runtime.promises.run_probe import SWITCHED_OFF_WORDS, refuse_unproven

RuntimeName = Literal["local", "eager", "processes", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The learning problem, without any deployment."""

    algorithm: Algorithm
    environment: AnyEnvironment
    num_envs: int
    total_steps: int
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a run is carried out, its policy and deployment apart."""

    runtime: RuntimeName = "local"
    cluster: Cluster | None = None
    """where the ray runtime runs; by default a cluster of its own on this machine"""
    deterministic: bool = False
    optimisations: Optimisations = ALL_OPTIMISATIONS
    implementations: Mapping[str, str] = field(default_factory=dict[str, str])
    """implementations of kernels that were asked for; by default the workers pick"""
    probe: bool = True
    """compare what replicas compute with the undivided program, before the run"""
    stall_timeout_seconds: float = 120.0
    large_bytes: int | None = None
    """size from which messages between processes of one host go through shared memory"""

    def __post_init__(self) -> None:
        if self.cluster is not None and self.runtime != "ray":
            raise ConfigError(f"a Ray cluster is given, but the runtime is {self.runtime}: use ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The graph of a planned run, and what follows from it."""

    source: Tracer
    """of the program that was cut: all environments', or one asynchronous worker's"""
    fdg: FDG
    plan: Plan
    iterations: int
    steps_per_iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """An experiment that is traced, cut and planned; nothing is compiled or started yet."""

    experiment: Experiment
    policy: Policy
    deployment: Deployment
    execution: Execution
    graph: Graph | None
    """None in the eager runtime, which runs the undivided loop"""
    seconds: float
    """to trace, cut and plan"""

    @property
    def fdg(self) -> FDG:
        return self.cut_graph.fdg

    @property
    def cut_graph(self) -> Graph:
        """The graph, where there is one."""
        if self.graph is None:
            raise ConfigError("the eager runtime runs the undivided loop: there is no graph")
        return self.graph


def plan_run(
    experiment: Experiment,
    policy: Policy,
    deployment: Deployment,
    execution: Execution | None = None,
    progress: Progress = no_progress,
) -> PlannedRun:
    """Traces, cuts and plans; refuses all that can be refused without a run."""
    execution = execution or Execution()
    began = time.perf_counter()
    _check_numbers(experiment)
    if execution.runtime == "eager":
        _check_eager(policy, execution)
        graph = None
    else:
        progress("tracing", 0, 1)
        graph = _graph(experiment, policy, deployment, execution)
    return PlannedRun(
        experiment=experiment,
        policy=policy,
        deployment=deployment,
        execution=execution,
        graph=graph,
        seconds=time.perf_counter() - began,
    )


def iterations_for(total_steps: int, steps_per_iteration: int) -> int:
    """Whole iterations that make at least `total_steps`."""
    return max(1, -(-total_steps // steps_per_iteration))


def refuse_no_steps(experiment: Experiment, steps: int) -> None:
    if steps == 0:
        raise ConfigError(
            f"{type(experiment.algorithm).__name__}.step never calls env.step: nothing to train on"
        )


def _check_numbers(experiment: Experiment) -> None:
    if experiment.num_envs < 1:
        raise ConfigError(f"num-envs is {experiment.num_envs}: expected at least 1")
    if not 1 <= experiment.total_steps < 2**31:
        raise ConfigError(
            f"total-steps is {experiment.total_steps}: expected at least 1 and less than 2^31"
        )


def _check_eager(policy: Policy, execution: Execution) -> None:
    if policy.synchronisation != LOCKSTEP:
        raise ConfigError(
            f"the eager runtime runs the undivided loop, in lockstep: {policy.synchronisation} "
            "needs the local runtime"
        )
    if policy.first is not None:
        raise ConfigError("the eager runtime steps all environments together: leave out first")
    if execution.implementations:
        raise ConfigError("the eager runtime has one implementation of everything: plain JAX")


def text_of_stage(
    stage: str,
    experiment: Experiment,
    policy: Policy,
    deployment: Deployment,
    execution: Execution,
) -> str:
    """The text of a stage of the compiler; later ones are not made, and refuse nothing."""
    _check_numbers(experiment)
    source, local = _source(experiment, policy, deployment)
    how = {"deterministic": execution.deterministic}
    return text_after(stage, source, policy, local, execution.optimisations, **how)


def _source(
    experiment: Experiment, policy: Policy, deployment: Deployment
) -> tuple[Tracer, Deployment]:
    """The program to cut, and its deployment; if asynchronous, for one worker and the server."""
    environment = as_placed(experiment.environment, policy, deployment)
    total, workers = experiment.num_envs, deployment.workers
    if not isinstance(policy.synchronisation, Asynchronous):
        workers = 1
    if total % workers:
        raise PolicyError(
            f"num-envs is {total}, which cannot be divided among {workers} asynchronous workers: "
            f"use a multiple of {workers}"
        )
    if workers > 1:
        deployment = replace(deployment, workers=1)
    return tracer(experiment.algorithm, environment, total // workers, total), deployment


def _graph(
    experiment: Experiment, policy: Policy, deployment: Deployment, execution: Execution
) -> Graph:
    source, deployment = _source(experiment, policy, deployment)
    total = experiment.num_envs
    fdg = cut(
        source, policy, deployment, execution.optimisations, deterministic=execution.deterministic
    )
    steps = env_steps_per_iteration(source.at(source.extent), total)
    refuse_no_steps(experiment, steps)
    plan = make_plan(fdg, execution.optimisations)
    check_names(plan, execution.implementations)
    if not execution.probe:
        refuse_unproven(fdg, SWITCHED_OFF_WORDS)
    return Graph(
        source=source,
        fdg=fdg,
        plan=plan,
        iterations=iterations_for(experiment.total_steps, steps),
        steps_per_iteration=steps,
    )
