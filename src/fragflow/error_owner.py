"""Attributes unforeseen errors to the user, the machine or fragflow.

The traceback alone decides: the innermost frame of code that belongs neither to fragflow nor to the
packages it is built on. Imports nothing heavy: processes that step environments need it too.
"""

import contextlib
import inspect
import itertools
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fragflow.errors import (
    FragflowError,
    InternalError,
    RunError,
    TraceError,
    UserCodeError,
    UserCodeRunError,
)

T = TypeVar("T")

Owner = Literal["user", "installed", "ours"]
"""`installed` are other packages, such as libraries of environments; `ours` is fragflow and the
packages it is built on"""

FOUNDATIONS = frozenset(
    (
        *("jax", "jaxlib", "flax", "optax", "chex", "orbax", "einops", "opt_einsum", "ml_dtypes"),
        *("numpy", "scipy", "networkx", "PIL", "safetensors", "flatbuffers", "tyro", "rich"),
        *("zmq", "ray", "onnx", "onnxruntime", "fragflow"),
    )
)
"""packages that fragflow itself calls: an error in one of them belongs to its caller"""

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
GENERATED = "<driver of "
"""prefix of the file names of code that fragflow generates"""
_LIBRARIES = tuple(os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\.]+)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_CALLBACK = "_wrapped_callback"
"""JAX's function around a callback; the frames above it only wait for the program"""
_RUNTIME_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
_OF_THE_MACHINE = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED")
"""prefixes of XLA's errors that no program can avoid: no memory, or a peer that is gone"""


class Elsewhere(Exception):
    """The traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code that was being executed."""

    file: str
    line: int
    function: str
    module: str = ""
    """empty if the frame was read from text"""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def owner_of(frame: Frame) -> Owner:
    """The owner of a frame's code."""
    file = frame.file
    package = frame.module.partition(".")[0]
    if file.startswith(GENERATED) or os.path.abspath(file).startswith(PACKAGE):
        return "ours"
    installed = _INSTALLED.search(file)
    if installed is not None:
        return "ours" if installed[1] in FOUNDATIONS else "installed"
    if file.startswith("<frozen ") or file.startswith(_LIBRARIES):
        return "ours"
    # Code without a file, such as a dataclass's `__init__`, is its module's; a notebook's has none.
    return "ours" if file.startswith("<") and package in FOUNDATIONS else "user"


def users_frame(
    error: BaseException, owners: Sequence[Owner] = ("user", "installed")
) -> Frame | None:
    """The innermost frame of the user's code; failing that, of an installed package."""
    chain = _causes(error)
    for owner in owners:
        for each in chain:
            for frame in reversed(frames_of(each)):
                if owner_of(frame) == owner:
                    return frame
    return None


def place_of(error: FragflowError) -> str | None:
    """`file:line` of the user's code that an error was raised from, or None."""
    if error.__cause__ is None:
        return None
    # Where a library refuses what it is asked for, the message already says so.
    owners: Sequence[Owner] = ("user", "installed") if isinstance(error, RunError) else ("user",)
    frame = users_frame(error.__cause__, owners)
    return frame and frame.place


def defined_at(function: Any) -> str:
    """` (file:line)` of a user's function, for errors in what it returns; empty for fragflow's."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None:
        return ""
    frame = Frame(code.co_filename, code.co_firstlineno, code.co_name)
    return f" ({frame.place})" if owner_of(frame) != "ours" else ""


def called(name: str, function: Callable[..., T], *args: Any) -> T:
    """Calls a user's function; TraceError if it cannot take these arguments."""
    try:
        return function(*args)
    except TypeError as error:
        within = error.__traceback__ and error.__traceback__.tb_next
        if within is not None or not defined_at(function):
            raise
        raise TraceError(
            f"{name} cannot be called as fragflow does, with {len(args)} arguments: {error}"
            f"{defined_at(function)}"
        ) from None


def frames_of(error: BaseException) -> list[Frame]:
    """The frames of an error, outermost first, without those of its causes."""
    if isinstance(error, Elsewhere):
        return _frames_in(error.args[0])
    callback = _callback_text(error)
    if callback is not None:
        return _frames_in(callback)
    frames = [
        Frame(
            frame.f_code.co_filename,
            line,
            frame.f_code.co_name,
            frame.f_globals.get("__name__", ""),
        )
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:  # of a file that is being imported
        frames.append(Frame(error.filename, error.lineno or 1, "<module>"))
    return frames


def words_of(error: BaseException) -> str:
    """The error in one line: its type and message."""
    callback = _callback_text(error)
    if callback is not None:
        rest = _FRAME.split(callback)[-1].strip("\n").splitlines()
        code = itertools.takewhile(lambda line: line.startswith("    "), rest)
        return " ".join(" ".join(rest[len(list(code)) :]).split())
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join(filter(None, [type(error).__name__, " ".join(message.split())]))


def judged(error: BaseException, *, is_running: bool, where: str = "") -> FragflowError:
    """The error that the user sees for `error`; `where` is the part of a run it occurred in."""
    if isinstance(error, FragflowError):
        return error
    frame = users_frame(error)
    words = f"{where}: {words_of(error)}" if where else words_of(error)
    tail = f" ({where})" if where else ""
    made: FragflowError
    if frame is not None:
        kind = UserCodeRunError if is_running or _callback_text(error) else UserCodeError
        made = kind(f"{frame.place}, in {frame.function}: {words_of(error)}{tail}")
    elif is_of_machine(error):
        made = RunError(words)
    else:
        made = InternalError(f"this is a fault of fragflow, please report it: {words}")
    made.__cause__ = error
    return made


def is_of_machine(error: BaseException) -> bool:
    """True for errors that no program can avoid: a full disk, no memory, a peer that is gone."""
    if type(error).__name__ in _RUNTIME_ERRORS:
        return str(error).startswith(_OF_THE_MACHINE) or "Gloo" in str(error)
    return isinstance(error, OSError | MemoryError)


def has_story(error: FragflowError) -> bool:
    """True if the traceback tells more than the message."""
    is_elsewhere = any(isinstance(each, Elsewhere) for each in _causes(error))
    is_unforeseen = isinstance(error, UserCodeError | InternalError)
    return is_unforeseen or is_elsewhere or place_of(error) is not None


def first_error(error: FragflowError) -> BaseException:
    """The error as first raised, for a debugger; `error` itself if that was in another process."""
    is_made = isinstance(error, UserCodeError | InternalError)
    cause = error.__cause__
    return error if not is_made or cause is None or isinstance(cause, Elsewhere) else cause


def story_of(error: BaseException) -> str:
    """The whole traceback, with those of its causes."""
    return "".join(traceback.format_exception(error))


@contextlib.contextmanager
def judging(*, is_running: bool) -> Iterator[None]:
    """Turns unforeseen errors into ones that a user can read, with the original as cause.

    The system's own errors about files and connections are clear as they are, and a request to exit
    is not an error: both pass unchanged, unless they come from the user's code.
    """
    try:
        yield
    except (FragflowError, KeyboardInterrupt):
        raise
    except BaseException as error:
        is_signal = isinstance(error, OSError | SystemExit | GeneratorExit)
        if is_signal and users_frame(error) is None:
            raise
        raise judged(error, is_running=is_running) from error


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and the errors it was raised from; one that was only being handled is not a cause."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    # JAX uses these to tell where an operation comes from, not what was being called.
    return [each for each in chain if not type(each).__name__.startswith("JaxStackTrace")]


def _callback_text(error: BaseException) -> str | None:
    """The traceback of a callback's error that came through a compiled program; None for others."""
    if type(error).__name__ not in _RUNTIME_ERRORS:
        return None
    _, begin, text = str(error).partition("Traceback (most recent call last):\n")
    return text.rpartition(f"in {_CALLBACK}\n")[2] if begin else None


def _frames_in(text: str) -> list[Frame]:
    return [Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]
