"""The settings of a run: what `ff.compile` and `ff.train` are given, with things for names."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_args

from fragflow.api import Algorithm
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.environments import library_of
from fragflow.environments.wrapping.wrappers import wrap as wrap_environment
from fragflow.errors import ConfigError, unknown
from fragflow.policies import Deployment, Policy, PolicyName, Synchronisation
from fragflow.remote.launch.cluster import Cluster, read_cluster
from fragflow.run import Execution, Experiment, RuntimeName
from fragflow.runtime.programs.devices import as_here, compute_in_calling_thread, deploy_here
from fragflow.tools.inputs import resolve
from fragflow.tools.inputs.names_from_files import is_known_environment
from fragflow.tools.inputs.switched_off import names_without, optimisations_without
from fragflow.tools.inputs.values import require_whole

DEFAULT_NUM_ENVS = 16
DEFAULT_TOTAL_STEPS = 1_048_576


class Settings(TypedDict, total=False):
    """The settings of `compile` that those who call it pass on."""

    num_envs: int | None
    total_steps: int
    seed: int
    policy: Policy | PolicyName | str | None
    sync: Synchronisation | str | None
    first: int | None
    runtime: RuntimeName
    cluster: Cluster | str | Path | None
    workers: int
    learners: int
    deterministic: bool
    without: str | Sequence[str]
    probe: bool
    implementations: Mapping[str, str] | None
    hyperparameters: Mapping[str, Any] | None
    env_args: Mapping[str, Any] | None
    wrap: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings of a run, with things in the place of names."""

    experiment: Experiment
    policy: Policy
    deployment: Deployment
    execution: Execution
    asked: Mapping[str, Any]

    @property
    def parts(self) -> tuple[Experiment, Policy, Deployment, Execution]:
        return self.experiment, self.policy, self.deployment, self.execution


def resolve_settings(
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    elsewhere: bool,
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
) -> Resolved:
    """Finds what is named, and asks JAX for the devices that the policy needs."""
    for name, value, least in (
        ("workers", workers, 1),
        ("first", first, 1),
        ("learners", learners, 1),
        ("num-envs", num_envs, 1),
        ("total-steps", total_steps, 1),
        ("seed", seed, 0),
    ):
        require_whole(name, value, least)
    for name, flag in (("deterministic", deterministic), ("probe", probe)):
        if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name} is {flag!r}: expected True or False")
    if runtime not in get_args(RuntimeName):
        raise ConfigError(unknown("runtime", str(runtime), get_args(RuntimeName)))
    execution = Execution(
        runtime=runtime,
        cluster=read_cluster(cluster) if isinstance(cluster, str | Path) else cluster,
        deterministic=deterministic,
        optimisations=optimisations_without(without),
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
        "without": list(names_without(without)),
        "probe": probe,
        "implementation": dict(implementations or {}),
    }
    return Resolved(
        experiment=experiment,
        policy=chosen,
        deployment=deployment,
        execution=execution,
        asked=asked,
    )


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


def with_library(env: AnyEnvironment | str) -> str:
    """The name of an environment; a bare name gets its library in front."""
    if not isinstance(env, str):
        return env.name
    return env if ":" in env else f"{library_of(env)}:{env}"


def wrappers_text(wrap: Mapping[str, Any] | None) -> str:
    words = [
        name.replace("_", "-") + ("" if value is True else f"={value}")
        for name, value in (wrap or {}).items()
    ]
    return f" ({', '.join(words)})" if words else ""
