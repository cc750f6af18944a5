"""Algorithms, each in one file; loaded when they are asked for.

Each file is meant to be read alone. So hyperparameters with their ranges, the state, the loop that
collects a rollout and the outlines of components are repeated from file to file, on purpose;
arithmetic is not: a loss, a step of an optimiser or a scale is written once, in `fragflow.ops`.
"""

import importlib

from fragflow.api.algorithm import Algorithm
from fragflow.errors import ConfigError, unknown

ALGORITHMS: dict[str, str] = {
    "ppo": "fragflow.algorithms.ppo:PPO",
    "a2c": "fragflow.algorithms.a3c:A2C",
    "a3c": "fragflow.algorithms.a3c:A3C",
    "impala": "fragflow.algorithms.impala:IMPALA",
    "recurrent-ppo": "fragflow.algorithms.recurrent_ppo:RecurrentPPO",
    "ippo": "fragflow.algorithms.ippo:IPPO",
    "mappo": "fragflow.algorithms.mappo:MAPPO",
    "dqn": "fragflow.algorithms.dqn:DQN",
    "sac": "fragflow.algorithms.sac:SAC",
}
"""The location of each algorithm: `module:class` by name."""


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm called `name`, in any case."""
    if name.lower() not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", name, ALGORITHMS))
    module, _, attribute = ALGORITHMS[name.lower()].partition(":")
    return getattr(importlib.import_module(module), attribute)
