"""An environment that answers what it must not ends a run: exit code 3 and one line."""

from pathlib import Path

import pytest

import runtime.faulty  # registers Faulty-v0
from cli.test_bad_input import error_line
from fragflow.tools.cli.main import main

assert runtime.faulty
TRAIN = (
    *("train", "ppo", "--env", "gymnasium:Faulty-v0", "--num-envs", "2", "--quiet"),
    *("--rollout-length", "8", "--hidden", "8", "--epochs", "1", "--eval-episodes", "0"),
    *("--env-arg", "vectorization=sync", "every=true"),
)


def train(steps: int, fault: str, at: int, *more: str) -> list[str]:
    return [*TRAIN, f"fault={fault}", f"at={at}", *more, "--total-steps", str(2 * steps)]


RANGE = "out of range: entry [0] of it is -1.0, outside of 0 to 5."
CHOICE = "out of range: it is 6, outside of 0 to 5."


@pytest.mark.parametrize(
    ("fault", "at", "said"),
    [("range", 0, RANGE), ("range", 1000, RANGE), ("choice", 3, CHOICE)],
)
def test_an_observation_out_of_range(fault, at, said, capsys):
    line = error_line(capsys, train(at + 8, fault, at), code=3)
    method = "step" if at else "reset"
    assert f"Faulty-v0: environment 0 returned an observation from {method} at step {at}" in line
    assert said in line
    assert ("observation_bounds=none" in line) == (fault == "range")


def test_nan(capsys):
    line = error_line(capsys, train(16, "nan", 9), code=3)
    assert "Faulty-v0: environment 0 returned NaN or infinity from step at step 9" in line


def test_without_bounds_nothing_is_out_of_range():
    assert main(train(16, "range", 9, "observation_bounds=none")) == 0


@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_what_an_environment_raises_has_its_place(vectorization, tmp_path, capsys):
    words = train(8, "raise", 3, f"vectorization={vectorization}", "--run-dir", "run")
    words[3] = "gymnasium:runtime.faulty:Faulty-v0"
    line = error_line(capsys, words, code=3)
    assert "environment 0 failed in step at step 3: RuntimeError: the ball is gone" in line
    text = Path(runtime.faulty.__file__).read_text().splitlines()
    (number,) = [k for k, row in enumerate(text, 1) if "the ball is gone" in row]
    assert f"({runtime.faulty.__file__}:{number})" in line
    assert line.endswith("(the whole traceback: run/traceback.txt)")
    assert f"line {number}, in step" in (tmp_path / "run" / "traceback.txt").read_text()
