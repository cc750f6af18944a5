"""The optimisations of a graph, and of the plan that is made of it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from fragflow.errors import ConfigError, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisations:
    """The optimisations that are made; each can be switched off, which changes no result."""

    hoist: bool = True
    """send a value once, before a loop that only reads it"""
    sink: bool = True
    """send a value once, after a loop that only collects it"""
    coalesce: bool = True
    """send values that go the same way at the same time as one message"""
    pack: bool = True
    """collect the rows of several outputs of a loop in one buffer"""
    host_rows: bool = True
    """collect rows that environments on the host made on the host, not in a program"""
    donate: bool = True
    """write collected outputs and large state in place"""
    share_threads: bool = True
    """drive fragments with one replica each, on one device, in one thread"""
    whole_chunks: bool = True
    """run many iterations of a fragment without messages as one program"""
    small_programs: bool = True
    """compile what runs at every step of a loop with its operations in an order for one thread"""


ALL_OPTIMISATIONS = Optimisations()
OPTIMISATIONS = tuple(field.name for field in fields(Optimisations))
"""their names"""


def all_but(names: Iterable[str]) -> Optimisations:
    """All optimisations but those of these names; `all` stands for every name."""
    off: set[str] = set()
    for name in names:
        word = name.strip().replace("-", "_")
        if word not in (*OPTIMISATIONS, "all"):
            raise ConfigError(unknown("optimisation", name, [*OPTIMISATIONS, "all"]))
        off |= set(OPTIMISATIONS) if word == "all" else {word}
    return Optimisations(**dict.fromkeys(off, False))
