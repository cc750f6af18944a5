"""Every algorithm by its name: it trains, and what it learned can be loaded and evaluated."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fragflow as ff
from fragflow.tools.cli.main import main

SMALL = {
    "a2c": ("--rollout-length", "4", "--hidden", "8"),
    "a3c": ("--rollout-length", "4", "--hidden", "8"),
    "impala": ("--rollout-length", "4", "--hidden", "8"),
    "recurrent-ppo": (
        *("--rollout-length", "8", "--chunk-length", "4", "--minibatches", "2"),
        *("--units", "8", "--hidden", "8"),
    ),
}


AGENTS = {
    "ippo": ("--rollout-length", "4", "--hidden", "8"),
    "mappo": ("--rollout-length", "8", "--chunk-length", "2", "--units", "4", "--hidden", "8"),
}


@pytest.mark.parametrize("name", ["ippo", pytest.param("mappo", marks=pytest.mark.slow)])
def test_many_agents_train_and_are_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, gif = tmp_path / "run", tmp_path / "episode.gif"
    words = ("--env", "Tag", "--env-arg", "agents=6", "--env-arg", "length=9", "--num-envs", "4")
    words = (*words, "--total-steps", "64", "--eval-episodes", "4", "--run-dir", str(run))
    assert main(["train", name, *words, *AGENTS[name]]) == 0
    agent = ff.load(run)
    assert np.shape(agent.act(np.zeros((6, 31), np.float32))) == (6, 2)
    assert main(["eval", str(run), "--episodes", "3", "--record", str(gif)]) == 0
    assert "an episode in" in capsys.readouterr().out
    with Image.open(gif) as picture:
        assert picture.size == (360, 360)
        assert getattr(picture, "n_frames", 1) > 2
    assert main(["eval", str(run), "--record", "episode.mp4"]) == 2
    assert "expected the name of a GIF" in capsys.readouterr().err


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
