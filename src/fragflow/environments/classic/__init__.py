"""Classic control, in JAX: the equations of the papers, the numbers of Gymnasium.

A task is a record of its physical constants, with pure functions from state to state. What they
have in common, a time limit and the part of the state that is seen, is in `control.py`.
"""

import dataclasses
import math
from typing import Any

from fragflow.environments.classic.acrobot import Acrobot
from fragflow.environments.classic.cartpole import CartPole
from fragflow.environments.classic.mountain_car import MountainCar, MountainCarContinuous
from fragflow.environments.classic.pendulum import Pendulum
from fragflow.environments.classic.task import ClassicControl, Task, part_of
from fragflow.errors import ConfigError, unknown

TASKS: dict[str, type[Any]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "CartPole-positions": CartPole,
}
PARTS = {"CartPole-positions": (0, 2)}
"""Entries of an observation that an agent gets, if not all. Without velocities, only an
agent that remembers earlier positions can balance the pole."""
OTHER_NAMES = {"max_episode_steps": "max_steps", "max_steps_in_episode": "max_steps"}
"""of arguments, as Gymnasium and gymnax call them"""


def make(name: str, /, **arguments: Any) -> ClassicControl:
    """The environment `name`; `arguments` replace constants of its task."""
    if name not in TASKS:
        raise ConfigError(unknown("environment of classic control", name, names()))
    constants = {field.name: field for field in dataclasses.fields(TASKS[name])}
    chosen: dict[str, float] = {}
    for said, value in arguments.items():
        argument = OTHER_NAMES.get(said, said)
        if argument not in constants:
            raise ConfigError(unknown(f"argument of {name}", said, constants))
        if argument in chosen:
            raise ConfigError(f"{said} of {name} is another name of {argument}: give one of them")
        is_whole = constants[argument].type is int
        chosen[argument] = _checked(name, said, value, is_whole)
    task: Task = TASKS[name](**chosen)
    entries = PARTS.get(name)
    observation = task.observation if entries is None else part_of(task.observation, entries)
    return ClassicControl(name, task, observation, task.action, entries)


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return tuple(TASKS)


def _checked(name: str, argument: str, value: Any, is_whole: bool) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_whole:
        if not is_number or value < 1 or not float(value).is_integer():
            raise ConfigError(f"{argument} of {name} is {value!r}: expected a whole number from 1")
        return int(value)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"{argument} of {name} is {value!r}: expected a number")
    return float(value)
