"""`ff.compile`: an algorithm, an environment and a policy become a graph that can run."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_args

from fragflow.api import Algorithm, HostEnvironment
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.environments import library_of
from fragflow.environments.wrapping.wrappers import wrap as wrap_environment
from fragflow.errors import ConfigError, unknown
from fragflow.graph.ir import FDG
from fragflow.graph.passes.split import Options
from fragflow.graph.show import render
from fragflow.policies import LOCKSTEP, Deployment, Policy, Synchronisation
from fragflow.remote.launch.cluster import Cluster, read_cluster
from fragflow.run import (
    Execution,
    Experiment,
    PlannedRun,
    RuntimeName,
    Silent,
    execute,
    plan_run,
    promise_of,
    remembered_equality,
)
from fragflow.runtime.drivers import codegen
from fragflow.runtime.planning.plan import Plan
from fragflow.runtime.programs.devices import (
    as_here,
    compute_in_calling_thread,
    deploy_here,
    set_up_xla,
    shortage,
)
from fragflow.runtime.programs.implementations import pick
from fragflow.runtime.promises.promise import Promise
from fragflow.tools.experiment.compile_cache import use_compilation_cache
from fragflow.tools.experiment.error_report import reported
from fragflow.tools.experiment.evaluate_agent import evaluator_for
from fragflow.tools.experiment.progress import Display, Quiet, display_for
from fragflow.tools.experiment.restore_process import as_before
from fragflow.tools.experiment.result import Result, result_of, show_result
from fragflow.tools.experiment.run_directory import RunDirectory
from fragflow.tools.experiment.watch import Watcher
from fragflow.tools.inputs import resolve
from fragflow.tools.inputs.trust import is_known_environment
from fragflow.tools.inputs.values import require_whole

DEFAULT_NUM_ENVS = 16
DEFAULT_TOTAL_STEPS = 1_048_576
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
    reason: str = ""
    """for the policy, if none was asked for"""
    shortage: str | None = None
    """the reason why threads of this machine cannot run it, if they lack devices"""
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

        It is what the probe has found, now or in an earlier run of the same graph, which is
        remembered; 'not probed' before that. A run may have to weaken it: a worker on another
        processor, or one that was lost with its episodes.
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

    def show(self, format: str = "text") -> str:
        """The graph as text, as a Mermaid picture or as JSON."""
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
            watcher = Watcher(asked, display, directory, evaluator, stop)
            outcome = execute(self.planned, watcher, self.promise)
            result = result_of(asked, outcome, watcher, directory)
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
            f"{self.title} with {asked['num_envs']} environments, policy {asked['policy']}"
            + (f" ({self.reason})" if self.reason else "")
            + (f", {asked['sync']}" if self.policy.synchronisation != LOCKSTEP else "")
            + (f", the first {asked['first']} that answer" if asked["first"] else "")
            + f", workers {asked['workers']}, learners {asked['learners']}, "
            f"runtime {asked['runtime']}, seed {asked['seed']}"
        )


class Settings(TypedDict, total=False):
    """The settings of `compile` that those who call it pass on."""

    num_envs: int | None
    total_steps: int
    seed: int
    policy: Policy | str | None
    sync: Synchronisation | str | None
    first: int | None
    runtime: RuntimeName
    cluster: Cluster | str | Path | None
    workers: int
    learners: int
    deterministic: bool
    optimise: bool
    probe: bool
    implementations: Mapping[str, str] | None
    hyperparameters: Mapping[str, Any] | None
    env_args: Mapping[str, Any] | None
    wrap: Mapping[str, Any] | None


@reported
@as_before()
def compile(
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    *,
    num_envs: int | None = None,
    total_steps: int = DEFAULT_TOTAL_STEPS,
    seed: int = 0,
    policy: Policy | str | None = None,
    sync: Synchronisation | str | None = None,
    first: int | None = None,
    runtime: RuntimeName = "local",
    cluster: Cluster | str | Path | None = None,
    workers: int = 1,
    learners: int = 1,
    deterministic: bool = False,
    optimise: bool = True,
    probe: bool = True,
    implementations: Mapping[str, str] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    wrap: Mapping[str, Any] | None = None,
    elsewhere: bool = False,
    quiet: bool = True,
) -> Compiled:
    """Traces a training loop, cuts it into fragments and plans them; starts nothing.

    Whatever can be refused without a run is refused here. JAX starts, with as many devices as the
    policy needs; apart from that the process is as before.

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
        optimise: join and move messages.
        probe: compare what replicas compute with the undivided program, before a run.
        implementations: how kernels are computed, as in `{"discounted_sums": "xla"}`.
        hyperparameters: replace those of the algorithm.
        env_args: arguments of an environment given by its name.
        wrap: wrappers of the environment, what `ff.wrap` takes by name.
        elsewhere: plan for another machine: devices may be missing here. It can be shown, not run.
        quiet: show no progress on the terminal.

    Returns:
        What can be shown, probed and run.

    Raises:
        ConfigError: a setting is wrong; the message names it and what was expected.
        PolicyError: the policy does not fit the algorithm or the deployment.
        TraceError: the algorithm or the environment breaks a rule of training loops.
        ReplicaError: replicas would compute something else than one undivided program.
    """
    for name, value, least in (
        ("workers", workers, 1),
        ("first", first, 1),
        ("learners", learners, 1),
        ("num-envs", num_envs, 1),
        ("total-steps", total_steps, 1),
        ("seed", seed, 0),
    ):
        require_whole(name, value, least)
    if runtime not in get_args(RuntimeName):
        raise ConfigError(unknown("runtime", str(runtime), get_args(RuntimeName)))
    execution = Execution(
        runtime=runtime,
        cluster=read_cluster(cluster) if isinstance(cluster, str | Path) else cluster,
        deterministic=deterministic,
        options=Options() if optimise else Options(hoist=False, sink=False, coalesce=False),
        implementations=dict(implementations or {}),
        probe=probe,
    )
    chosen = resolve.find_policy(policy, env, sync, first)
    deployment = Deployment(workers=workers, learners=learners)
    if elsewhere:
        deployment = as_here(deployment)
    elif runtime != "eager":
        # Before the environment is made: that may start JAX, which then keeps its devices.
        if resolve.runs_on_host(env):
            compute_in_calling_thread()
        deployment = deploy_here(chosen, workers, learners)
    use_compilation_cache()
    made = resolve.make_algorithm(algorithm, hyperparameters)
    if num_envs is None:
        num_envs = int(getattr(made, "default_num_envs", DEFAULT_NUM_ENVS))
    experiment = Experiment(
        algorithm=made,
        environment=wrap_environment(_environment(env, env_args), **(wrap or {})),
        num_envs=num_envs,
        total_steps=total_steps,
        seed=seed,
    )
    asked = {
        **_identity(algorithm, made, env, env_args, wrap, experiment.environment),
        "num_envs": num_envs,
        "total_steps": total_steps,
        "policy": chosen.name,
        "sync": str(chosen.synchronisation),
        "first": chosen.first,
        "runtime": runtime,
        "workers": workers,
        "learners": learners,
        "seed": seed,
        "deterministic": deterministic,
        "optimise": optimise,
        "probe": probe,
        "implementation": dict(implementations or {}),
    }
    display: Display = Quiet() if quiet else display_for()
    try:
        planned = plan_run(experiment, chosen, deployment, execution, display.phase)
    finally:
        display.close()
    return Compiled(
        planned=planned,
        asked=asked,
        title=f"{asked['algorithm']} on {_with_library(env)}{_wrappers_text(wrap)}",
        reason=resolve.why_default(chosen) if policy is None else "",
        shortage=shortage(chosen, deployment) if elsewhere else None,
    )


def _with_library(env: AnyEnvironment | str) -> str:
    """The name of an environment; a bare name gets its library in front."""
    if not isinstance(env, str):
        return env.name
    return env if ":" in env else f"{library_of(env)}:{env}"


def _wrappers_text(wrap: Mapping[str, Any] | None) -> str:
    words = [
        name.replace("_", "-") + ("" if value is True else f"={value}")
        for name, value in (wrap or {}).items()
    ]
    return f" ({', '.join(words)})" if words else ""


def _environment(env: AnyEnvironment | str, arguments: Mapping[str, Any] | None) -> Any:
    if isinstance(env, str):
        return resolve.find_environment(env, arguments)
    if arguments:
        raise ConfigError("env_args need an environment given by name: this one is an object")
    return resolve.check_environment(type(env).__name__, env)


def _identity(
    given: Any,
    algorithm: Algorithm,
    env: AnyEnvironment | str,
    arguments: Mapping[str, Any] | None,
    wrap: Mapping[str, Any] | None,
    environment: AnyEnvironment,
) -> dict[str, Any]:
    """The names in a run's configuration, and what is needed to make its objects again."""
    builtin = resolve.builtin_algorithm_name(algorithm)
    fields = [f.name for f in dataclasses.fields(algorithm) if f.init]
    values = {name: getattr(algorithm, name) for name in fields}
    foreign = sorted(name for name, value in values.items() if not _is_plain(value))
    is_name = isinstance(env, str)
    own_env = not (is_name and is_known_environment(env))
    needs = ["algorithm"] if builtin is None or foreign else []
    needs += ["env"] if own_env else []
    named = {
        # Hyperparameters are kept: without others than plain ones, the class is enough.
        "algorithm": resolve.importable_name(type(algorithm))
        if not foreign
        else (given if isinstance(given, str) else None),
        "env": env if is_name else resolve.default_name(env),
    }
    return {
        "algorithm": builtin or type(algorithm).__name__,
        "hyperparameters": {
            name: repr(value) if name in foreign else value for name, value in values.items()
        },
        "env": env if is_name and resolve.is_builtin_environment(env) else environment.name,
        "env_args": dict(arguments or {}),
        "wrap": dict(wrap or {}),
        "load_needs": needs,
        "named": {kind: named[kind] for kind in needs if named[kind]},
    }


def _is_plain(value: Any) -> bool:
    """True if JSON can hold `value` so that it comes back the same."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
