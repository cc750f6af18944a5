"""What the scripts look for, they find."""

import ast
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

import matrix
import private_parameters
import prove

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_types_of_the_compiler_and_of_its_seams_are_checked_strictly() -> None:
    settings = tomllib.loads((SCRIPTS.parent / "pyproject.toml").read_text())
    strict = {Path(path) for path in settings["tool"]["basedpyright"]["strict"]}
    ours = Path("src/fragflow")
    assert strict >= {ours / part for part in ("api", "graph", "policies", "runtime/protocols.py")}
    assert all((SCRIPTS.parent / path).exists() for path in strict)


@pytest.mark.parametrize(
    "code",
    [
        "eqn.params['num_consts']",
        "eqn.params.get('jaxpr')",
        "key = 'x' if 'call_jaxpr' in params else 'y'",
        "[p.params['branches'] for p in pairs]",
    ],
)
def test_readings_of_private_parameters_are_found(code: str) -> None:
    assert len(list(private_parameters.readings(ast.parse(code)))) == 1


def test_other_parameters_may_be_read() -> None:
    assert not list(private_parameters.readings(ast.parse("eqn.params['dimension_numbers']")))


def test_an_interpreter_counts_only_if_it_runs(tmp_path: Path) -> None:
    """As a shim of pyenv fails for versions that are installed but not chosen."""
    for name, line in (
        ("python3.12", "echo 'command not found' >&2; exit 127"),
        ("python3.13", "echo 3.13"),
    ):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    found = subprocess.run(
        ["/bin/sh", SCRIPTS / "interpreters.sh"],
        env={"PATH": f"{tmp_path}{os.pathsep}/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"3.13 {tmp_path}/python3.13\n"


def test_a_page_of_versions_keeps_what_was_tried() -> None:
    tried = [
        matrix.Cell("3.11", "0.10.0", {"install": "passed", "ray": "failed"}, 0.0, "0.10.0", "ab1"),
        matrix.Cell("3.11", "0.12.0", {"install": "absent"}, 0.0, "0.12.0", "ab1"),
        matrix.Cell("3.12", "0.12.0", {"install": "passed", "ray": "passed"}, 0.0, "0.12.0", "cd2"),
    ]
    assert matrix.cells_in(matrix.page(tried)) == tried


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        ("3 skipped in 0.22s", False),
        ("3 skipped, 1 deselected in 2.0s", False),
        ("43 deselected in 0.1s", False),
        ("no tests ran in 0.01s", False),
        ("14 passed, 43 deselected in 104.80s (0:01:44)", True),
        ("500 programs: 195 refused, 136 accepted, 114 played, 55 failed", True),
    ],
)
def test_tests_that_did_not_run_prove_nothing(said: str, ran: bool) -> None:
    assert (prove.NOTHING_RAN.match(said) is None) == ran
