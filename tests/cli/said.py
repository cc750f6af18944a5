"""What must be said of an error that nobody foresaw, and how to plant one."""

import sys
from pathlib import Path
from typing import Any

import fragflow
from cli.mistakes import Mistake


def check_said(mistake: Mistake, place: str, code: int, error: str, folder: Path) -> None:
    """Exit code, one line, and the file it speaks of."""
    assert code == mistake.exit_code, error
    (line,) = error.splitlines()
    assert line.startswith("fragflow: error: ")
    for part in mistake.says:
        assert part in line
    assert (place in line) == mistake.has_place
    for foreign in ("jax/_src", "site-packages", "Traceback", f"{Path(sys.prefix)}"):
        assert foreign not in line
    assert ("the whole traceback: " in line) == mistake.has_report
    if mistake.has_report:
        text = (folder / report_in(line)).read_text()
        for part in ("fragflow ", "jax ", "jaxlib ", "numpy ", "Python ", "Traceback"):
            assert part in text
        file, _, number = place.rpartition(":")
        assert f'File "{file}", line {number}' in text


def check_is_ours(error: str, folder: Path, *says: str) -> None:
    """One line that asks for a report, and what to put into it."""
    (line,) = error.splitlines()
    assert line.startswith("fragflow: error: this is a fault of fragflow, please report it: ")
    for part in (*says, "LookupError: planted", "jax ", "numpy ", "Python "):
        assert part in line
    text = (folder / report_in(error)).read_text()
    for part in ("jaxlib ", "Traceback", "LookupError: planted"):
        assert part in text


def report_in(error: str) -> str:
    """The file that a line speaks of."""
    return error.strip().rpartition("the whole traceback: ")[2].removesuffix(")")


PLANTED = "def fail(*_, **__):\n    raise LookupError('planted')"


def planted_fault() -> Any:
    """A function that fails, and that seems to be in fragflow."""
    scope: dict[str, Any] = {}
    exec(compile(PLANTED, str(Path(fragflow.__file__).with_name("planted.py")), "exec"), scope)
    return scope["fail"]
