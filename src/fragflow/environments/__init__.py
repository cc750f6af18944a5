"""Adapters of environment libraries; loaded when they are asked for."""

import importlib
from types import ModuleType
from typing import Any

from fragflow.api.environment import Environment
from fragflow.errors import ConfigError, unknown

ADAPTERS: dict[str, str] = {"gymnax": "fragflow.environments.gymnax"}
"""Where to find each library's adapter. A bare name is looked for in the first."""


def make_environment(name: str, **arguments: Any) -> Environment:
    """The environment `library:name`, or just `name`; `arguments` are its own settings."""
    library, _, rest = name.rpartition(":")
    return _adapter(library or next(iter(ADAPTERS))).make(rest, **arguments)


def environment_names() -> tuple[str, ...]:
    """Every environment that is known by name, as `library:name`."""
    return tuple(f"{library}:{name}" for library in ADAPTERS for name in _adapter(library).names())


def _adapter(library: str) -> ModuleType:
    if library not in ADAPTERS:
        raise ConfigError(unknown("environment library", library, ADAPTERS))
    return importlib.import_module(ADAPTERS[library])
