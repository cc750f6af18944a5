"""Errors that nobody foresaw, as users meet them: a line to read, and a file with the rest."""

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from fragflow.error_owner import has_story, judging, place_of, story_of
from fragflow.errors import FragflowError, InternalError, UserCodeError

P = ParamSpec("P")
T = TypeVar("T")

FILE = "traceback.txt"
PACKAGES = ("fragflow", "jax", "jaxlib", "numpy")
_CALLBACK_LOGS = ("jax._src.callback", "jax._src.debugging")


def reported(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates what users call from Python: every error is a `FragflowError`, or the system's.

    Its traceback is kept in `run_dir`, if the function was given one and a run has begun there.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with judging(is_running=False):
                return function(*args, **kwargs)
        except FragflowError as error:
            run_dir = kwargs.get("run_dir")
            if has_story(error) and isinstance(run_dir, str | Path) and os.path.isdir(run_dir):
                with contextlib.suppress(OSError):  # a full disk may be the cause
                    (Path(run_dir) / FILE).write_text(_report(error), encoding="utf-8")
                    error.report = str(Path(run_dir) / FILE)
            raise

    return call


def line_of(error: FragflowError) -> str:
    """The command line's message of an error; writes the traceback to a file if nothing has."""
    words = printable(str(error))
    if not has_story(error):
        return words
    if isinstance(error, InternalError):
        words = f"{words} ({', '.join(versions())})"
    elif not isinstance(error, UserCodeError):
        place = place_of(error)
        words = words if place is None or place in words else f"{words} ({place})"
    try:
        path = error.report or _private_file(_report(error))
    except OSError as problem:
        return f"{words} (the traceback could not be kept: {problem})"
    return f"{words} (the whole traceback: {path})"


def printable(message: str) -> str:
    """In one line, and without what a terminal would obey: messages quote files and programs."""
    line = " ".join(part.strip() for part in message.splitlines()).replace("\t", " ")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def versions() -> list[str]:
    """Of what a report of an error is about."""
    import platform

    from fragflow.tools.experiment.run_directory import version_of

    found = [f"{package} {version_of(package)}" for package in PACKAGES]
    return [*found, f"Python {platform.python_version()}", platform.platform()]


def silence_callbacks() -> None:
    """JAX logs the traceback of a callback that fails; the error that follows has it too."""
    for name in _CALLBACK_LOGS:
        logging.getLogger(name).addFilter(_is_no_traceback)


def _is_no_traceback(record: logging.LogRecord) -> bool:
    return record.exc_info is None


def _report(error: FragflowError) -> str:
    return "\n".join([*versions(), "", story_of(error)])


def _private_file(text: str) -> str:
    """A file that only this user can read: a traceback may quote what is nobody's business."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "fragflow" / "errors"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, path = tempfile.mkstemp(".txt", "traceback-", folder)
    except OSError:
        descriptor, path = tempfile.mkstemp(".txt", "fragflow-traceback-")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
