"""`ff.load`: an agent from a run directory. Reads data only; never runs code that a file names."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import jax
import numpy as np
import numpy.typing as npt

from fragflow.api import Algorithm, Environment
from fragflow.api.environment import num_agents_of
from fragflow.blame import judging
from fragflow.environments.wrappers import wrap
from fragflow.errors import ConfigError
from fragflow.graph.trace import init_function
from fragflow.tools import names
from fragflow.tools.evaluate import within_bounds
from fragflow.tools.rundir import read_config, read_weights
from fragflow.tools.watch import params_of

KINDS: dict[str, type] = {
    "algorithm": str,
    "hyperparameters": dict,
    "env": str,
    "env_args": dict,
    "wrap": dict,
    "num_envs": int,
    "load_needs": list,
}
"""What is needed of a run's configuration."""


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
        """The action for one observation; with several agents, a row for each."""
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
    algorithm: Algorithm | type[Algorithm] | None = None,
    env: Environment | None = None,
) -> Agent:
    """The agent that the run in `run_dir` trained.

    Algorithms and environments that fragflow does not bring itself must be given; the run's
    wrappers are put on again.
    """
    config = {"wrap": {}, **read_config(run_dir)}
    for key, kind in KINDS.items():
        if not isinstance(config.get(key), kind):
            raise ConfigError(
                f"{run_dir} has an incomplete config.json: {key} is {config.get(key)!r}, expected "
                f"a {kind.__name__}"
            )
    needs, stored = config["load_needs"], config["hyperparameters"]
    name, env_name, env_args = config["algorithm"], config["env"], config["env_args"]
    num_envs, wrappers = config["num_envs"], config["wrap"]
    if env is None and ("env" in needs or not names.is_builtin_environment(env_name)):
        raise ConfigError(_needs(run_dir, "environment", env_name, "env"))
    if algorithm is None and ("algorithm" in needs or ":" in name):
        raise ConfigError(_needs(run_dir, "algorithm", name, "algorithm"))
    environment: Any = wrap(
        names.find_environment(env_name, env_args) if env is None else env, **wrappers
    )
    given: Any = names.find_algorithm(name) if algorithm is None else algorithm
    is_class = isinstance(given, type)
    made = names.make_algorithm(given, _hyperparameters(given, stored) if is_class else None)
    init = init_function(made, environment, num_envs)
    run_key = jax.ShapeDtypeStruct((2,), np.uint32)
    template = params_of(jax.eval_shape(init, run_key, np.arange(num_envs, dtype=np.int32)))
    return Agent(made, environment, read_weights(run_dir, template))


def _hyperparameters(algorithm: type[Algorithm], stored: dict[str, Any]) -> dict[str, Any]:
    """As the dataclass wants them: JSON has lists only, and no tuples."""
    hints = get_type_hints(algorithm)
    known = {field.name for field in fields(algorithm)}
    return {
        name: tuple(value) if _is_tuple(hints.get(name)) and isinstance(value, list) else value
        for name, value in stored.items()
        if name in known or value is not None
    }


def _is_tuple(hint: Any) -> bool:
    return hint is tuple or get_origin(hint) is tuple


def _needs(run_dir: Path | str, kind: str, name: str, argument: str) -> str:
    return (
        f"the run in {run_dir} used an {kind} of your own, {name!r}: give it, like "
        f"ff.load(run, {argument}=...). Code that a file names is never imported."
    )
