"""fragflow's own environments: classic control, and Tag for many agents."""

from typing import Any

from fragflow.environments import classic, tag
from fragflow.errors import ConfigError, unknown


def make(name: str, /, **arguments: Any) -> Any:
    """The environment `name`; `arguments` are its own settings."""
    for room in (classic, tag):
        if name in room.names():
            return room.make(name, **arguments)
    raise ConfigError(unknown("environment of fragflow", name, names()))


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return (*classic.names(), *tag.names())
