"""The command line from outside: quick help, signals, displays, public names."""

import ast
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

import fragflow
from cli.tiny import TINY
from fragflow.graph.show import Format
from fragflow.planned_run import RuntimeName
from fragflow.runtime.planning.print_plan import STAGE_NAMES
from fragflow.tools.cli.command_options import SHOW, TRAIN, StageName
from fragflow.tools.cli.main import main
from fragflow.tools.cli.signals import Interrupts
from fragflow.tools.experiment.progress import Live, Plain, Update, display_for, duration
from fragflow.tools.inputs.options import OptionGroup

SOURCE = str(Path(fragflow.__file__).parents[1])


def start_python(*words: str, devices: int | None = 4) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    if devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"{text!r} never came: {process.communicate()[1]}")


def test_help_does_not_wait_for_jax() -> None:
    code = (
        "import sys; from fragflow.tools.cli.main import main\n"
        "assert main(['--help']) == main(['train', '--help']) == main(['eval', '--help']) == 0\n"
        "assert 'jax' not in sys.modules and 'gymnax' not in sys.modules"
    )
    process = start_python("-c", code)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "train ALGO --env ENV" in output
    assert "--total-steps N" in output


def test_virtual_devices_are_made_for_replicas_on_a_cpu() -> None:
    words = [*TINY, "--policy", "gpu-only", "--workers", "2", "--no-probe"]
    process = start_python("-m", "fragflow.tools.cli.main", *words, devices=None)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "x2 @cpu" in output


@pytest.mark.usefixtures("finished")  # which leaves compiled programs
def test_ctrl_c_saves_and_ends(tmp_path: Path) -> None:
    words = [*TINY, "--total-steps", "2e9", "--run-dir", "run"]
    process = start_python("-m", "fragflow.tools.cli.main", *words)
    wait_for_line(process, "training")
    wait_for_line(process, "steps/s")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "stopped early" in output
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["iterations"] == len((tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert (tmp_path / "run/weights.safetensors").exists()


def test_sigterm_has_its_own_exit_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert not interrupts.stopped
        assert interrupts.exit_code == 0
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not interrupts.stopped and time.monotonic() < deadline:
            time.sleep(0.01)
    assert interrupts.exit_code == 75
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_signal_ends_at_once() -> None:
    code = (
        "import time; from fragflow.tools.cli.signals import Interrupts\n"
        "with Interrupts(lambda: print('first', flush=True)):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)"
    )
    process = start_python("-c", code)
    wait_for_line(process, "ready")
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "first")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


@pytest.mark.parametrize(("output", "code", "lines"), [("&-", 0, 0), ("/dev/full", 3, 1)])
def test_output_that_cannot_be_written(output: str, code: int, lines: int) -> None:
    """Closed, a run goes on in silence; a full disk is one message."""
    command = f"{sys.executable} -m fragflow.tools.cli.main list >{output}"
    if output == "&-":
        command = command.replace("list", " ".join([*TINY, "--total-steps", "1"]))
    script = f"import os; os.execlp('sh', 'sh', '-c', {command!r})"
    process = start_python("-c", script)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert len(errors.splitlines()) == lines, errors


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    words = ("ppo", "PPO with clipping", "CartPole-v1", "single-learner-coarse", "gpu-only")
    for word in (*words, "frame-stack=N", "scale-actions  ", "Act between -1 and 1"):
        assert word in output
    ours, gymnaxs = output.index("  fragflow: "), output.index("  gymnax: ")
    assert ours < gymnaxs < output.index("  gymnasium: ")


def test_list_says_how_to_get_gymnax(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)  # as if it were not installed
    assert main(["list"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "FrozenLake-misc (pip install 'fragflow[gymnax]') gymnasium: " in output


@pytest.mark.parametrize("form", ["text", "mermaid", "json"])
def test_show_prints_the_fragments(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "single-learner-coarse", "--workers", "2", "--num-envs", "4"]
    assert main(["show", "ppo", "--env", "CartPole-v1", *words, "--format", form]) == 0
    output = capsys.readouterr().out
    assert "environment+actor" in output
    assert "learner.update" in output


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("trace", "  in scan ×128 of actor, environment.step:"),
        ("kinds", "varying(0)    f32[4,4]"),
        ("plan", "  put environment+actor>learner#1: environment.step:obs, actor"),
    ],
)
def test_show_prints_what_there_is_after_a_stage(
    stage: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--policy", "single-learner-coarse", "--workers", "2", "--num-envs", "4"]
    assert main(["show", "ppo", "--env", "CartPole-v1", *words, "--after", stage]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{stage} · ")
    assert expected in output


def test_show_knows_the_stages_of_the_compiler() -> None:
    assert get_args(StageName) == STAGE_NAMES


@pytest.mark.parametrize(
    ("command", "option", "known"),
    [
        (TRAIN, "runtime", get_args(RuntimeName)),
        (SHOW, "format", (*get_args(Format), "driver")),
    ],
    ids=["runtime", "format"],
)
def test_choices_are_those_of_the_library(
    command: tuple[OptionGroup, ...], option: str, known: tuple[str, ...]
) -> None:
    (found,) = (o.kind for group in command for o in group.options if o.name == option)
    assert set(get_args(found)) == set(known)


def test_version_and_empty_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fragflow ")
    assert main([]) == 2
    assert "usage: fragflow COMMAND" in capsys.readouterr().out


def test_hyperparameters_are_options_with_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "ppo", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--learning-rate FLOAT", "--anneal, --no-anneal", "--hidden INT,...", "64,64"):
        assert part in text
    assert "step size of Adam" in text
    assert "--network" not in text


def test_help_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "5")
    assert main(["check", "--help"]) == 0
    assert "--steps N" in capsys.readouterr().out


def update_at(env_steps: int) -> Update:
    return Update(
        env_steps=env_steps,
        total_steps=1000,
        steps_per_second=100.0,
        mean_return=12.34,
        eval_return=None,
        losses=(("loss", 0.5),),
    )


def test_plain_lines_are_few() -> None:
    stream = io.StringIO()
    plain = Plain(stream)
    for done in (0, 0, 1):
        plain.phase("compiling", done, 2)
    for env_steps in range(10, 1001, 10):
        plain.update(update_at(env_steps))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["compiling 1 of 2", "compiling 2 of 2"]
    assert lines[-1] == "100 %  1,000 steps, 100 steps/s, return 12.3, loss 0.5"
    assert len(lines) <= 5, "all of this took no time, so there is not much to say"


def test_live_display_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for(io.StringIO()), Plain)
    stream = Terminal()
    live = display_for(stream)
    assert isinstance(live, Live)
    live.phase("compiling", 0, 3)
    live.note("fragments: [loop] x1")
    live.update(update_at(500))
    live.phase("evaluating", 0, 1)
    live.close()
    assert "fragments: [loop] x1" in stream.getvalue()
    monkeypatch.setenv("CI", "true")
    assert isinstance(display_for(stream), Plain)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3599.7, "1:00:00"), (7322, "2:02:02")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_public_names_are_those_that_type_checkers_see() -> None:
    stub = ast.parse(Path(fragflow.__file__).with_suffix(".pyi").read_text())
    typed = {
        alias.asname
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert {"train", "load", "ops", "Algorithm"} <= typed <= set(dir(fragflow))
    for name in typed:
        assert getattr(fragflow, str(name)) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fragflow.trian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
