"""Adapters of environment libraries; loaded when they are asked for."""

import importlib
from types import ModuleType
from typing import Any

from fragflow.errors import ConfigError, unknown

ADAPTERS: dict[str, str] = {
    "gymnax": "fragflow.environments.gymnax",
    "gymnasium": "fragflow.environments.gymnasium",
    "envpool": "fragflow.environments.envpool",
    "brax": "fragflow.environments.brax",
    "jaxmarl": "fragflow.environments.jaxmarl",
    "pettingzoo": "fragflow.environments.pettingzoo",
}
"""Where to find each library's adapter."""
BARE = ("gymnax", "gymnasium")
"""where a name without a library is looked for, in this order"""
ON_HOST = frozenset({"gymnasium", "envpool", "pettingzoo"})
"""libraries whose environments are no JAX programs"""


def make_environment(name: str, **arguments: Any) -> Any:
    """The environment `library:name`, or just `name`; `arguments` are its own settings."""
    library = library_of(name)
    return _adapter(library).make(name.removeprefix(f"{library}:"), **arguments)


def library_of(name: str) -> str:
    """Whose environment `name` is: what it says, or the first library that knows it."""
    library, colon, _ = name.partition(":")
    if colon:
        return library
    return next((known for known in BARE if name in _adapter(known).names()), BARE[0])


def environment_names() -> tuple[str, ...]:
    """Every environment that is known by a name without its library, as `library:name`."""
    return tuple(f"{library}:{name}" for library in BARE for name in _adapter(library).names())


def _adapter(library: str) -> ModuleType:
    if library not in ADAPTERS:
        raise ConfigError(unknown("environment library", library, ADAPTERS))
    return importlib.import_module(ADAPTERS[library])
