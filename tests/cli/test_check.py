"""`fragflow check` names what an environment does that it must not."""

import jax.numpy as jnp
import pytest

import fragflow as ff
import runtime.faulty  # registers Faulty-v0
from fragflow.environments import make_environment
from fragflow.tools.checks.contract import Checker
from fragflow.tools.cli.main import main
from graph.toy import Drift

assert runtime.faulty


def verdicts(environment, steps: int = 40) -> dict[str, str]:
    return {f.rule: f"{f.verdict} {f.text}" for f in Checker(environment, steps).run()}


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "gymnasium:runtime.faulty:Faulty-v0", "envpool:CartPole-v1"]
)
def test_good_environments_pass(name, capsys):
    assert main(["check", name, "--steps", "60"]) == 0
    assert "keeps the contract" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Pendulum-v1", "gymnasium:Pendulum-v1", "envpool:Pendulum-v1"])
def test_wrapped_environments_pass(name, capsys):
    wrappers = ["--wrap", "frame-stack=3", "--wrap", "scale-actions", "--wrap", "time-limit=9"]
    assert main(["check", name, *wrappers, "--steps", "40"]) == 0
    output = capsys.readouterr().out
    assert "keeps the contract" in output
    assert "observations Box(shape=(9,)" in output
    assert "no episode ended" not in output


@pytest.mark.parametrize(
    ("fault", "rule", "said"),
    [
        (
            "raise",
            "types and shapes",
            "environment 2 failed in step at step 3: RuntimeError: the ball",
        ),
        (
            "reset",
            "types and shapes",
            "environment 2 failed in reset at step 0: RuntimeError: no ball",
        ),
        ("shape", "types and shapes", "an observation has shape [1], expected [2]"),
        ("nan", "types and shapes", "environment 2 returned NaN or infinity from step at step 3"),
        ("range", "types and shapes", "entry [0] of it is -1.0, outside of 0 to 5. Correct it"),
        ("choice", "types and shapes", "it is 6, outside of 0 to 5. Correct it"),
    ],
)
def test_faults_of_host_environments(fault, rule, said):
    environment = make_environment("gymnasium:Faulty-v0", vectorization="sync", fault=fault)
    found = verdicts(environment)[rule]
    assert found.startswith("FAIL")
    assert said in found


def test_a_fault_gives_exit_code_1(capsys):
    command = ["check", "gymnasium:Faulty-v0", "--env-arg", "fault=nan", "--steps", "9"]
    assert main([*command, "--env-arg", "vectorization=sync"]) == 1
    assert "1 of 1 rules broken" in capsys.readouterr().out


class OutOfRange(Drift):
    observation = ff.Box(shape=(3,), low=-0.5, high=0.5)


class BothEnds(Drift):
    def step(self, state, action, key):
        step = Drift.step(self, state, action, key)
        return step._replace(obs=jnp.zeros(2), terminated=True)


class Rounded(Drift):
    """Rounds in another way where more than one shares a batch, as XLA sometimes does."""

    def step(self, state, action, key):
        step = Drift.step(self, state, action, key)
        return step._replace(obs=step.obs * (1.0 + 1e-6 * self.size))

    size = 0.0


def test_rounding_is_no_fault(monkeypatch):
    environment = Rounded()
    checker = Checker(environment, 40)
    play = checker._play

    def play_and_round(seeds, *args, **kwargs):
        environment.size = float(len(seeds))
        return play(seeds, *args, **kwargs)

    monkeypatch.setattr(checker, "_play", play_and_round)
    found = {f.rule: f"{f.verdict} {f.text}" for f in checker.run()}
    assert found["independence"].startswith("note XLA rounds obs at step 1 differently")


def test_faults_of_jax_environments():
    assert "outside of -0.5 to 0.5" in verdicts(OutOfRange())["ranges"]
    assert verdicts(Drift())["ranges"].startswith("ok")
    assert verdicts(BothEnds())["types and shapes"].startswith("FAIL")
