"""Adapters of environment libraries; loaded when they are asked for."""

import importlib
from types import ModuleType
from typing import Any

from fragflow.errors import ConfigError, unknown

ADAPTERS: dict[str, str] = {
    "gymnax": "fragflow.environments.gymnax",
    "gymnasium": "fragflow.environments.gymnasium",
}
"""Where to find each library's adapter. A bare name is looked for in this order."""
ON_HOST = frozenset({"gymnasium"})
"""libraries whose environments are no JAX programs"""


def make_environment(name: str, **arguments: Any) -> Any:
    """The environment `library:name`, or just `name`; `arguments` are its own settings."""
    return _adapter(library_of(name)).make(name.rpartition(":")[2], **arguments)


def library_of(name: str) -> str:
    """Whose environment `name` is: what it says, or the first library that knows it."""
    library, _, rest = name.rpartition(":")
    if library:
        return library
    return next((known for known in ADAPTERS if rest in _adapter(known).names()), "gymnax")


def environment_names() -> tuple[str, ...]:
    """Every environment that is known by name, as `library:name`."""
    return tuple(f"{library}:{name}" for library in ADAPTERS for name in _adapter(library).names())


def _adapter(library: str) -> ModuleType:
    if library not in ADAPTERS:
        raise ConfigError(unknown("environment library", library, ADAPTERS))
    return importlib.import_module(ADAPTERS[library])
