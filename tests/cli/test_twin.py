"""`fragflow check --twin` finds where a JAX port differs from its original, and only there."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from cli import ports
from cli.test_bad_input import error_line
from fragflow.environments import make_environment
from fragflow.errors import ConfigError
from fragflow.tools.checks.compare_twin import TwinChecker
from fragflow.tools.checks.contract import Finding
from fragflow.tools.cli.main import main

ORIGINAL = "gymnasium:CartPole-v1"


def compare(port: Any, original: str = ORIGINAL, **settings: Any) -> dict[str, Finding]:
    settings = {"steps": 100} | settings
    twin = make_environment(original, **settings.pop("twin_args", {}))
    return {f.rule: f for f in TwinChecker(port, twin, **settings).run()}


def broken(findings: dict[str, Finding]) -> set[str]:
    return {rule for rule, finding in findings.items() if finding.verdict == "FAIL"}


LIMIT = ["--env-arg", "max_steps={0}", "--twin-arg", "max_episode_steps={0}"]


@pytest.mark.parametrize(
    ("name", "how", "more"),
    [
        ("CartPole-v1", "x, x_dot, theta, theta_dot", [w.format(20) for w in LIMIT]),
        ("Acrobot-v1", "joint_angle1, joint_angle2, velocity_1, velocity_2", ["--seed", "1"]),
        ("Pendulum-v1", "theta, theta_dot", []),
        ("MountainCar-v0", "position, velocity", [w.format(1000) for w in LIMIT]),
        ("MountainCarContinuous-v0", "position, velocity", []),
    ],
)
def test_our_classic_control_is_gymnasiums(name, how, more, capsys):
    """With limits and starts at which both kinds of ends are seen."""
    words = ["check", name, "--twin", f"gymnasium:{name}", *more]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"the twin's state is set before every step: state = ({how})" in out
    assert "ok    observation: largest difference" in out
    assert "ok    truncated: " in out
    assert ("ok    terminated: " in out) == (name != "Pendulum-v1")  # which never does
    assert out.endswith("they agree\n")


@pytest.mark.legacy
@pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves
def test_a_real_difference_that_trembling_does_not_reach():
    """gymnax's car keeps its speed at the left wall, where Gymnasium's stops."""
    name = "MountainCarContinuous-v0"
    found = compare(make_environment(f"gymnax:{name}"), f"gymnasium:{name}", steps=1000)
    assert broken(found) == {"observation"}
    assert "entry [1] is -" in found["observation"].text
    assert "the twin's 0," in found["observation"].text


@pytest.mark.parametrize(
    ("port", "rules", "said"),
    [
        (ports.CartPole(), set(), "largest difference"),
        (ports.CartPole(gravity=9.9), {"observation"}, "entry [3] is "),
        (ports.CartPole(tau=0.02002), {"observation"}, "entry ["),
        (ports.MixedUpSides(), {"observation"}, "400 of 400 steps differ, by up to "),
        (ports.NotANumber(), {"observation"}, "entry [2] is nan, the twin's"),
        (ports.LastRewardIsZero(), {"reward"}, ": 0, the twin's 1, 1 apart"),
        (ports.EarlyEnd(), {"terminated"}, ": True, the twin's False"),
        (ports.LateEnd(), {"terminated"}, ": False, the twin's True"),
        (ports.CartPole(max_steps=5), {"truncated"}, "(step 5 of its episode), action"),
        (ports.Raises(), {"play"}, "NotImplementedError: to be ported"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "step") else None,
)
def test_a_wrong_port_is_caught(port, rules, said):
    found = compare(port)
    assert broken(found) == rules
    assert said in found[next(iter(rules), "observation")].text


def test_other_spaces():
    found = compare(ports.OtherSpaces())
    assert broken(found) == {"spaces"}  # actions that both understand are still compared
    assert found["spaces"].text == (
        "observations: the least value of entry [1] is -4.8, the twin's -inf; "
        "observations: the greatest value of entry [1] is 4.8, the twin's inf; "
        "actions: the greatest value is 2, the twin's 1"
    )
    found = compare(ports.OtherShape())
    assert set(found) == {"spaces"}
    assert "Box of shape [5], the twin's Box of shape [4]" in found["spaces"].text


def test_the_first_difference_is_where_it_is():
    found = compare(ports.EarlyEnd(), steps=60)
    text = found["terminated"].text
    again = compare(ports.EarlyEnd(), steps=60)
    assert again["terminated"].text == text
    assert compare(ports.EarlyEnd(), steps=60, seed=1)["terminated"].text != text
    # Both start a new episode after it, so that the limits of time agree again.
    assert found["observation"].verdict == "ok"
    assert found["truncated"].verdict == "note"


def test_the_tolerance_is_what_it_says():
    port = ports.CartPole(gravity=9.9)
    apart = float(compare(port)["observation"].text.split("by up to ")[1].split(";")[0])
    assert broken(compare(port, tolerance=0.9 * apart)) == {"observation"}
    assert not broken(compare(port, tolerance=1.1 * apart))
    assert "observation" in broken(compare(ports.CartPole(), tolerance=0.0))


def test_limits_of_time_are_compared():
    port = ports.CartPole(max_steps=7)
    found = compare(port, twin_args={"max_episode_steps": 7})
    assert not broken(found)
    assert found["truncated"].text.endswith(" episodes")


FALL = ["check", "cli.ports:FallInJax", "--twin", "gymnasium:cli.ports:Fall-v0", "--steps", "90"]


def test_a_state_map_of_ones_own(capsys):
    words = [*FALL, "--state-map", "cli.ports:same_fall"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "the twin's state is set before every step: by the given function" in out
    assert "ok    terminated: " in out
    words[1] = "cli.ports:ShortFallInJax"
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "FAIL  truncated: " in out
    assert "(step 6 of its episode)" in out
    assert "they differ: 1 of 5 rules broken" in out
    assert main([*words, "--twin-arg", "max_episode_steps=6"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (FALL, "no known way to set the state of cli.ports:Fall-v0.*--state-map module:function"),
        ([*FALL, "--state-map", "cli.ports:bad_map"], "state map failed .*: AttributeError"),
        ([*FALL, "--state-map", "cli.ports:ORIGINAL"], "cli.ports has no attribute 'ORIGINAL'"),
        ([*FALL, "--state-map", "os:sep"], "state map 'os:sep' is of type str"),
        ([*FALL, "--tolerance", "-1"], "tolerance is -1.0: expected at least 0"),
        ([*FALL, "--seed", "-1"], "seed is -1: expected a whole number from 0"),
        ([*FALL, "--twin-arg", "fast"], "--twin-arg 'fast': expected NAME=VALUE"),
        (["check", ORIGINAL, "--twin", ORIGINAL], "ENV is the one in JAX"),
        (["check", "CartPole-v1", "--twin", "Tag"], "ENV is the one in JAX"),
        (
            ["check", "CartPole-v1", "--twin", "envpool:CartPole-v1"],
            "no known way to set the state",
        ),
        (["check", "CartPole-v1", "--tolerance", "1"], "--tolerance needs --twin OTHER"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(words, said, capsys):
    assert re.search(said, error_line(capsys, words))


class Walk:
    """On the host, many at once."""

    name = "walk"
    observation = ff.Box(shape=(2,))
    action = ff.Discrete(n=2)
    has_mask = False
    draws_apart = True

    def open(self, ids: Any) -> "Walk":
        return self

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.state = np.zeros((len(seeds), 2), np.float32)
        return self.state

    def step(self, action: np.ndarray) -> ff.HostStep:
        self.state = (self.state + np.stack([action, 1 - action], 1)).astype(np.float32)
        no = np.zeros(len(action), bool)
        return ff.HostStep(self.state, self.state, self.state[:, 0], no, no)

    def close(self) -> None:
        pass


class WalkInJax:
    name = "walk in JAX"
    observation = Walk.observation
    action = Walk.action

    def reset(self, key: jax.Array) -> Any:
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        place = state + jnp.stack([action, 1 - action])
        return ff.Step(place, place, place[0], jnp.bool_(False), jnp.bool_(False))


class Crowd(WalkInJax):
    num_agents = 2


def test_originals_of_ones_own():
    checker = TwinChecker(WalkInJax(), Walk(), steps=50)
    assert not broken({f.rule: f for f in checker.run()})
    assert checker.how == "state = (the state)"
    with pytest.raises(ConfigError, match="of one agent"):
        TwinChecker(Crowd(), Walk())


def test_help(capsys):
    assert main(["check", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in ("--twin OTHER", "--state-map MODULE:FUNCTION", "--tolerance X", "default: 1e-05"):
        assert part in out
