"""Write a training loop once; a distribution policy cuts it into fragments at deployment."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fragflow import ops as ops
    from fragflow.api import Algorithm as Algorithm
    from fragflow.api import Box as Box
    from fragflow.api import Clock as Clock
    from fragflow.api import Discrete as Discrete
    from fragflow.api import Environment as Environment
    from fragflow.api import Environments as Environments
    from fragflow.api import EnvState as EnvState
    from fragflow.api import HostBatch as HostBatch
    from fragflow.api import HostEnvironment as HostEnvironment
    from fragflow.api import HostStep as HostStep
    from fragflow.api import Metrics as Metrics
    from fragflow.api import MultiDiscrete as MultiDiscrete
    from fragflow.api import Step as Step
    from fragflow.api import Timestep as Timestep
    from fragflow.api import all_max as all_max
    from fragflow.api import all_mean as all_mean
    from fragflow.api import all_sum as all_sum
    from fragflow.api import check_settings as check_settings
    from fragflow.api import component as component
    from fragflow.api import kernel as kernel
    from fragflow.environments.wrapping.wrapped import Wrapper as Wrapper
    from fragflow.environments.wrapping.wrappers import wrap as wrap
    from fragflow.policies import Asynchronous as Asynchronous
    from fragflow.policies import Deployment as Deployment
    from fragflow.policies import Lag as Lag
    from fragflow.policies import Lockstep as Lockstep
    from fragflow.policies import Place as Place
    from fragflow.policies import Policy as Policy
    from fragflow.tools.experiment.load import Agent as Agent
    from fragflow.tools.experiment.load import load as load
    from fragflow.tools.experiment.train import Result as Result
    from fragflow.tools.experiment.train import train as train

_HOMES = {
    "fragflow.environments.wrapping.wrapped": ("Wrapper",),
    "fragflow.environments.wrapping.wrappers": ("wrap",),
    "fragflow.policies": ("Asynchronous", "Deployment", "Lag", "Lockstep", "Place", "Policy"),
    "fragflow.tools.experiment.load": ("Agent", "load"),
    "fragflow.tools.experiment.train": ("Result", "train"),
    "fragflow.api": (
        *("Algorithm", "Box", "Clock", "Discrete", "EnvState", "Environment", "Environments"),
        *(
            "HostBatch",
            "HostEnvironment",
            "HostStep",
            "Metrics",
            "MultiDiscrete",
            "Step",
            "Timestep",
            "all_max",
            "all_mean",
            "all_sum",
            "check_settings",
            "component",
            "kernel",
        ),
    ),
}
"""The names above again, loaded at their first use: `fragflow --help` must not wait for JAX."""


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("fragflow.ops")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fragflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "ops", *(name for names in _HOMES.values() for name in names)})
