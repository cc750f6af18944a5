"""Synchronisation: limits on how far apart in time the fragments of a policy may be."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from fragflow.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lockstep:
    """Every fragment uses what the others made last: the result of the undivided program."""

    def __str__(self) -> str:
        return "lockstep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Workers act on parameters that are `iterations` old, while newer ones are being learnt.

    Which version acts is decided by the iteration's number, not by timing: results repeat.
    """

    iterations: int = 1

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise PolicyError(f"a lag of {self.iterations}: expected at least 1 iteration")

    def __str__(self) -> str:
        return f"lag={self.iterations}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous:
    """A server handles each worker's message as it comes; workers take the newest parameters."""

    bound: int | None = None
    """maximum staleness of a message, in updates, when it is learnt from; None: twice the number of
    messages in flight"""

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise PolicyError(f"a bound of {self.bound} on the lag: expected 0 or more")

    def __str__(self) -> str:
        return "async" if self.bound is None else f"async={self.bound}"

    def bound_for(self, workers: int, ahead: int) -> int:
        """The largest lag that may occur if each worker may have `ahead` messages waiting."""
        under_way = workers * (1 + ahead)
        if self.bound is None:
            return 2 * under_way
        if self.bound < under_way - 1:
            raise PolicyError(
                f"async={self.bound} cannot be kept by {workers} workers with {1 + ahead} messages "
                f"each under way: use async={under_way - 1} or more, or fewer workers"
            )
        return self.bound


LOCKSTEP = Lockstep()
Synchronisation: TypeAlias = Lockstep | Lag | Asynchronous


def synchronisation(text: str) -> Synchronisation:
    """`lockstep`, `lag=K`, `async` or `async=K`."""
    match = re.fullmatch(r"(lockstep)|(lag)(?:=(\d+))?|(async)(?:=(\d+))?", text.strip().lower())
    if match is None:
        raise PolicyError(
            f"unknown synchronisation {text!r}: expected lockstep, lag=K (workers act on "
            "parameters K iterations old) or async[=K] (messages are handled as they come, from "
            "parameters at most K updates old)"
        )
    lockstep, lag, iterations, _, bound = match.groups()
    if lockstep:
        return LOCKSTEP
    if lag:
        return Lag(iterations=int(iterations or 1))
    return Asynchronous(bound=None if bound is None else int(bound))
