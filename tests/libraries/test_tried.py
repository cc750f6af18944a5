"""What compares an environment's runs finds those that differ, and says what is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from libraries import tried
from prove import LIBRARIES, ROWS


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """What runs learn, by policy and workers; where nothing is said, the same."""
    by_run: dict[str, list[float]] = {}

    def trained(_environment: Any, policy: str, workers: int) -> dict[str, Any]:
        params = by_run.get(f"{policy} {workers}", [1.0, 2.0])
        return {"iterations": 2, "probe": "", "params": params, "moved": 0.1}

    monkeypatch.setattr(tried, "trained", trained)
    return by_run


def test_rounding_passes_and_is_said(learnt: dict[str, list[float]]) -> None:
    learnt["central 4"] = [1.0, 2.0001]
    said = tried.tried("CartPole-v1")
    assert "9 runs" in said
    assert "at most 1e-03" in said


@pytest.mark.parametrize("params", [[1.0, 2.002], [1.0, float("nan")]])
def test_what_differs_does_not(learnt: dict[str, list[float]], params: list[float]) -> None:
    learnt["central 4"] = params
    with pytest.raises(AssertionError, match="central 4 by"):
        tried.tried("CartPole-v1")


def test_runs_are_kept(learnt: dict[str, list[float]], tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    tried.tried("CartPole-v1", ["central"], file=file)
    assert list(json.loads(file.read_text())) == ["central 1", "central 2", "central 4"]
    learnt["central 1"] = [7.0, 7.0]  # not run again
    tried.tried("CartPole-v1", ["central"], file=file)


def test_a_library_that_is_not_here_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    monkeypatch.setattr(sys, "argv", ["tried", "playground:CartpoleBalance"])
    monkeypatch.setattr(tried.jax.config, "update", lambda *_: None)
    assert tried.main() == 1
    assert capsys.readouterr().out.strip().endswith("pip install 'fragflow[playground]'")


def test_every_library_has_a_row() -> None:
    commands = [row.command for row in ROWS]
    for env in LIBRARIES:
        assert f"-m libraries.tried {env} --progress {{progress}}" in commands
