"""What is the user's own is named again, or the file is trusted: the error says how."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import fragflow as ff
from cli.tiny import TINY
from fragflow.algorithms.ppo import PPO
from fragflow.errors import ConfigError
from fragflow.tools.cli.main import main

ROVER = """
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium
import jax.numpy as jnp
from gymnasium.envs.classic_control import CartPoleEnv

import fragflow as ff
from fragflow.algorithms.ppo import PPO


@dataclass(frozen=True)
class Rover:
    size: int = 4
    ground: str = "sand"
    name = "rover"
    action = ff.Discrete(n=2)

    @property
    def observation(self):
        return ff.Box(shape=(self.size,))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(self.size)

    def step(self, state, action, key):
        obs = jnp.full(self.size, state, float)
        reward = 2.0 if self.ground == "ice" else 1.0
        return ff.Step(state + 1, obs, jnp.float32(reward), state > 2, jnp.bool_(False))


class Shy(ff.ops.MLPActorCritic):
    pass


class OwnPPO(PPO):
    pass


SHY = PPO(rollout_length=8, epochs=1, minibatches=2, network=Shy((8,)))
ALONE = ff.Policy(
    name="alone",
    places=(ff.Place(name="all", components=("environment", "actor", "learner")),),
)
if "Rover-v0" not in gymnasium.registry:
    gymnasium.register("Rover-v0", CartPoleEnv)
"""

SMALL = (
    *("--num-envs", "4", "--total-steps", "32", "--eval-episodes", "0", "--quiet"),
    *("--rollout-length", "8", "--hidden", "8", "--epochs", "1", "--minibatches", "2"),
)


@pytest.fixture(autouse=True)
def rover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user in the current directory, which no path of Python's has."""
    (tmp_path / "rover.py").write_text(ROVER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "rover", raising=False)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process would be."""
    monkeypatch.delitem(sys.modules, "rover", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path.cwd())])


def command_in(line: str) -> list[str]:
    """The words of the command that an error tells, without the program."""
    (command,) = re.findall("`(fragflow .*)`", line)
    program, *words = shlex.split(command)
    assert program == "fragflow"
    return words


CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "settings": (
        ["ppo", "--env", "rover:Rover", "--env-arg", "size=3", "--env-arg", "ground=ice"],
        {"env": "rover:Rover", "env_args": {"size": 3, "ground": "ice"}},
    ),
    "of Gymnasium": (["ppo", "--env", "gymnasium:rover:Rover-v0"], {}),
    "network": (["rover:SHY", "--env", "CartPole-v1"], {"algorithm": "rover:SHY"}),
    "both": (
        ["rover:OwnPPO", "--env", "rover:Rover", "--env-arg", "size=2"],
        {"algorithm": "rover:OwnPPO", "env": "rover:Rover"},
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
def test_runs(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, given = CASES[case]
    assert main(["train", *words, *SMALL, "--run-dir", "my run"]) == 0
    forget(monkeypatch)
    capsys.readouterr()
    assert main(["eval", "my run", "--episodes", "2"]) == 2
    line = capsys.readouterr().err
    assert "rover" not in sys.modules
    assert line.count("\n") == 1

    assert main(command_in(line)) == 0, "the command that the error tells"
    named = capsys.readouterr().out
    assert "2 episodes" in named
    forget(monkeypatch)
    assert main(["eval", "my run", "--episodes", "2", "--trust-run"]) == 0
    assert capsys.readouterr().out == named

    forget(monkeypatch)
    with pytest.raises(ConfigError, match="never imported"):
        ff.load("my run")
    trusted = ff.load("my run", trust=True)
    if given:
        agent = ff.load("my run", **given)
        assert agent.environment == trusted.environment
        assert agent.algorithm == trusted.algorithm


@pytest.mark.quick
def test_objects_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    from rover import Rover  # pyright: ignore[reportMissingImports]

    small = PPO(rollout_length=8, hidden=(8,), epochs=1, minibatches=2)
    more: dict[str, Any] = {"num_envs": 4, "total_steps": 32, "eval_episodes": 0, "quiet": True}
    ff.train(small, Rover(), **more, run_dir="plain")
    assert json.loads(Path("plain/config.json").read_text())["named"] == {"env": "rover:Rover"}
    assert ff.load("plain", env=Rover).environment == Rover()
    assert ff.load("plain", env="rover:Rover").environment == Rover()
    with pytest.raises(ConfigError, match="this one is an object"):
        ff.load("plain", env=Rover(), env_args={"size": 4})

    ff.train(small, Rover(size=3), **more, run_dir="sized")
    with pytest.raises(ConfigError, match="--env MODULE:ATTRIBUTE`") as refused:
        ff.load("sized", trust=True)  # its class alone would make another one
    assert "--trust-run" not in str(refused.value), "that was said already"
    assert ff.load("sized", env=Rover(size=3)).environment == Rover(size=3)
    assert ff.load("sized", env=Rover, env_args={"size": 3}).environment == Rover(size=3)


@pytest.mark.quick
def test_files_of_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"env": "rover:Rover", "policy": "rover:ALONE", "env-arg": {"size": 2, "ground": "ice"}}
    Path("my own.json").write_text(json.dumps(own))
    words = ["train", "ppo", *SMALL, "--config", "my own.json", "--run-dir"]
    for said, left in (
        ([], ["--env", "--policy", "--env-arg", "--env-arg"]),
        (["--env", "rover:Rover"], ["--policy", "--env-arg", "--env-arg"]),
        (["--env=rover:Rover", "--policy=rover:ALONE"], ["--env-arg", "--env-arg"]),
    ):
        assert main([*words, "a", *said]) == 2
        line = capsys.readouterr().err
        assert "rover" not in sys.modules
        typed = command_in(line)
        assert typed[: len(words) + 1 + len(said)] == [*words, "a", *said]
        assert typed[len(words) + 1 + len(said) :: 2] == left
    assert main(typed) == 0
    forget(monkeypatch)
    assert main([*words, "b", "--trust-config"]) == 0
    hashes = {json.loads(Path(run, "summary.json").read_text())["params_sha256"] for run in "ab"}
    assert len(hashes) == 1


@pytest.mark.parametrize("key", ["cluster", "ray-address"])
def test_a_file_does_not_say_whom_to_ask(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.json").write_text(json.dumps({key: "10.0.0.1:6379", "runtime": "ray"}))
    words = [*TINY, "--config", "a.json"]
    assert main(words) == 2
    typed = command_in(capsys.readouterr().err)
    assert typed == [*words, f"--{key}", "10.0.0.1:6379"]


def test_what_cannot_be_typed_is_not_repeated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "\x1b]0;title\x07rover:Rover\u202e"
    Path("a.json").write_text(json.dumps({"env": name}))
    assert main(["train", "ppo", "--config", "a.json"]) == 2
    line = capsys.readouterr().err.rstrip("\n")
    assert line.isprintable()
    assert command_in(line)[-2:] == ["--env", "MODULE:ATTRIBUTE"]
    Path("a.json").write_text(json.dumps({"env": "x; touch owned:`id`$(id)"}))
    assert main(["train", "ppo", "--config", "a.json"]) == 2
    assert command_in(capsys.readouterr().err)[-1] == "x; touch owned:`id`$(id)"
    Path("a.json").write_text(json.dumps({"env": "rover:" + "R" * 9999}))
    assert main(["train", "ppo", "--config", "a.json"]) == 2
    assert len(capsys.readouterr().err) < 1000
