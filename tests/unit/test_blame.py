"""Whose an error is."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragflow
from fragflow.error_owner import (
    Elsewhere,
    Frame,
    defined_at,
    frames_of,
    has_story,
    is_of_machine,
    judged,
    judging,
    owner_of,
    users_frame,
    words_of,
)
from fragflow.errors import (
    ConfigError,
    InternalError,
    RunError,
    UserCodeError,
    UserCodeRunError,
)

OURS = os.path.dirname(fragflow.__file__)
SITE = "/opt/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "module", "owner"),
    [
        (f"{OURS}/run.py", "fragflow.run", "ours"),
        (f"{OURS}/tools/cli.py", "__main__", "ours"),
        ("<driver of learner>", "", "ours"),
        (f"{SITE}/fragflow/run.py", "", "ours"),  # of another machine
        (f"{SITE}/jax/_src/pjit.py", "jax._src.pjit", "ours"),
        (f"{SITE}/ray/worker.py", "ray.worker", "ours"),
        (json.__file__, "json", "ours"),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap", "ours"),
        ("<string>", "fragflow.graph.ir", "ours"),  # a dataclass's
        ("<string>", "own_algorithm", "user"),
        ("/home/me/own_algorithm.py", "own_algorithm", "user"),
        ("/home/me/json.py", "json", "user"),
        ("/home/me/train.py", "__main__", "user"),
        ("<stdin>", "__main__", "user"),
        ("<ipython-input-3-0a1b2c>", "__main__", "user"),
        ("/tmp/ipykernel_12/345.py", "__main__", "user"),
        ("/home/me/fragflow_extras/nets.py", "fragflow_extras.nets", "user"),
        (f"{SITE}/fragflow_extras/nets.py", "fragflow_extras.nets", "installed"),
        (f"{SITE}/gymnasium/core.py", "gymnasium.core", "installed"),
        ("/usr/lib/python3/dist-packages/games.py", "games", "installed"),
    ],
)
def test_whose_a_frame_is(file: str, module: str, owner: str) -> None:
    assert owner_of(Frame(file, 1, "f", module)) == owner


def caught(function: Any, *args: Any) -> Exception:
    """The error of a function, whose traceback begins in this file: it is the user's here."""
    try:
        function(*args)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return error
    raise AssertionError("no error")


def planted(text: str, file: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    return scope["f"]


OURS_FAILS = planted("def f(): {}['x']", f"{OURS}/ops/planted.py")
LIBRARY = planted("def f(g): g()", f"{SITE}/games/core.py")
OURS_CALLS = planted("def f(g): g()", f"{OURS}/algorithms/planted.py")


def user() -> None:
    raise ValueError("a\n  b")


def test_the_innermost_frame_of_the_user_decides() -> None:
    frame = users_frame(caught(OURS_CALLS, user))
    assert frame is not None
    assert (frame.file, frame.function) == (__file__, "user")
    assert users_frame(caught(OURS_CALLS, OURS_FAILS)) is None
    library = users_frame(caught(OURS_CALLS, lambda: LIBRARY(user)))
    assert library is not None
    assert library.function == "user", "one's own code, rather than an installed package's"


def test_a_library_of_environments_is_the_users() -> None:
    library = users_frame(caught(LIBRARY, OURS_FAILS))
    assert library is not None
    assert library.file.endswith("games/core.py")


def test_causes_count_and_what_was_handled_does_not() -> None:
    def wrapped() -> None:
        try:
            user()
        except ValueError as error:
            raise caught(OURS_FAILS) from error

    def handled() -> None:
        try:
            user()
        except ValueError:
            raise caught(OURS_FAILS) from None

    wrapping, handling = caught(wrapped), caught(handled)
    for error in (wrapping, handling):
        error.__traceback__ = None
    frame = users_frame(wrapping)
    assert frame is not None
    assert frame.function == "user"
    assert users_frame(handling) is None


class TestCallbacks:
    """What fails in a compiled program comes back as text, with the stack of who has waited."""

    def error(self, callback: Any) -> Exception:
        @jax.jit
        def program(x: jax.Array) -> Any:
            return jax.pure_callback(callback, x, x)

        return caught(lambda: jax.block_until_ready(program(np.float32(1.0))))

    def test_of_the_user(self) -> None:
        error = self.error(lambda _: user())
        frame = users_frame(error)
        assert frame is not None
        assert (frame.file, frame.function) == (__file__, "user")
        assert words_of(error) == "ValueError: a b"
        assert isinstance(judged(error, is_running=False), UserCodeRunError), "it was running"

    def test_with_lines_of_code(self) -> None:
        text = 'INTERNAL: Traceback (most recent call last):\n  File "/a.py", line 3, in look\n'
        error = jax.errors.JaxRuntimeError(f"{text}    raise KeyError\n    ^^^^^\nKeyError: 'x'\n")
        assert words_of(error) == "KeyError: 'x'"
        assert users_frame(error) == Frame("/a.py", 3, "look")

    def test_of_ours(self) -> None:
        error = self.error(planted("def f(x): {}['x']", f"{OURS}/runtime/planted.py"))
        assert "test_blame.py" in str(error), "the caller is on the stack"
        assert users_frame(error) is None
        assert isinstance(judged(error, is_running=True), InternalError)


def test_the_text_of_another_process() -> None:
    places = [("/a b/env.py", 7, "step"), (json.__file__, 9, "f")]
    text = "".join(f'  File "{f}", line {n}, in {name}\n    x = 1\n' for f, n, name in places)
    error = RuntimeError("it failed")
    error.__cause__ = Elsewhere(text)
    assert users_frame(error) == Frame("/a b/env.py", 7, "step")


def test_syntax_errors_have_a_place() -> None:
    error = caught(compile, "x = 1\n= 2", "/home/me/own.py", "exec")
    assert frames_of(error)[-1].place == "/home/me/own.py:2"
    assert words_of(error).startswith("SyntaxError: ")


def test_verdicts() -> None:
    before, after = (judged(caught(user), is_running=x, where="x[0]") for x in (False, True))
    assert (before.exit_code, after.exit_code) == (2, 3)
    assert isinstance(before, UserCodeError)
    assert isinstance(after, RunError)
    assert str(after).endswith("in user: ValueError: a b (x[0])")
    ours = judged(caught(OURS_FAILS), is_running=True)
    assert (type(ours), ours.exit_code) == (InternalError, 70)
    assert isinstance(ours.__cause__, KeyError)
    full = judged(caught(open, "/nowhere/at/all"), is_running=True, where="x[0]")
    assert (type(full), full.exit_code) == (RunError, 3)
    foreseen = ConfigError("no")
    assert judged(foreseen, is_running=True) is foreseen
    assert not has_story(foreseen)
    assert all(map(has_story, (before, after, ours)))


def test_no_memory_is_no_fault() -> None:
    for words, of_machine in (("RESOURCE_EXHAUSTED: Out of memory", True), ("INTERNAL: x", False)):
        assert is_of_machine(jax.errors.JaxRuntimeError(words)) == of_machine
    assert is_of_machine(MemoryError())


def test_what_the_system_says_stays() -> None:
    read = planted("def f(): open('/nowhere/at/all')", f"{OURS}/planted.py")
    with pytest.raises(FileNotFoundError):
        judging(is_running=True)(read)()
    with pytest.raises(KeyboardInterrupt), judging(is_running=True):
        raise KeyboardInterrupt


def test_where_a_function_is() -> None:
    line = user.__code__.co_firstlineno
    assert defined_at(user) == f" ({Path(__file__)}:{line})"
    assert defined_at(json.dumps) == defined_at(len) == ""
    assert defined_at(owner_of) == "", "ours"
