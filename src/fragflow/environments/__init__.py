"""Our own environments and adapters of libraries; loaded when they are asked for."""

import dataclasses
import importlib
import importlib.util
import math
from types import ModuleType
from typing import Any

from fragflow.errors import ConfigError, FragflowError, unknown

ADAPTERS: dict[str, str] = {
    "fragflow": "fragflow.environments.built_in",
    "gymnax": "fragflow.environments.libraries.gymnax",
    "gymnasium": "fragflow.environments.libraries.gymnasium",
    "envpool": "fragflow.environments.libraries.envpool",
    "brax": "fragflow.environments.libraries.brax",
    "playground": "fragflow.environments.libraries.playground",
    "jaxmarl": "fragflow.environments.libraries.jaxmarl",
    "pettingzoo": "fragflow.environments.libraries.pettingzoo",
}
"""The module of each library's adapter."""
BARE = ("fragflow", "gymnax", "gymnasium")
"""libraries that a bare name is looked for in, in this order, installed or not: its meaning must
not depend on the other packages that are there"""
ON_HOST = frozenset({"gymnasium", "envpool", "pettingzoo"})
"""libraries whose environments are not JAX programs"""
BOUNDS = ("declared", "none")
"""bounds that observations must keep"""


def make_environment(
    name: str, /, *, observation_bounds: str = "declared", **arguments: Any
) -> Any:
    """The environment `library:name`, or just `name`; `arguments` are its own settings.

    `observation_bounds="none"` is for one that does not keep the bounds it declares.
    """
    if observation_bounds not in BOUNDS:
        raise ConfigError(unknown("choice of observation_bounds", str(observation_bounds), BOUNDS))
    library = library_of(name)
    try:
        environment = _adapter(library).make(name.removeprefix(f"{library}:"), **arguments)
    except FragflowError:
        raise
    except Exception as error:  # whatever somebody's library says of settings it does not like
        raise ConfigError(f"cannot make {name}: {type(error).__name__}: {error}") from error
    space = environment.observation
    if observation_bounds == "none" and hasattr(space, "low"):
        unbounded = dataclasses.replace(space, low=-math.inf, high=math.inf)
        if space == unbounded:
            return environment
        if hasattr(environment, "agents"):
            agents = dataclasses.replace(environment.agents, observation=unbounded)
            return dataclasses.replace(environment, agents=agents)
        return dataclasses.replace(environment, observation=unbounded)
    return environment


def library_of(name: str) -> str:
    """The library of the environment `name`: the one it names, or the first that knows it."""
    library, colon, _ = name.partition(":")
    if colon:
        return library
    return next((known for known in BARE if name in _adapter(known).names()), BARE[0])


def environment_names() -> tuple[str, ...]:
    """Every environment of the libraries that bare names are looked for in, as `library:name`."""
    return tuple(f"{library}:{name}" for library in BARE for name in _adapter(library).names())


def command_to_install(library: str) -> str:
    """The command that installs a library's package; empty if it is installed."""
    is_here = library == "fragflow" or importlib.util.find_spec(library) is not None
    return "" if is_here else f"pip install 'fragflow[{library}]'"


def _adapter(library: str) -> ModuleType:
    if library not in ADAPTERS:
        raise ConfigError(unknown("environment library", library, ADAPTERS))
    return importlib.import_module(ADAPTERS[library])
