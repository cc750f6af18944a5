"""Errors that nobody foresaw: whose they are, in one line; the rest in a file."""

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fragflow as ff
from cli.mistakes import MISTAKES, SOUND, module_name
from cli.said import check_is_ours, check_said, planted_fault, report_in
from fragflow.errors import InternalError, UserCodeError, UserCodeRunError
from fragflow.tools.cli.main import main

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("case", MISTAKES)
def test_a_users_mistake(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mistake, name = MISTAKES[case], module_name(case)
    place = mistake.write(tmp_path, name)
    code = main(mistake.words(name))
    check_said(mistake, place, code, capsys.readouterr().err, tmp_path)


FAULTS = {
    "compiler": ("fragflow.planned_run.cut", "planted"),
    "driver": ("fragflow.runtime.drivers.worker.Worker.wait", "fragment"),
    "saving": ("fragflow.tools.experiment.run_directory.RunDirectory.write_weights", "planted"),
}
"""what breaks, and what is said of it besides"""


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_ours(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, said = FAULTS[case]
    monkeypatch.setattr(where, planted_fault())
    SOUND.write(tmp_path, "sound")
    assert main(SOUND.words("sound")) == 70
    check_is_ours(capsys.readouterr().err, tmp_path, said)
    assert Path("run/traceback.txt").exists() == (case != "compiler"), "a run that never began"


def test_with_debug_the_error_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MISTAKES["step"].write(tmp_path, "mistake_debug")
    with pytest.raises(KeyError, match="nothing"):
        main([*MISTAKES["step"].words("mistake_debug"), "--debug"])
    monkeypatch.setattr("fragflow.planned_run.cut", planted_fault())
    with pytest.raises(LookupError, match="planted"):
        main([*SOUND.words("mistake_debug"), "--debug"])


def test_a_traceback_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no run directory: it may quote what is nobody's business."""
    MISTAKES["init"].write(tmp_path, "mistake_private")
    main(MISTAKES["init"].words("mistake_private"))
    path = Path(report_in(capsys.readouterr().err))
    assert path.parent == Path(os.environ["XDG_CACHE_HOME"]) / "fragflow" / "errors"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_cache_a_traceback_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    MISTAKES["init"].write(tmp_path, "mistake_elsewhere")
    main(MISTAKES["init"].words("mistake_elsewhere"))
    assert Path(report_in(capsys.readouterr().err)).parent == tmp_path


@pytest.mark.parametrize(
    ("case", "sync"),
    [("callback", "lag=1"), ("host environment", "lag=1"), ("host environment", "async")],
)
def test_in_threads_that_do_not_wait(
    case: str, sync: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, name = MISTAKES[case], module_name(f"{case} {sync}")
    place = mistake.write(tmp_path, name)
    code = main([*mistake.words(name), "--sync", sync])
    check_said(mistake, place, code, capsys.readouterr().err, tmp_path)


@pytest.mark.parametrize("case", ["matrix shape", "host environment"])
def test_without_compiling(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mistake, name = MISTAKES[case], module_name(f"{case} eager")
    place = mistake.write(tmp_path, name)
    words = [*mistake.words(name), "--policy", "gpu-only", "--workers", "1", "--runtime", "eager"]
    code = main(words)
    check_said(mistake, place, code, capsys.readouterr().err, tmp_path)


def test_in_another_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mistake, name = MISTAKES["environment of ours"], module_name("show")
    place = mistake.write(tmp_path, name)
    code = main(["show", "a2c", "--env", f"{name}:{mistake.env}"])
    check_said(mistake, place, code, capsys.readouterr().err, tmp_path)


class TestInPython:
    """A short message, and the first error as the cause."""

    def train(self, case: str, tmp_path: Path, **more: Any) -> None:
        name = module_name(f"{case} in python")
        self.place = MISTAKES[case].write(tmp_path, name)
        algorithm, env = f"{name}:{MISTAKES[case].algorithm}", f"{name}:{MISTAKES[case].env}"
        ff.train(algorithm, env, num_envs=4, total_steps=24, quiet=True, eval_episodes=0, **more)

    def test_while_tracing(self, tmp_path: Path) -> None:
        with pytest.raises(UserCodeError, match="in learn: TypeError") as caught:
            self.train("matrix shape", tmp_path)
        assert str(caught.value).startswith(self.place)
        assert isinstance(caught.value.__cause__, TypeError)
        assert caught.value.exit_code == 2
        assert caught.value.report is None, "the traceback is there"

    def test_while_running(self, tmp_path: Path) -> None:
        with pytest.raises(UserCodeRunError, match="in look: ArithmeticError") as caught:
            self.train("callback", tmp_path, run_dir="run")
        assert str(caught.value).startswith(self.place)
        assert caught.value.report == "run/traceback.txt"

    def test_a_callback_of_train(self) -> None:
        def stop() -> bool:
            raise LookupError("stop what?")

        with pytest.raises(UserCodeRunError, match="in stop: LookupError: stop what") as caught:
            ff.train("ppo", "CartPole-v1", num_envs=4, total_steps=64, quiet=True, stop=stop)
        assert isinstance(caught.value.__cause__, LookupError)
        assert str(caught.value).startswith(f"{__file__}:")

    def test_a_fault_of_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fragflow.planned_run.cut", planted_fault())
        with pytest.raises(InternalError, match=r"a fault of fragflow.*planted") as caught:
            ff.train("ppo", "CartPole-v1", num_envs=4, total_steps=64, quiet=True)
        assert isinstance(caught.value.__cause__, LookupError)
        assert caught.value.exit_code == 70
