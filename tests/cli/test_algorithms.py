"""Every algorithm by its name: it trains, and what it learned can be loaded and evaluated."""

from pathlib import Path

import numpy as np
import pytest

import fragflow as ff
from fragflow.tools.cli import main

SMALL = {
    "a2c": ("--rollout-length", "4", "--hidden", "8"),
    "a3c": ("--rollout-length", "4", "--hidden", "8"),
    "impala": ("--rollout-length", "4", "--hidden", "8"),
    "recurrent-ppo": (
        *("--rollout-length", "8", "--chunk-length", "4", "--minibatches", "2"),
        *("--units", "8", "--hidden", "8"),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_trains_and_plays(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ("--env", "CartPole-positions", "--num-envs", "4", "--total-steps", "64")
    words = (*words, "--eval-episodes", "4", "--run-dir", str(run))
    assert main(["train", name, *words, *SMALL[name]]) == 0
    assert name in capsys.readouterr().out
    agent = ff.load(run)
    assert type(agent.algorithm).__name__.lower() == name.replace("-", "")
    assert agent.act(np.zeros(2, np.float32)) in (0, 1)
    assert main(["eval", str(run), "--episodes", "3"]) == 0
