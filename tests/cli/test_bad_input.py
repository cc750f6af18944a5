"""Whatever is wrong with the input: exit code 2, one line that names the thing and the fix."""

import json
from pathlib import Path

import pytest

from cli.tiny import TINY
from fragflow.errors import RunError
from fragflow.tools.cli.main import main


def error_line(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("fragflow: error: ")
    assert "Traceback" not in captured.out
    return lines[0]


CASES = {
    "command": (["trian"], ["'trian'", "Did you mean 'train'?"]),
    "no algorithm": (["train"], ["which algorithm?", "fragflow list"]),
    "algorithm": (["train", "pp", "--env", "CartPole-v1"], ["'pp'", "Did you mean 'ppo'?"]),
    "no environment": (["train", "ppo"], ["--env is missing"]),
    "environment": ([*TINY, "--env", "CartPol-v1"], ["'CartPol-v1'", "mean 'CartPole-v1'?"]),
    "lower case": ([*TINY, "--env", "cartpole"], ["Did you mean 'CartPole-v1'?"]),
    "library": ([*TINY, "--env", "gymnx:CartPole-v1"], ["'gymnx'", "Did you mean 'gymnax'?"]),
    "policy": ([*TINY, "--policy", "gpu-olny"], ["'gpu-olny'", "Did you mean 'gpu-only'?"]),
    "option": ([*TINY, "--seeed", "1"], ["--seeed", "Did you mean '--seed'?"]),
    "hyperparameter": ([*TINY, "--lerning-rate", "1"], ["Did you mean '--learning-rate'?"]),
    "word": ([*TINY, "--anneal", "true"], ["unexpected argument 'true'"]),
    "number": ([*TINY, "--learning-rate", "fast"], ["--learning-rate fast", "a number"]),
    "whole number": ([*TINY, "--num-envs", "4.5"], ["--num-envs 4.5", "a whole number"]),
    "no value": ([*TINY, "--num-envs"], ["--num-envs needs a value"]),
    "two values": ([*TINY, "--gamma", "1", "2"], ["--gamma 1 2", "expected one value"]),
    "tuple": ([*TINY, "--hidden", "8,x"], ["--hidden 8,x", "a whole number"]),
    "no environments": ([*TINY, "--num-envs", "0"], ["num-envs is 0", "from 1"]),
    "no steps": ([*TINY, "--total-steps", "0"], ["total-steps is 0", "from 1"]),
    "too many steps": ([*TINY, "--total-steps", "3e9"], ["total-steps is 3000000000"]),
    "seed": ([*TINY, "--seed", "-1"], ["seed is -1", "from 0"]),
    "workers": ([*TINY, "--workers", "0"], ["workers is 0", "from 1"]),
    "indivisible": (
        [*TINY, "--policy", "single-learner-coarse", "--workers", "3"],
        ["num-envs is 4", "3 replicas"],
    ),
    "too many devices": ([*TINY, "--workers", "99"], ["gpu-only", "99 devices"]),
    "runtime": ([*TINY, "--runtime", "cloud"], ["--runtime cloud", "local, processes, ray, eager"]),
    "bad hyperparameter": ([*TINY, "--gamma", "2"], ["gamma", "between 0 and 1"]),
    "environment argument": ([*TINY, "--env-arg", "fast"], ["--env-arg 'fast'", "NAME=VALUE"]),
    "its name": ([*TINY, "--env-arg", "gravty=1"], ["'gravty'", "Did you mean 'gravity'?"]),
    "its value": ([*TINY, "--env-arg", "gravity=strong"], ["gravity of CartPole-v1", "a number"]),
    "no setting": ([*TINY, "--env-arg", "name=x"], ["'name'", "Known: ", "gravity"]),
    "setting of Tag": ([*TINY, "--env", "Tag", "--env-arg", "agnts=9"], ["Did you mean 'agents'?"]),
    "many agents": ([*TINY, "--env", "Tag"], ["PPO is for one agent", "use IPPO or MAPPO"]),
    "setting of a library": (
        [*TINY, "--env", "gymnasium:Acrobot-v1", "--env-arg", "max_episode_steps=many"],
        ["cannot make", "Acrobot-v1", "max_episode_steps"],
    ),
    "wrapper": ([*TINY, "--wrap", "time-limt=9"], ["--wrap time-limt=9", "mean 'time-limit'?"]),
    "no number": ([*TINY, "--wrap", "frame-stack"], ["--wrap frame-stack", "frame-stack=NUMBER"]),
    "bad number": ([*TINY, "--wrap", "frame-stack=0"], ["frame_stack is 0", "at least 1"]),
    "twice": (
        [*TINY, "--wrap", "frame-stack=2", "--wrap", "frame-stack=3"],
        ["--wrap frame-stack=3", "given twice"],
    ),
    "unfit wrapper": (["check", "CartPole-v1", "--wrap", "scale-actions"], ["continuous actions"]),
    "module": (["train", "nowhere:PPO", "--env", "CartPole-v1"], ["no module 'nowhere'"]),
    "attribute": (["train", "json:dump_s", "--env", "x"], ["json has no attribute 'dump_s'"]),
    "wrong algorithm": (["train", "json:dumps", "--env", "x"], ["subclass of fragflow.Algorithm"]),
    "wrong environment": ([*TINY, "--env", "os:sep"], ["without name, observation, action"]),
    "wrong policy": ([*TINY, "--policy", "os:sep"], ["expected a name or a fragflow.Policy"]),
    "no file": ([*TINY, "--config", "no.json"], ["--config no.json", "No such file"]),
    "no run": (["eval", "nowhere"], ["nowhere is not a run directory"]),
    "which run": (["eval"], ["which run?"]),
    "seed of a run": (["eval", "nowhere", "--seed", "1e30"], ["seed is 1000", "to 4294967295"]),
    "seed of a twin": (
        ["check", "CartPole-v1", "--twin", "gymnasium:CartPole-v1", "--seed", "-1"],
        ["seed is -1", "from 0"],
    ),
    "format": (["show", "ppo", "--env", "CartPole-v1", "--format", "gif"], ["text, mermaid, json"]),
    "stage": (
        ["show", "ppo", "--env", "CartPole-v1", "--after", "kind"],
        ["--after kind: expected one of trace, program,", "mean 'kinds'?"],
    ),
    "stage as a picture": (
        ["show", "ppo", "--env", "CartPole-v1", "--after", "plan", "--format", "mermaid"],
        ["--after plan prints text", "leave out --format mermaid"],
    ),
    "shown for none": (
        ["show", "ppo", "--env", "CartPole-v1", "--num-envs", "0"],
        ["num-envs is 0", "expected a whole number from 1"],
    ),
    "list": (["list", "--all"], ["unknown option --all"]),
}


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = CASES[case]
    line = error_line(capsys, words)
    for part in expected:
        assert part in line
    runs = Path("runs")
    assert not runs.exists() or not any(runs.iterdir()), "a run that never began left a directory"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        (json.dumps({"lerning-rate": 1}), "unknown option 'lerning-rate'. Did you mean 'learning"),
        (json.dumps({"config": "b.json"}), "'config' can only be given on the command line"),
        (json.dumps({"num-envs": "many"}), "--num-envs many: expected a whole number"),
        (json.dumps({"anneal": 1}), "expected true or false"),
    ],
)
def test_bad_config_file(content: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.json").write_text(content)
    line = error_line(capsys, [*TINY, "--config", "a.json"])
    assert "--config a.json" in line
    assert expected in line


def test_run_directory_in_use_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("used").mkdir()
    Path("used/precious").write_text("data")
    line = error_line(capsys, [*TINY, "--run-dir", "used"])
    assert "used exists and is not empty: choose another --run-dir" in line
    assert [path.name for path in Path("used").iterdir()] == ["precious"]


def test_run_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")  # permissions would not stop root
    line = error_line(capsys, [*TINY, "--run-dir", "file/run"])
    assert "cannot write to run directory file/run" in line
    assert "choose another --run-dir" in line


def test_own_module_that_fails_to_import(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    Path("broken_module.py").write_text("1 / 0")
    line = error_line(capsys, ["train", "broken_module:PPO", "--env", "CartPole-v1"])
    assert "importing broken_module failed: ZeroDivisionError" in line


def test_failed_fragment_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunError("fragment learner[0] failed\nin segment learner/0")

    monkeypatch.setattr("fragflow.tools.experiment.compile.execute", fail)
    assert "learner[0] failed in segment" in error_line(capsys, list(TINY), code=3)
    with pytest.raises(RunError):
        main([*TINY, "--debug"])
