"""`ff.compile`: an algorithm, an environment and a policy become a graph that can run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from fragflow.api import Algorithm, HostEnvironment
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.errors import ConfigError
from fragflow.graph.ir import FDG
from fragflow.graph.show import Format, render
from fragflow.policies import LOCKSTEP, Deployment, Policy, PolicyName, Synchronisation
from fragflow.remote.launch.cluster import Cluster
from fragflow.run import (
    PlannedRun,
    RuntimeName,
    Silent,
    execute,
    plan_run,
    promise_of,
    remembered_equality,
    text_of_stage,
)
from fragflow.runtime.drivers import codegen
from fragflow.runtime.planning.plan import Plan
from fragflow.runtime.programs.devices import (
    compute_in_calling_thread,
    set_up_xla,
    shortage,
)
from fragflow.runtime.programs.implementations import pick
from fragflow.runtime.promises.promise import Promise
from fragflow.tools.experiment.compile_cache import use_compilation_cache
from fragflow.tools.experiment.error_report import reported
from fragflow.tools.experiment.evaluate_agent import evaluator_for
from fragflow.tools.experiment.progress import Display, Quiet, display_for
from fragflow.tools.experiment.restore_settings import as_before
from fragflow.tools.experiment.result import Result, result_of, show_result
from fragflow.tools.experiment.run_directory import RunDirectory
from fragflow.tools.experiment.watch import Watcher
from fragflow.tools.inputs.resolve import why_default
from fragflow.tools.inputs.settings import (
    DEFAULT_TOTAL_STEPS,
    Settings,
    resolve_settings,
    with_library,
    wrappers_text,
)
from fragflow.tools.inputs.values import require_whole

EVAL_EPISODES = 100


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compiled:
    """An algorithm on an environment, cut by a policy and planned for a deployment.

    Nothing is compiled by XLA, and no process runs, before `probe` or `run`.
    """

    planned: PlannedRun
    asked: Mapping[str, Any]
    """the configuration, as `config.json` keeps it"""
    title: str
    environment: str
    """with its library and wrappers, in words"""
    reason: str = ""
    """for the policy, if none was asked for"""
    shortage: str | None = None
    """if planned for elsewhere: the reason why threads of this machine cannot run it"""
    promise: Promise | None = None
    """the result of the probe, once there was one"""

    @property
    def policy(self) -> Policy:
        return self.planned.policy

    @property
    def deployment(self) -> Deployment:
        return self.planned.deployment

    @property
    def fdg(self) -> FDG:
        """The fragments, and the messages between them."""
        return self.planned.fdg

    @property
    def plan(self) -> Plan:
        """The instructions of each fragment."""
        return self.planned.cut_graph.plan

    @property
    def equality(self) -> str:
        """Its relation to one undivided program: 'bitwise', 'rounding: ...' or 'different: ...'.

        It is what the probe has found, now or an earlier one of the same run, which is remembered
        if its environment is in JAX; 'not probed' before that. A run may have to weaken it: a
        worker on another processor, or one that was lost with its episodes.
        """
        if self.promise is not None:
            return self.promise.equality
        return remembered_equality(self.planned) or "not probed"

    def __repr__(self) -> str:
        asked = self.asked
        return (
            f"Compiled({self.title}, policy {asked['policy']}, {asked['sync']}, workers "
            f"{asked['workers']}, learners {asked['learners']}, runtime {asked['runtime']})"
        )

    def __str__(self) -> str:
        return repr(self) if self.planned.graph is None else self.show()

    def show(self, format: Format = "text", after: str | None = None) -> str:
        """The graph as text, as a Mermaid picture or as JSON; or what the compiler had made before.

        Args:
            format: "text", "mermaid" or "json".
            after: a stage of the compiler: trace, program, kinds, owners, split, messages,
                fragments or plan.
        """
        if after is not None:
            if format != "text":
                raise ConfigError(f"after={after!r} is text: leave out format={format!r}")
            planned = self.planned
            made = (planned.experiment, planned.policy, planned.deployment, planned.execution)
            return text_of_stage(after, *made)
        picked = pick(self.plan, self.planned.execution.implementations)
        ways = {
            fragment: {name: way.text for name, way in chosen.items()}
            for fragment, chosen in picked.items()
        }
        return render(self.fdg, format, self.title, ways)

    def driver(self) -> str:
        """The Python functions that drive the fragments, one for each thread or process."""
        return codegen.render(self.fdg, self.plan)

    @reported
    @as_before()
    def probe(self) -> "Compiled":
        """Tries that replicas compute what one undivided program does; `equality` says how exactly.

        Compiles what it tries, and opens the environments on the host, but starts no worker. Raises
        `ReplicaError` if they compute something else.
        """
        self._prepare_process()
        return dataclasses.replace(self, promise=promise_of(self.planned, Silent()))

    @reported
    @as_before()
    def run(
        self,
        *,
        run_dir: Path | str | None = None,
        eval_every: int | None = None,
        eval_episodes: int = EVAL_EPISODES,
        quiet: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Trains, shows it, keeps it in a run directory.

        Args:
            run_dir: where configuration, metrics, weights and a summary are kept for `ff.load`.
            eval_every: evaluate whenever so many more environment steps were made.
            eval_episodes: greedy episodes per evaluation; 0 for none.
            quiet: show nothing on the terminal.
            stop: asked between chunks of iterations; True ends the run in good order.

        Returns:
            What came out: the final state, returns, metrics, and what the run says of itself.
        """
        require_whole("eval-every", eval_every, 1)
        require_whole("eval-episodes", eval_episodes, 0)
        if self.shortage is not None and self.planned.execution.runtime == "local":
            raise ConfigError(f"threads of this machine cannot run this: {self.shortage}")
        directory = None if run_dir is None else RunDirectory.create(run_dir)
        display: Display = Quiet() if quiet else display_for()
        try:
            self._prepare_process(display)
            asked = {**self.asked, "eval_every": eval_every, "eval_episodes": eval_episodes}
            display.note(self._in_words())
            experiment = self.planned.experiment
            acts = type(experiment.algorithm).policy is not Algorithm.policy
            if eval_episodes and not acts:
                display.note("no evaluation: the algorithm has no policy(params, obs, ...)")
            evaluator = (
                evaluator_for(experiment.algorithm, experiment.environment, episodes=eval_episodes)
                if eval_episodes and acts
                else None
            )
            weights = experiment.algorithm.weights
            watcher = Watcher(asked, display, directory, evaluator, weights, stop)
            outcome = execute(self.planned, watcher, self.promise)
            result = result_of(asked, outcome, weights(outcome.state), watcher, directory)
            if directory is not None:
                directory.write_weights(result.params)
                directory.write_summary(result.summary)
            show_result(result, display)
            return result
        finally:
            display.close()
            if directory is not None:
                directory.discard_if_empty()

    def _prepare_process(self, display: Display | None = None) -> None:
        """Settings of JAX that end with a run, so that each needs them anew."""
        if self.planned.graph is not None:
            if isinstance(self.planned.experiment.environment, HostEnvironment):
                compute_in_calling_thread()
            set_up_xla(self.policy, self.deployment)
        problem = use_compilation_cache()
        if problem and display is not None:
            display.note(problem)

    def _in_words(self) -> str:
        asked = self.asked
        return (
            f"{asked['algorithm']} on {self.environment} with {asked['num_envs']} environments, "
            f"policy {asked['policy']}"
            + (f" ({self.reason})" if self.reason else "")
            + (f", {asked['sync']}" if self.policy.synchronisation != LOCKSTEP else "")
            + (f", the first {asked['first']} that answer" if asked["first"] else "")
            + f", workers {asked['workers']}, learners {asked['learners']}, "
            f"runtime {asked['runtime']}, seed {asked['seed']}"
        )


@reported
@as_before()
def compile(
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    *,
    num_envs: int | None = None,
    total_steps: int = DEFAULT_TOTAL_STEPS,
    seed: int = 0,
    policy: Policy | PolicyName | str | None = None,
    sync: Synchronisation | str | None = None,
    first: int | None = None,
    runtime: RuntimeName = "local",
    cluster: Cluster | str | Path | None = None,
    workers: int = 1,
    learners: int = 1,
    deterministic: bool = False,
    without: str | Sequence[str] = (),
    probe: bool = True,
    implementations: Mapping[str, str] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    wrap: Mapping[str, Any] | None = None,
    elsewhere: bool = False,
    quiet: bool = True,
) -> Compiled:
    """Traces a training loop, cuts it into fragments and plans them; starts nothing.

    Whatever can be refused without compiling is refused here. JAX starts, with as many devices as
    the policy needs; apart from that the process is as before.

    Args:
        algorithm: the name of one, `module:attribute`, a class or an instance.
        env: the name of one, `library:name`, `module:attribute` or an object.
        num_envs: environments that are stepped together; by default what suits the algorithm.
        total_steps: steps of environments, rounded up to whole iterations.
        seed: of all random numbers.
        policy: where fragments go: a name, `module:attribute` or a `ff.Policy`; by default what
            suits the environment.
        sync: how fragments wait for one another, instead of the policy's way: lockstep, lag=K,
            async or async=K.
        first: act on so many environments of a worker at a time, the first that have answered.
        runtime: "local" (threads), "processes", "ray" or "eager" (uncompiled and uncut).
        cluster: where the ray runtime runs, or the path of a `cluster.toml` that says so.
        workers: replicas of fragments with environments.
        learners: replicas of fragments that learn, in policies that have several.
        deterministic: the same bits for any number of workers, at some cost in speed.
        without: optimisations to leave out, as in "pack,donate", or "all".
        probe: compare what replicas compute with the undivided program, before a run.
        implementations: how kernels are computed, as in `{"discounted_sums": "xla"}`.
        hyperparameters: replace those of the algorithm.
        env_args: arguments of an environment given by its name.
        wrap: wrappers of the environment, what `ff.wrap` takes by name.
        elsewhere: plan for another machine: devices may be missing here, which `run` then refuses.
        quiet: show no progress on the terminal.

    Returns:
        What can be shown, probed and run.

    Raises:
        ConfigError: a setting is wrong; the message names it and what was expected.
        PolicyError: the policy does not fit the algorithm or the deployment.
        TraceError: the algorithm or the environment breaks a rule of training loops.
        ReplicaError: replicas would compute something else than one undivided program.
    """
    use_compilation_cache()
    resolved = resolve_settings(
        algorithm,
        env,
        elsewhere,
        num_envs=num_envs,
        total_steps=total_steps,
        seed=seed,
        policy=policy,
        sync=sync,
        first=first,
        runtime=runtime,
        cluster=cluster,
        workers=workers,
        learners=learners,
        deterministic=deterministic,
        without=without,
        probe=probe,
        implementations=implementations,
        hyperparameters=hyperparameters,
        env_args=env_args,
        wrap=wrap,
    )
    display: Display = Quiet() if quiet else display_for()
    try:
        planned = plan_run(*resolved.parts, display.phase)
    finally:
        display.close()
    return Compiled(
        planned=planned,
        asked=MappingProxyType(dict(resolved.asked)),
        title=f"{resolved.asked['algorithm']} on {env if isinstance(env, str) else env.name}",
        environment=f"{with_library(env)}{wrappers_text(wrap)}",
        reason=why_default(planned.policy) if policy is None else "",
        shortage=shortage(planned.policy, planned.deployment) if elsewhere else None,
    )


@reported
@as_before()
def show_stage(
    stage: str,
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    **settings: Unpack[Settings],
) -> str:
    """What the compiler has made after a stage, even if it refuses the cut at a later one."""
    return text_of_stage(stage, *resolve_settings(algorithm, env, True, **settings).parts)
