"""Errors that users see, one class per stage; each becomes one message and an exit code.

Exit codes: 2 for a request that cannot work, or user code that fails while it is traced; 3 for a
run that failed; 4 for training that diverged; 70 for a fault of fragflow.
"""

import difflib
from collections.abc import Iterable


class FragflowError(Exception):
    """An error the user can act on: it names the thing, what was expected and the fix."""

    exit_code = 2
    report: str | None = None
    """the file that has the whole traceback, if one was written"""


class ConfigError(FragflowError, ValueError):
    """A name, a number or a combination of options that cannot work."""


class TraceError(FragflowError, ValueError):
    """The algorithm cannot be traced into one program."""


class PolicyError(FragflowError, ValueError):
    """A policy does not fit the algorithm, or the deployment."""


class GraphError(FragflowError, ValueError):
    """The program cannot be cut as the policy asks."""


class StageError(GraphError):
    """A stage of the compiler is not legal: a fault of fragflow, found where it was made."""

    exit_code = 70

    def __init__(self, stage: str, what: str):
        super().__init__(f"after {stage}: {what}. This is a fault of fragflow: please report it")


class ReplicaError(GraphError):
    """Replicas would silently compute something other than one big batch."""


class RunError(FragflowError, RuntimeError):
    """A fragment failed, or stalled, while running."""

    exit_code = 3


class EnvironmentFault(RunError):
    """An environment raised, hung, died, or gave an invalid answer."""


class UserCodeError(FragflowError):
    """The user's code raised an error before training began; that error is the cause."""


class UserCodeRunError(UserCodeError, RunError):
    """The user's code raised an error while training; that error is the cause."""

    exit_code = RunError.exit_code


class InternalError(FragflowError, RuntimeError):
    """A fault of fragflow itself; the first error is the cause."""

    exit_code = 70


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
