"""`ff.load`: an agent from a run directory. Reads data only; never runs code that a file names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from fragflow.api import Algorithm, Environment
from fragflow.api.environment import num_agents_of
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.environments.wrapping.wrappers import wrap
from fragflow.error_owner import judging
from fragflow.errors import ConfigError
from fragflow.graph.tracing.trace import init_function
from fragflow.ops import within_bounds
from fragflow.tools.experiment.run_directory import CONFIG, read_config, read_weights
from fragflow.tools.inputs import resolve
from fragflow.tools.inputs.names_from_files import NotNamed, is_numbers, own_name, own_of_run
from fragflow.tools.inputs.options import BadValue, hyperparameters

KINDS: dict[str, type] = {
    "algorithm": str,
    "hyperparameters": dict,
    "env": str,
    "env_args": dict,
    "wrap": dict,
    "num_envs": int,
    "load_needs": list,
}
"""The entries of a run's configuration that loading needs."""


class Agent:
    """A trained agent that acts in one environment."""

    def __init__(self, algorithm: Algorithm, environment: Environment, params: Any, seed: int = 0):
        self.algorithm = algorithm
        self.environment = environment
        self.params = params
        self._key = jax.random.key(seed)
        self._memory: Any = None
        self._act = jax.jit(self._bounded, static_argnames="explore")

    def act(self, obs: npt.ArrayLike, explore: bool = False) -> np.ndarray:
        """The action for one observation; with several agents, a row for each.

        Args:
            obs: one observation, of the shape that the environment declares.
            explore: draw the action as in training, instead of taking the best one.

        Returns:
            The action, within the bounds of the environment's action space.

        Raises:
            ConfigError: the observation has another shape.
        """
        space = self.environment.observation
        count = num_agents_of(self.environment)
        expected = space.shape if count is None else (count, *space.shape)
        array = np.asarray(obs)
        if array.shape != expected:
            raise ConfigError(
                f"the observation has shape {list(array.shape)}: expected {list(expected)}, one "
                f"observation of {self.environment.name}"
            )
        key, self._key = jax.random.split(self._key)
        action, self._memory = self._act(
            self.params, array.astype(space.dtype), self._memory, key, explore=explore
        )
        return np.asarray(action)

    def _bounded(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool
    ) -> tuple[jax.Array, Any]:
        action, memory = self.algorithm.policy(params, obs, memory, key, explore=explore)
        return within_bounds(self.environment.action, action), memory

    def reset(self) -> None:
        """Forgets the episode so far; for agents that remember."""
        self._memory = None


@judging(is_running=False)
def load(
    run_dir: Path | str,
    algorithm: Algorithm | type[Algorithm] | str | None = None,
    env: AnyEnvironment | type | str | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Agent:
    """The agent that the run in `run_dir` trained.

    A run directory is data: what fragflow does not bring itself must be given. The run's wrappers
    are put on again.

    Args:
        run_dir: the directory that `ff.train` was given.
        algorithm: an object, a class or a name; needed if it is none of fragflow's.
        env: an object, a class or a name; needed if it is none of fragflow's.
        env_args: settings of an environment given by name or class; needed if the run's are more
            than numbers.
        trust: import and run what the run's files name, as `ff.train` would have it.

    Returns:
        An agent that acts in one environment.

    Raises:
        ConfigError: the directory holds no run, or names code that was not given.
    """
    config = _checked(run_dir)
    is_named = env is None or isinstance(env, str | type)
    if env_args is not None and not is_named:
        raise ConfigError("env_args need an environment given by name: this one is an object")
    own = own_of_run(
        config,
        algorithm=algorithm is None,
        env=env if env is None or isinstance(env, str) else "class:",
        settings=is_named and env_args is None,
    )
    if trust:
        own = [thing for thing in own if "MODULE:ATTRIBUTE" in thing.words]
    if own:
        or_else = " (in Python, ff.load takes algorithm, env and env_args)"
        if not trust:
            or_else += ", or say --trust-run (trust=True) if you know who wrote the file"
        command = ["fragflow", "eval", str(run_dir)]
        raise NotNamed(str(Path(run_dir) / CONFIG), own, command, or_else)
    if env is None:
        env = own_name(config, "env") if "env" in config["load_needs"] else config["env"]
    if algorithm is None:
        needed = "algorithm" in config["load_needs"]
        algorithm = own_name(config, "algorithm") if needed else config["algorithm"]
    settings = config["env_args"] if env_args is None else env_args
    environment: Any = wrap(
        resolve.given_environment(env, settings if is_named else None), **config["wrap"]
    )
    given: Any = resolve.find_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    stored = _hyperparameters(given, config["hyperparameters"]) if isinstance(given, type) else None
    made = resolve.make_algorithm(given, stored)
    num_envs = config["num_envs"]
    init = init_function(made, environment, num_envs)
    run_key = jax.ShapeDtypeStruct((2,), np.uint32)
    state = jax.eval_shape(init, run_key, np.arange(num_envs, dtype=np.int32))
    return Agent(made, environment, read_weights(run_dir, made.weights(state)))


def _checked(run_dir: Path | str) -> dict[str, Any]:
    """A run's configuration, with all that is needed of it."""
    config = {"wrap": {}, **read_config(run_dir)}
    for key, kind in KINDS.items():
        if not isinstance(config.get(key), kind):
            raise ConfigError(
                f"{run_dir} has an incomplete config.json: {key} is {config.get(key)!r}, expected "
                f"a {kind.__name__}"
            )
    return config


def _hyperparameters(algorithm: type[Algorithm], stored: Mapping[str, Any]) -> dict[str, Any]:
    """As the dataclass wants them, from what JSON has of them."""
    options = {option.name: option for option in hyperparameters(algorithm).options}
    known = {field.name for field in dataclasses.fields(algorithm)}
    values: dict[str, Any] = {}
    for name, value in stored.items():
        if name in options:
            try:
                values[name] = options[name].from_json(value)
            except BadValue as error:
                raise ConfigError(f"{CONFIG} of the run: {error}") from error
        elif name in known and not is_numbers(value):
            raise ConfigError(
                f"{name} of {algorithm.__name__} is {value!r} in the run's {CONFIG}, an object of "
                "your own: give the algorithm as an object that has it, like ff.load(run, "
                f"algorithm={algorithm.__name__}({name}=...)) or --algorithm MODULE:OBJECT"
            )
        elif name in known or value is not None:
            values[name] = value
    return values
