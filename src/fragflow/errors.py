"""What can go wrong, one class per stage; each becomes one message and an exit code."""

import difflib
from collections.abc import Iterable


class FragflowError(Exception):
    """An error the user can act on: it names the thing, what was expected and the fix."""

    exit_code = 2


class ConfigError(FragflowError, ValueError):
    """A name, a number or a combination of options that cannot work."""


class TraceError(FragflowError, ValueError):
    """The algorithm cannot be traced into one program."""


class PolicyError(FragflowError, ValueError):
    """A policy does not fit the algorithm, or the deployment."""


class GraphError(FragflowError, ValueError):
    """The program cannot be cut as the policy asks."""


class ReplicaError(GraphError):
    """Replicas would silently compute something else than one big batch."""


class RunError(FragflowError, RuntimeError):
    """A fragment failed, or stalled, while running."""

    exit_code = 3


class EnvironmentFault(RunError):
    """An environment raised, hung, died, or answered what it must not."""


class NonFiniteError(FragflowError, ArithmeticError):
    """Training produced NaN or infinity."""

    exit_code = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """The message for a name that is not in a closed list."""
    names = sorted(known)
    return f"unknown {kind} {word!r}.{did_you_mean(word, names)} Known: {', '.join(names)}."
