"""Errors that nobody foresaw: whose they are, in one line; the rest in a file."""

import sys
from pathlib import Path

import pytest

from cli.mistakes import MISTAKES, check_said
from fragflow.tools.cli import main

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def module_name(case: str) -> str:
    return "mistake_" + "".join(c if c.isalnum() else "_" for c in case)


@pytest.mark.parametrize("case", MISTAKES)
def test_a_users_mistake(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mistake, name = MISTAKES[case], module_name(case)
    place = mistake.write(tmp_path, name)
    code = main(mistake.words(name))
    check_said(mistake, place, code, capsys.readouterr().err, tmp_path)
