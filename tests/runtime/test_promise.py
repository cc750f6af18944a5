"""Runs are probed before they begin, once; what they say of themselves is what was tried."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fragflow as ff
from fragflow.errors import ReplicaError
from fragflow.graph.probe.probe import probe
from fragflow.policies import Deployment, named_policy
from fragflow.policies.synchronisation import Asynchronous
from fragflow.run import Experiment, Outcome, _in_lockstep, plan_run, run
from fragflow.runtime.promises import compare_bits, probe_cache, run_probe
from fragflow.tools.cli.main import main
from graph.toy import Drift, OneUpdate
from graph.wrong import WRONG, Small

pytestmark = [pytest.mark.probed, pytest.mark.quick]


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fragflow" / "probe"


def experiment(algorithm: ff.Algorithm) -> Experiment:
    return Experiment(algorithm=algorithm, environment=Drift(), num_envs=8, total_steps=16)


def trained(policy: str = "gpu-only", workers: int = 2, probe: bool = True) -> Outcome:
    return run(experiment(Small()), named_policy(policy), workers=workers, probe=probe)


def test_a_run_is_probed_once(memory: Path) -> None:
    first = trained().start
    assert re.fullmatch(r"[4-9] states, \d+ leaves, worst (\de-1\d|0), \d+\.\d s", first.probe)
    assert re.fullmatch(
        r"rounding: .* \(probe: [4-9] states, \d+ leaves, worst .*\)", first.equality
    )
    assert (memory.stat().st_mode & 0o777) == 0o700
    again = trained().start
    assert again.probe.endswith(", remembered")
    assert again.equality == first.equality
    assert jnp.zeros(1).dtype == jnp.float32


def test_it_can_be_switched_off() -> None:
    start = trained(probe=False).start
    assert start.probe == "switched off"
    assert start.equality.endswith("(probe: switched off)")
    assert trained("single-learner-coarse", probe=False).start.equality == (
        "rounding: bits were not compared (probe: switched off)"
    )


def test_the_command_line_says_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--help"]) == 0
    assert "--no-probe" in capsys.readouterr().out


def test_what_is_not_divided_is_not_probed() -> None:
    start = trained(workers=1).start
    assert (start.probe, start.equality) == ("not divided", "bitwise")


def test_bits_are_compared_before_they_are_called_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: object) -> compare_bits.Difference:
        return compare_bits.Difference("the state's params", 3e-7)

    with monkeypatch.context() as patch:
        patch.setattr(compare_bits, "_difference", other)
        start = trained("single-learner-coarse").start
        assert start.equality.startswith("rounding: the state's params has other digits")
        assert "up to 3e-07" in start.equality
    start = trained("single-learner-coarse").start
    whole = trained(workers=1)
    cut = trained("single-learner-coarse")
    assert start.equality == cut.start.equality == "bitwise"
    assert cut.state.params.tobytes() == whole.state.params.tobytes()
    # Remembered: nothing is run for it any more.
    monkeypatch.setattr(compare_bits, "_difference", other)
    assert trained("single-learner-coarse").start.equality == "bitwise"


def test_a_wrong_program_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragflow.graph.check.check_replicas", lambda *_: None)
    wrong = experiment(Small(direction=WRONG["clipped too early"]))
    with pytest.raises(ReplicaError, match=r"params is .* with replicas.*wrong\.py"):
        run(wrong, named_policy("gpu-only"), workers=2)
    assert jnp.zeros(1).dtype == jnp.float32


def test_what_cannot_be_tried_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(run_probe, "probe", fails)
    start = trained().start
    assert start.probe == "could not be tried (ValueError: no such thing)"
    assert "could not be tried" in start.equality


def test_what_others_can_write_is_not_believed(memory: Path) -> None:
    assert probe_cache.recall("key") is None
    probe_cache.remember("key", {"states": 4})
    assert probe_cache.recall("key") == {"states": 4}
    (memory / "key.json").write_text("[1]")
    assert probe_cache.recall("key") is None
    (memory / "key.json").write_text("{")
    assert probe_cache.recall("key") is None
    (memory / "key.json").write_text(json.dumps({"states": 4}))
    memory.chmod(0o770)
    assert probe_cache.recall("key") is None
    memory.chmod(0o700)
    assert probe_cache.recall("key") is not None


def test_facts_that_are_none_are_tried_again() -> None:
    good = {"states": 4, "leaves": 3, "worst": 1e-16}
    assert run_probe._verdict(good) is not None
    for name, value in (("states", "4"), ("worst", 1.0), ("worst", None), ("leaves", None)):
        assert run_probe._verdict(good | {name: value}) is None


def test_other_versions_and_other_ways_to_try_are_other_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fdg, _ = _in_lockstep_of("gpu-only")
    key = run_probe.key_of(fdg, "probe")
    assert key == run_probe.key_of(fdg, "probe")
    assert key != run_probe.key_of(fdg, "bits")
    monkeypatch.setattr(run_probe, "_versions", lambda: ["jax 99"])
    assert key != run_probe.key_of(fdg, "probe")
    monkeypatch.undo()
    monkeypatch.setattr(run_probe, "_how", lambda: "otherwise")
    assert key != run_probe.key_of(fdg, "probe")


def _in_lockstep_of(name: str, sync: str = "lockstep"):
    policy = named_policy(name)
    if sync == "async":
        policy = ff.Policy(name=name, places=policy.places, synchronisation=Asynchronous())
    planned = plan_run(experiment(OneUpdate()), policy, Deployment(workers=2, learners=1))
    return _in_lockstep(planned, planned.cut_graph)


def test_an_asynchronous_graph_is_probed_in_lockstep() -> None:
    fdg, source = _in_lockstep_of("single-learner-coarse", "async")
    assert fdg.server is None
    assert max(f.replicas for f in fdg.fragments.values()) == 2
    assert probe(fdg, source).worst < 1e-13


class Alone(Small):
    """Does something else where there is one environment: its program was never compared."""

    def act(self, params: jax.Array, obs: jax.Array) -> jax.Array:
        return super().act(params, obs) ^ (obs.shape[0] == 1)


@pytest.mark.parametrize("policy", ["gpu-only", "single-learner-coarse"])
def test_one_environment_each_is_tried_as_it_is(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(algorithm: ff.Algorithm, probe: bool = True) -> Outcome:
        one_each = replace(experiment(algorithm), num_envs=3, total_steps=6)
        return run(one_each, named_policy(policy), workers=3, probe=probe)

    start = alone(Small()).start
    assert "tried, not proven: one environment each in " in start.probe
    assert start.equality == "bitwise" or "tried, not proven" in start.equality
    with pytest.raises(ReplicaError, match=r"test_promise\.py.*a constant is another one"):
        alone(Alone())
    monkeypatch.setattr("fragflow.graph.cut.check_stands_for", lambda *_: None)
    with pytest.raises(ReplicaError, match="tried with 3 environments and 3"):
        alone(Alone())
    with pytest.raises(ReplicaError, match="can only be tried, and the probe is switched off"):
        alone(Small(), probe=False)


def test_bits_are_compared_in_the_last_iteration_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    monkeypatch.setattr(compare_bits, "_difference", lambda *a: compared.append(a[-1]))
    longer = replace(experiment(Small()), total_steps=80)
    run(longer, named_policy("single-learner-coarse"), workers=2)
    assert compared == [0, 1, 9]


def test_what_is_no_rounding_is_not_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare_bits.Difference("the state's params", 1.0)
    monkeypatch.setattr(compare_bits, "_difference", lambda *_: found)
    said = trained("single-learner-coarse").start.equality
    assert said.startswith("different: the state's params")


class Squeezing(Small):
    """Nothing of it shows in the probe: it waits for an iteration that is not tried."""

    @ff.component("learner.gradient")
    def late(self, obs: jax.Array, iteration: jax.Array) -> jax.Array:
        mean = jnp.broadcast_to(jnp.squeeze(obs).mean(0), (3,))
        return jnp.where(iteration == 5, mean, 0.0)

    def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> Any:
        state, metrics = super().step(env, state, clock)
        change = ff.all_mean(self.late(state.obs, clock.iteration))
        return state._replace(params=state.params + change), metrics


def test_other_programs_for_one_environment_are_refused() -> None:
    one_each = replace(experiment(Squeezing()), num_envs=3, total_steps=6)
    with pytest.raises(ReplicaError, match=r"test_promise\.py.*squeeze with one"):
        run(one_each, named_policy("gpu-only"), workers=3)
    run(replace(one_each, num_envs=6), named_policy("gpu-only"), workers=3)
