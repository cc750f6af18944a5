"""Algorithms, environments and policies of the user, named as module:attribute."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import fragflow as ff
from fragflow.errors import ConfigError
from fragflow.tools.cli.main import main
from fragflow.tools.experiment.evaluate_agent import Evaluator
from fragflow.tools.inputs.resolve import find_algorithm, find_environment, make_algorithm

MODULE = '''
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

import fragflow as ff


@dataclass(frozen=True)
class Countdown:
    """Ends after `length` steps; every step pays the action."""

    length: int = 3
    name = "countdown"
    observation = ff.Box(shape=(1,))
    action = ff.Box(shape=())

    def reset(self, key):
        return jnp.int32(self.length), jnp.zeros(1)

    def step(self, state, action, key):
        left = state - 1
        obs = left[None].astype(jnp.float32)
        return ff.Step(left, obs, action, left == 0, jnp.bool_(False))


class Bounded(Countdown):
    action = ff.Box(shape=(), low=-1.0, high=1.5)


class State(NamedTuple):
    params: dict
    env_state: ff.Environment
    obs: jax.Array


@dataclass(frozen=True)
class Constant(ff.Algorithm):
    """Learns nothing, slowly."""

    level: float = 2.0
    """what to do"""
    mode: Literal["up", "down"] = "up"
    """which way"""
    widths: tuple[int, int] = (1, 2)
    limit: int | None = None
    """no limit if none"""

    def init(self, env, key):
        env_state, timestep = env.reset(key)
        return State({"level": jnp.float32(self.level)}, env_state, timestep.obs)

    def step(self, env, state, clock):
        action = self.act(state.params, state.obs)
        env_state, timestep = env.step(state.env_state, action)
        params = self.update(state.params)
        return State(params, env_state, timestep.obs), {"level": params["level"]}

    @ff.component("actor")
    def act(self, params, obs):
        return params["level"] + 0.0 * obs[:, 0]

    @ff.component("learner.update")
    def update(self, params):
        return {"level": params["level"] + 1.0}

    def policy(self, params, obs, memory, key, explore=False):
        steps = jnp.float32(0.0) if memory is None else memory
        return params["level"] + steps, steps + 1.0


TUNED = Constant(level=7.0)
TOGETHER = ff.Policy(
    name="together",
    places=(ff.Place(name="all", components=("environment", "actor", "learner")),),
)
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_things.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_things", raising=False)
    return "own_things"


def train_words(module: str, algorithm: str = "Constant") -> list[str]:
    words = ["train", f"{module}:{algorithm}", "--env", f"{module}:Countdown", "--num-envs", "2"]
    return [*words, "--total-steps", "6", "--eval-episodes", "3", "--quiet", "--run-dir", "run"]


def test_own_everything(own_module: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*train_words(own_module), "--policy", f"{own_module}:TOGETHER", "--level", "4"]
    more = ["--mode", "down", "--widths", "3", "4", "--limit", "none", "--env-arg", "length=2"]
    assert main([*words, *more]) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["algorithm"] == "Constant"
    assert config["env"] == "countdown"
    assert config["policy"] == "together"
    assert config["load_needs"] == ["algorithm", "env"]
    expected = {"level": 4.0, "mode": "down", "widths": [3, 4], "limit": None}
    assert config["hyperparameters"] == expected
    summary = json.loads(Path("run/summary.json").read_text())
    # Three iterations make 4.0 into 7.0. The agent remembers how many steps it has made.
    assert summary["eval_return"] == 7.0 + 8.0

    own = sys.modules[own_module]
    with pytest.raises(ConfigError, match="environment of your own, 'countdown'"):
        ff.load("run", algorithm=own.Constant)
    with pytest.raises(ConfigError, match="algorithm of your own, 'Constant'"):
        ff.load("run", env=own.Countdown())
    agent = ff.load("run", algorithm=own.Constant, env=own.Countdown())
    assert agent.algorithm == own.Constant(level=4.0, mode="down", widths=(3, 4))
    assert [float(agent.act([0.0])) for _ in range(2)] == [7.0, 8.0]
    agent.reset()
    assert agent.act([0.0]) == 7.0

    words = ["--algorithm", f"{own_module}:Constant", "--env", f"{own_module}:Countdown"]
    capsys.readouterr()
    assert main(["eval", "run", *words, "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("return 15.00 ± 0.00"), "with the run's settings"
    assert main(["eval", "run", *words, "--episodes", "2", "--env-arg", "length=3"]) == 0
    assert capsys.readouterr().out.startswith("return 24.00 ± 0.00")


def test_wrappers_of_an_own_environment(own_module: str) -> None:
    """A run's wrappers are put on whatever environment `ff.load` is given."""
    words = [*train_words(own_module, "TUNED"), "--wrap", "frame-stack=2", "scale-rewards=10"]
    assert main(words) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["eval_return"] == 10.0 * (10.0 + 11.0 + 12.0)
    own = sys.modules[own_module]
    agent = ff.load("run", algorithm=own.TUNED, env=own.Countdown())
    assert agent.environment.observation.shape == (2,)
    assert agent.environment == ff.wrap(own.Countdown(), frame_stack=2, scale_rewards=10)


def test_own_instance_gives_the_defaults(own_module: str) -> None:
    assert main(train_words(own_module, "TUNED")) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["hyperparameters"]["level"] == 7.0


def test_divergence_has_its_own_exit_code(
    own_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train_words(own_module), "--level", "inf"]) == 4
    assert "the metric level is inf at iteration 0" in capsys.readouterr().err
    (row,) = Path("run/metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["level"] is None


def test_help_of_an_own_algorithm(own_module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"{own_module}:Constant", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--env ENV", "--level FLOAT", "what to do", "--mode {up,down}", "Learns nothing"):
        assert part in text


def test_episodes_that_do_not_end_are_cut_off(own_module: str) -> None:
    algorithm = find_algorithm(f"{own_module}:Constant")()
    endless = find_environment(f"{own_module}:Countdown", {"length": 100})
    play = Evaluator(algorithm, endless, episodes=2, max_steps=5)
    evaluation = play({"level": np.float32(1.0)})
    assert evaluation.lengths.tolist() == [5, 5]
    assert not evaluation.ended.any()
    assert evaluation.mean_return == 1 + 2 + 3 + 4 + 5


def test_actions_stay_within_bounds(own_module: str) -> None:
    algorithm = find_algorithm(f"{own_module}:Constant")()
    environment = find_environment(f"{own_module}:Bounded")
    params = {"level": np.float32(1.0)}
    assert Evaluator(algorithm, environment, episodes=1)(params).mean_return == 1.0 + 1.5 + 1.5
    agent = ff.Agent(algorithm, environment, params)
    assert [float(agent.act([0.0])) for _ in range(3)] == [1.0, 1.5, 1.5]


def test_hyperparameters_of_a_wrong_type(own_module: str) -> None:
    algorithm = find_algorithm(f"{own_module}:Constant")
    for wrong, expected in (
        ({"level": "high"}, "level of Constant is 'high': expected a number"),
        ({"level": True}, "level of Constant is True"),
    ):
        with pytest.raises(ConfigError, match=expected):
            make_algorithm(algorithm, wrong)
    for wrong in ({"rollout_length": 8.0}, {"rollout_length": 2**40}, {"hidden": 64}):
        with pytest.raises(ConfigError, match=r"expected a (whole number|tuple)"):
            make_algorithm("ppo", wrong)
    with pytest.raises(ConfigError, match="anneal of PPO is 'no': expected True or False"):
        make_algorithm("ppo", {"anneal": "no"})


WRONG = """
import jax.numpy as jnp

import fragflow as ff
from own_things import Constant, Countdown


class Larger(Countdown):
    def reset(self, key):
        return jnp.int32(self.length), jnp.zeros(2)


class Rows(Countdown):
    def step(self, state, action, key):
        return Countdown.step(self, state, action, key)._replace(reward=jnp.zeros(1))


class Tuple(Countdown):
    def step(self, state, action, key):
        return tuple(Countdown.step(self, state, action, key))


class NoMetrics(Constant):
    def step(self, env, state, clock):
        return Constant.step(self, env, state, clock)[0]
"""


@pytest.mark.parametrize(
    ("algorithm", "environment", "expected"),
    [
        ("Constant", "Larger", "'countdown': reset gives observations of shape [2], expected [1]"),
        ("Constant", "Rows", "step gives rewards of shape [1], expected []"),
        ("Constant", "Tuple", "step returned tuple, expected fragflow.Step"),
        ("NoMetrics", "Countdown", "NoMetrics.step returned State: expected the next state and a"),
    ],
)
def test_what_breaks_its_contract_is_named(
    algorithm: str,
    environment: str,
    expected: str,
    own_module: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("wrong_things.py").write_text(WRONG)
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "wrong_things", raising=False)
    words = train_words(own_module)
    words[1], words[3] = f"wrong_things:{algorithm}", f"wrong_things:{environment}"
    assert main(words) == 2
    assert expected in capsys.readouterr().err
