"""`ff.compile` traces, cuts and plans; `ff.train` is that, and a run of it."""

import dataclasses
import inspect
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
import pytest

import fragflow as ff
from fragflow import planned_run
from fragflow.errors import ConfigError, PolicyError, ReplicaError, TraceError
from fragflow.runtime.programs import devices
from fragflow.runtime.promises import compare_bits
from fragflow.tools.cli.main import main
from fragflow.tools.experiment import compile as compiling
from fragflow.tools.inputs import resolve
from fragflow.tools.inputs.settings import Settings
from graph.toy import Drift, Toy

COARSE: dict[str, Any] = {"policy": "single-learner-coarse", "workers": 2, "num_envs": 8}
COMPILED = "/jax/core/compile/backend_compile_duration"


def toy(**changes: Any) -> ff.Compiled:
    return ff.compile(Toy(), Drift(), **{**COARSE, "total_steps": 8 * 4 * 3, **changes})


@pytest.fixture
def compiled_by_xla() -> Iterator[list[str]]:
    found: list[str] = []

    def note(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def test_it_compiles_nothing_and_starts_no_process(
    compiled_by_xla: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    compiled = toy(runtime="processes")
    assert compiled.show()
    assert compiled.driver()
    assert compiled_by_xla == []


def test_it_is_frozen_and_can_be_printed() -> None:
    compiled = toy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        compiled.title = "another"  # pyright: ignore[reportAttributeAccessIssue]
    assert str(compiled) == compiled.show()
    assert repr(compiled) == (
        "Compiled(Toy on drift, policy single-learner-coarse, lockstep, workers 2, learners 1, "
        "runtime local)"
    )
    assert (
        set(compiled.fdg.fragments) == set(compiled.plan.parts) == {"environment+actor", "learner"}
    )
    assert "def drive(" in compiled.driver()


@pytest.mark.parametrize("stage", ["trace", "kinds", "split", "plan"])
def test_stages_are_those_of_the_command_line(
    stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ppo", "--env", "CartPole-v1", "--policy", "single-learner-coarse", "--workers", "2"]
    sizes = ["--num-envs", "4", "--rollout-length", "4", "--hidden", "4"]
    assert main(["show", *words, *sizes, "--after", stage]) == 0
    compiled = ff.compile(
        ff.PPO(rollout_length=4, hidden=(4,)), "CartPole-v1", **{**COARSE, "num_envs": 4}
    )
    assert compiled.show(after=stage).rstrip() == capsys.readouterr().out.rstrip()


def test_a_stage_before_a_refusal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wants to know why a cut is refused looks at what replicas hold."""
    words = ["cli.test_compile:Refused", "--env", "CartPole-v1", "--policy", "gpu-only"]
    assert main(["show", *words, "--workers", "2"]) == ReplicaError.exit_code
    assert "Apply ff.all_mean" in capsys.readouterr().err
    assert main(["show", *words, "--workers", "2", "--after", "kinds"]) == 0
    assert "is computed from one replica's environments only" in capsys.readouterr().out


class RefusedState(NamedTuple):
    params: jax.Array
    env_state: Any
    obs: jax.Array


@dataclasses.dataclass(frozen=True)
class Refused(ff.Algorithm):
    """Moves its parameters by the mean observation of its own environments."""

    def init(self, env: ff.Environments, key: jax.Array) -> Any:
        env_state, t = env.reset(key)
        return RefusedState(jnp.zeros(4), env_state, t.obs)

    def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> tuple[Any, Any]:
        del clock
        action = (state.obs @ state.params > 0).astype(jnp.int32)
        env_state, t = env.step(state.env_state, action)
        return RefusedState(state.params + t.obs.mean(axis=0), env_state, t.obs), {}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"workers": 0}, ConfigError, "workers is 0"),
        ({"runtime": "threads"}, ConfigError, "runtime"),
        ({"policy": "gpu-onli"}, PolicyError, "gpu-only"),
        ({"num_envs": 7}, PolicyError, "7"),
        ({"without": "hoisting"}, ConfigError, "hoist"),
        ({"cluster": "nowhere.toml"}, ConfigError, "nowhere.toml"),
        ({"implementations": {"nonsense": "xla"}}, ConfigError, "nothing called 'nonsense'"),
        ({"deterministic": "False"}, ConfigError, "expected True or False"),
        (
            {"algorithm": Toy(reduce=lambda grads: grads), "policy": "gpu-only"},
            ReplicaError,
            "all_mean",
        ),
        ({"algorithm": Toy(report=lambda rewards: "text")}, TraceError, "text|str"),
        ({"runtime": "eager", "sync": "lag=1"}, ConfigError, "eager"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_can_be_refused_without_a_run_is(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    algorithm = settings.pop("algorithm", Toy())
    with pytest.raises(error, match=words):
        ff.compile(algorithm, Drift(), **{**COARSE, **settings})


@pytest.mark.probed
def test_equality_is_known_after_a_probe_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "")  # as users have it: a run sets it, and puts it back
    compiled = toy()
    assert compiled.equality == "not probed"
    probed = compiled.probe()
    assert probed.equality.startswith(("bitwise", "rounding"))
    assert compiled.equality == probed.equality, "another look at the same graph remembers it"
    for other in ({"seed": 5}, {"sync": "lag=1"}, {"without": "hoist"}, {"probe": False}):
        assert toy(**other).equality == "not probed", other
    begun = dataclasses.replace(Toy(), length=3)
    assert ff.compile(begun, Drift(), **COARSE).equality == "not probed"
    tried: list[Any] = []
    monkeypatch.setattr("fragflow.run.tried", lambda *_, **__: tried.append(1))
    result = probed.run(quiet=True, eval_episodes=0)
    assert not tried, "a run of what was probed does not probe again"
    assert result.equality == probed.equality
    assert probed.promise is not None
    assert result.probe == probed.promise.probe


def test_train_is_compile_and_run() -> None:
    settings: dict[str, Any] = {**COARSE, "total_steps": 8 * 4 * 3, "probe": False}
    run: dict[str, Any] = {"quiet": True, "eval_episodes": 0}
    compiled = ff.compile(Toy(), Drift(), **settings)
    results = [
        compiled.run(**run),
        compiled.run(**run),
        ff.train(Toy(), Drift(), **settings, **run),
    ]
    assert len({result.params_sha256 for result in results}) == 1
    assert results[0].iterations == 3


def test_train_takes_the_settings_of_compile() -> None:
    parameters = inspect.signature(ff.compile).parameters
    own = {"algorithm", "env", "elsewhere", "quiet"}
    assert set(get_type_hints(Settings)) == set(parameters) - own
    documented = inspect.getdoc(ff.compile) or ""
    assert [name for name in parameters if f"    {name}: " not in documented] == []


def test_what_is_planned_for_elsewhere_is_shown_and_not_run() -> None:
    compiled = ff.compile(
        Toy(), Drift(), policy="gpu-only", workers=16, num_envs=64, elsewhere=True
    )
    assert "×16 @cpu" in compiled.show()
    assert compiled.shortage is not None
    with pytest.raises(ConfigError, match="needs 16 devices"):
        compiled.run(quiet=True)


def test_the_eager_runtime_has_no_graph() -> None:
    compiled = ff.compile(Toy(), Drift(), num_envs=2, total_steps=16, runtime="eager")
    assert compiled.equality.startswith("rounding: eager")
    assert str(compiled) == repr(compiled)
    with pytest.raises(ConfigError, match="no graph"):
        compiled.show()
    assert compiled.run(quiet=True, eval_episodes=0).iterations == 2


def test_the_command_line_resolves_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(resolve, "find_policy")
    counted(resolve, "find_environment")
    counted(resolve, "make_algorithm")
    counted(devices, "prepare_devices")
    counted(devices, "accelerator")
    counted(planned_run, "cut")
    counted(planned_run, "make_plan")
    counted(compiling, "resolve_settings")
    counted(compare_bits, "make_plan")
    words = ["train", "ppo", "--env", "CartPole-v1", "--policy", "single-learner-coarse"]
    words += ["--workers", "2", "--num-envs", "4", "--rollout-length", "4", "--hidden", "4"]
    words += ["--total-steps", "16", "--eval-episodes", "0", "--quiet", "--no-probe"]
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 0
    assert calls.pop("accelerator") <= 2  # for what is there, and for too few of them
    assert set(calls.values()) == {1}, calls
    assert len(calls) == 7
