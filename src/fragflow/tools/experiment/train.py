"""`ff.train`: trains an agent, shows it, keeps it in a run directory."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from fragflow.api import Algorithm
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.environments import library_of
from fragflow.environments.wrapping.wrappers import wrap as wrap_environment
from fragflow.error_owner import judging
from fragflow.errors import ConfigError, unknown
from fragflow.graph.passes.split import Options
from fragflow.policies import LOCKSTEP, Deployment, Policy, Synchronisation
from fragflow.remote.launch.cluster import Cluster, read_cluster
from fragflow.run import Experiment, Outcome, RuntimeName, run
from fragflow.runtime.programs.devices import compute_in_calling_thread, prepare_devices
from fragflow.tools.experiment.compile_cache import use_compilation_cache
from fragflow.tools.experiment.error_report import reported
from fragflow.tools.experiment.evaluate_agent import evaluator_for
from fragflow.tools.experiment.progress import Display, Quiet, display_for
from fragflow.tools.experiment.restore_process import as_before
from fragflow.tools.experiment.run_directory import RunDirectory, sha256_of, versions
from fragflow.tools.experiment.watch import Watcher
from fragflow.tools.inputs import resolve
from fragflow.tools.inputs.trust import is_known_environment

DEFAULT_NUM_ENVS = 16
DEFAULT_TOTAL_STEPS = 1_048_576
EVAL_EPISODES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: the facts of its summary, the final state and the metrics."""

    algorithm: str
    env: str
    policy: str
    sync: str
    """synchronisation of the policy's fragments"""
    runtime: str
    workers: int
    learners: int
    seed: int
    env_steps: int
    iterations: int
    compile_seconds: float
    """to trace, cut and compile, and to start workers"""
    trial_seconds: float
    """to probe the cut and to compare bits, before training"""
    train_seconds: float
    """evaluations are not counted"""
    steps_per_second: float
    mean_return: float | None
    """of the episodes that ended in the last iterations, at least 100; None if none ended"""
    eval_return: float | None
    """mean over greedy episodes; None if there were none"""
    episodes: int
    params_sha256: str
    """over the bytes of the parameters in pytree order"""
    devices: Mapping[str, Sequence[str]]
    """by fragment, where each of its replicas was: `cpu:0`, in processes each's own"""
    programs: int
    messages: int
    bytes_moved: int
    replacements: int
    """worker processes that were lost, and replaced"""
    equality: str
    """relation of this run to one undivided program"""
    probe: str
    """result of the probe of that before the run, or the reason that there was no probe"""
    implementations: Mapping[str, str]
    """by kernel, the implementation that computed it"""
    load: float
    """average number of busy processes in the last minute"""
    interrupted: bool
    versions: Mapping[str, str]
    params: Any = field(repr=False)
    """the part of the state that the trained agent acts with"""
    state: Any = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = field(repr=False)
    """one row per iteration"""
    run_dir: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("params", "state", "metrics", "run_dir")
        }


@reported
@as_before()
def train(
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    *,
    num_envs: int | None = None,
    total_steps: int = DEFAULT_TOTAL_STEPS,
    seed: int = 0,
    policy: Policy | str | None = None,
    sync: Synchronisation | str | None = None,
    first: int | None = None,
    runtime: str = "local",
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
    eval_every: int | None = None,
    eval_episodes: int = EVAL_EPISODES,
    run_dir: Path | str | None = None,
    quiet: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Trains an agent and returns what came out.

    `algorithm`, `env` and `policy` are objects or names; `hyperparameters` replace those of the
    algorithm, `env_args` configure an environment given by name, `wrap` is what `ff.wrap` takes by
    name. `total_steps` is rounded up to whole iterations. `sync` (lockstep, lag=K, async, async=K)
    replaces how the policy's fragments are synchronised; `first` how many environments of a worker
    are acted on at a time (EnvPool's, the first that have answered); `implementations` how kernels
    are computed, as in `{"discounted_sums": "xla"}`. `cluster` is where the ray runtime
    runs, or the path of a `cluster.toml` that says so. `probe=False` leaves out the trial of what
    replicas compute, before the run. With `run_dir`, configuration, metrics,
    weights and a summary are kept there, and `ff.load` finds them. `stop` is asked between
    iterations; True ends the run in good order.

    Afterwards the process is as it was, except that JAX has started: with as many devices as the
    policy needs.
    """
    for name, value, least in (
        ("workers", workers, 1),
        ("first", first, 1),
        ("learners", learners, 1),
        ("num-envs", num_envs, 1),
        ("total-steps", total_steps, 1),
        ("eval-every", eval_every, 1),
        ("eval-episodes", eval_episodes, 0),
        ("seed", seed, 0),
    ):
        require_whole(name, value, least)
    if runtime not in get_args(RuntimeName):
        raise ConfigError(unknown("runtime", str(runtime), get_args(RuntimeName)))
    chosen_policy = resolve.find_policy(policy, env, sync, first)
    deployment = Deployment(workers=workers, learners=learners)
    directory = None if run_dir is None else RunDirectory.create(run_dir)
    display: Display = Quiet() if quiet else display_for()
    try:
        if runtime != "eager":
            # Before the environment is made: that may start JAX, which then keeps its devices.
            if resolve.runs_on_host(env):
                compute_in_calling_thread()
            prepare_devices(chosen_policy, deployment)
        problem = use_compilation_cache()
        if problem:
            display.note(problem)
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
            "policy": chosen_policy.name,
            "sync": str(chosen_policy.synchronisation),
            "first": chosen_policy.first,
            "runtime": runtime,
            "workers": workers,
            "learners": learners,
            "seed": seed,
            "deterministic": deterministic,
            "optimise": optimise,
            "probe": probe,
            "implementation": dict(implementations or {}),
            "eval_every": eval_every,
            "eval_episodes": eval_episodes,
        }
        display.note(
            f"{asked['algorithm']} on {_with_library(env)}{_wrappers_text(wrap)} with {num_envs} "
            "environments, "
            f"policy {chosen_policy.name}"
            + (f" ({resolve.why_default(chosen_policy)})" if policy is None else "")
            + (f", {asked['sync']}" if chosen_policy.synchronisation != LOCKSTEP else "")
            + (f", the first {asked['first']} that answer" if asked["first"] else "")
            + f", workers {workers}, learners {learners}, runtime {runtime}, seed {seed}"
        )
        acts = type(made).policy is not Algorithm.policy
        if eval_episodes and not acts:
            display.note("no evaluation: the algorithm has no policy(params, obs, ...)")
        evaluator = (
            evaluator_for(made, experiment.environment, episodes=eval_episodes)
            if eval_episodes and acts
            else None
        )
        watcher = Watcher(asked, display, directory, evaluator, made.weights, stop)
        outcome = run(
            experiment,
            chosen_policy,
            workers=workers,
            learners=learners,
            runtime=runtime,  # pyright: ignore[reportArgumentType]
            cluster=read_cluster(cluster) if isinstance(cluster, str | Path) else cluster,
            deterministic=deterministic,
            options=None if optimise else Options(hoist=False, sink=False, coalesce=False),
            implementations=implementations,
            observer=watcher,
            probe=probe,
        )
        result = _result(asked, outcome, made.weights(outcome.state), watcher, directory)
        if directory is not None:
            directory.write_weights(result.params)
            directory.write_summary(result.summary)
        _show_result(result, display)
        return result
    finally:
        display.close()
        if directory is not None:
            directory.discard_if_empty()


@judging(is_running=True)
def _result(
    asked: Mapping[str, Any],
    outcome: Outcome,
    params: Any,
    watcher: Watcher,
    directory: RunDirectory | None,
) -> Result:
    train_seconds = outcome.train_seconds - watcher.eval_seconds
    return Result(
        **{
            name: asked[name]
            for name in ("algorithm", "env", "policy", "sync", "runtime", "workers", "learners")
        },
        seed=asked["seed"],
        env_steps=outcome.env_steps,
        iterations=len(outcome.rows),
        compile_seconds=outcome.compile_seconds,
        trial_seconds=outcome.start.trial_seconds,
        train_seconds=train_seconds,
        steps_per_second=outcome.env_steps / train_seconds if train_seconds > 0 else 0.0,
        mean_return=outcome.mean_return,
        eval_return=watcher.evaluate_at_end(outcome.state),
        episodes=outcome.episodes,
        params_sha256=sha256_of(params),
        devices=outcome.start.devices,
        programs=outcome.start.programs,
        messages=outcome.messages,
        bytes_moved=outcome.bytes_moved,
        replacements=outcome.replacements,
        equality=outcome.equality,
        probe=outcome.start.probe,
        implementations=outcome.start.implementations,
        load=os.getloadavg()[0],
        interrupted=watcher.interrupted,
        versions=versions(),
        params=params,
        state=outcome.state,
        metrics=watcher.metrics,
        run_dir=None if directory is None else directory.path,
    )


def _show_result(result: Result, display: Display) -> None:
    display.note(
        f"{'stopped early' if result.interrupted else 'done'}: {result.env_steps:,} steps in "
        f"{result.train_seconds:.1f} s ({result.steps_per_second:,.0f} steps/s), "
        f"{result.messages:,} messages, {result.bytes_moved:,} bytes moved"
    )
    if result.replacements:
        display.note(f"lost and replaced {result.replacements} worker processes on the way")
    returns = []
    if result.mean_return is not None:
        returns.append(
            f"return {result.mean_return:.2f} (the last of {result.episodes:,} episodes)"
        )
    if result.eval_return is not None:
        returns.append(f"eval return {result.eval_return:.2f} (greedy)")
    if returns:
        display.note(", ".join(returns))
    if result.run_dir is not None:
        display.note(f"saved in {result.run_dir}")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuses anything but a whole number of a size that JAX can take."""
    most = 2**32 - 1 if name == "seed" else 2**31 - 1
    if value is None and name in ("first", "num-envs", "eval-every"):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}: expected a whole number from {least} to {most}")


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
