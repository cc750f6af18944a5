"""What a run says of its equality with one undivided program, where it would be false."""

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

import fragflow as ff
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.programs.devices import processor_of
from fragflow.runtime.promises import compare_bits, equality
from fragflow.runtime.promises.run_probe import NOT_DIVIDED
from graph.toy import Drift, OneUpdate
from graph.wrong import Small
from runtime.test_host import HostDrift

COARSE = "single-learner-coarse"

pytestmark = pytest.mark.probed


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class State(NamedTuple):
    params: jax.Array
    env_state: Any
    obs: jax.Array


class Multiplies(ff.Algorithm):
    """A product in one fragment, and what is added to it in another one: together, XLA rounds
    once."""

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.full(3, 0.3), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        action, a, b = self.act(state.params, state.obs)
        env_state, t = env.step(state.env_state, action)
        score = a.sum(0) * b.sum(0) + self.target(state.params)
        params = self.update(state.params, score)
        return State(params, env_state, t.obs), {f"score{k}": score[k] for k in range(3)}

    @ff.component("actor")
    def act(self, w: jax.Array, obs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return (obs @ w > 0).astype(jnp.int32), obs * w, jnp.sin(obs)

    @ff.component("learner.target")
    def target(self, w: jax.Array) -> jax.Array:
        return jnp.cos(w)

    @ff.component("learner.update")
    def update(self, w: jax.Array, score: jax.Array) -> jax.Array:
        return w + 0.1 * score


def trained(
    algorithm: Any = None, policy: Any = COARSE, workers: int = 1, **options: Any
) -> Outcome:
    experiment = Experiment(
        algorithm=algorithm or Small(),
        environment=options.pop("environment", None) or Drift(),
        num_envs=options.get("num_envs", 8),
        total_steps=3 * options.pop("num_envs", 8),
    )
    policy = named_policy(policy) if isinstance(policy, str) else policy
    return run(experiment, policy, workers=workers, **options)


def test_a_program_that_is_cut_but_not_divided_is_compared_too() -> None:
    """All of its iterations are, so that it is known whether what is said is so."""
    whole, cut = trained(Multiplies(), "gpu-only"), trained(Multiplies())
    leaves = zip(jax.tree.leaves(whole.state), jax.tree.leaves(cut.state), strict=True)
    is_same = all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)
    is_same &= [r.metrics for r in whole.rows] == [r.metrics for r in cut.rows]
    assert (cut.start.equality == "bitwise") == is_same
    assert is_same or cut.start.equality.startswith("rounding: the ")


@pytest.mark.quick
def test_compiling_and_trying_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that takes long does not make compiling take longer."""

    def slow(*_: Any, **__: Any) -> Any:
        time.sleep(2.0)
        return NOT_DIVIDED

    monkeypatch.setattr("fragflow.run.tried", slow)
    start = trained(policy="gpu-only").start
    assert start.trial_seconds >= 2.0
    began = time.perf_counter()
    whole = trained(policy="gpu-only").start
    assert whole.compile_seconds <= time.perf_counter() - began - 2.0


@pytest.mark.quick
def test_what_was_not_compared_is_not_called_equal() -> None:
    assert trained(probe=False).start.equality == (
        "rounding: bits were not compared (probe: switched off)"
    )
    assert trained(policy="gpu-only", probe=False).start.equality == "bitwise"  # nothing is cut


@pytest.mark.quick
def test_deterministic_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare_bits.Difference("the state's params", 3e-7)
    monkeypatch.setattr(compare_bits, "_difference", lambda *_: found)
    said = trained(workers=2, deterministic=True).start.equality
    assert said.startswith("rounding: the state's params has other digits")


@pytest.mark.quick
@pytest.mark.parametrize("other", ["compiled otherwise", "another processor"])
def test_bits_are_remembered_for_what_was_tried(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_bits, "_difference", lambda *_: None)
    assert trained().start.equality == "bitwise"
    found = compare_bits.Difference("the state's params", 3e-7)
    monkeypatch.setattr(compare_bits, "_difference", lambda *_: found)
    assert trained().start.equality == "bitwise"  # remembered
    if other == "compiled otherwise":
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    else:
        monkeypatch.setattr(compare_bits, "processor_of", lambda _: "another")
    assert trained().start.equality.startswith("rounding: the state's params")


@custom_vmap
def looks_if_many(x: jax.Array) -> jax.Array:
    return x


@looks_if_many.def_vmap
def _(size: int, _: Any, x: jax.Array) -> Any:
    return x + (0.5 if size >= 32 else 0.0) * jnp.mean(x, 0), True


class Looking(Drift):
    """Looks at its neighbours where there are more of them than the probe tries."""

    name = "looking"

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        return super().step(looks_if_many(state), action, key)


def test_an_environment_that_looks_at_many_neighbours_is_no_rounding() -> None:
    said = trained(environment=Looking(), workers=2, num_envs=32).start.equality
    assert said.startswith("different: environment.step gives other numbers in batches of this")
    assert trained(workers=2, num_envs=32).start.equality.startswith(("bitwise", "rounding"))


def _found(here: Any, there: Any) -> compare_bits.Difference | None:
    """What two runs of one iteration differ in, with this state each."""

    def engine(leaf: Any) -> Any:
        rows = [SimpleNamespace(metrics={}, episodes={})]
        return SimpleNamespace(run=lambda *_: rows, state=lambda: {"x": np.asarray(leaf)})

    fdg: Any = SimpleNamespace(program=SimpleNamespace(labels={"x": "x"}))
    return compare_bits._difference(engine(here), engine(there), fdg, 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.complex64])
def test_numbers_that_are_far_apart_are_no_rounding(dtype: Any) -> None:
    found = _found(jnp.ones(2, dtype), jnp.array([1, 3], dtype))
    assert found is not None
    assert found.distance is not None
    assert found.distance > equality.MAX_ROUNDING


@pytest.mark.quick
def test_whole_numbers_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _found(np.arange(3), np.arange(1, 4))
    assert found is not None
    monkeypatch.setattr(compare_bits, "_difference", lambda *_: found)
    assert trained().start.equality == (
        "different: the state's x differs from the undivided program's, and no float does"
    )


class Shared(HostDrift):
    """Draws for all environments of a worker at once."""

    draws_apart = False


@pytest.mark.quick
def test_what_one_worker_draws_is_what_is_drawn_undivided() -> None:
    one, two = (trained(environment=Shared(), workers=workers).start.equality for workers in (1, 2))
    assert not one.startswith("different")
    assert two.startswith("different: ")
    assert "draws random numbers for all environments of a worker at once" in two


def test_another_processor_was_not_compared() -> None:
    fdg: Any = SimpleNamespace(fragments={"a": SimpleNamespace(replicas=2)})
    here = processor_of(jax.devices()[0])
    workers = [("a", here), ("a", "another model")]
    assert equality.elsewhere("bitwise", fdg, workers[:1]) == "bitwise"
    assert equality.elsewhere("bitwise", fdg, workers) == (
        "rounding: a runs on another model, and bits were compared on another processor"
    )
    assert equality.elsewhere("different: so", fdg, workers) == "different: so"
    whole: Any = SimpleNamespace(fragments={"a": SimpleNamespace(replicas=1)})
    assert equality.elsewhere("bitwise", whole, workers[1:]) == "bitwise"


@dataclass(frozen=True)
class Scaled(OneUpdate):
    """Begins with other numbers, which the graph does not know."""

    scale: float = 1.0

    def init(self, env: ff.Environments, key: jax.Array) -> Any:
        state = super().init(env, key)
        return state._replace(params=jax.tree.map(lambda x: x * self.scale, state.params))


@pytest.mark.probed
def test_bits_that_were_the_same_for_some_numbers_are_compared_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compared: list[int] = []
    difference = compare_bits._difference

    def noted(a: Any, b: Any, fdg: Any, iteration: int) -> Any:
        compared.append(iteration)
        return difference(a, b, fdg, iteration)

    monkeypatch.setattr(compare_bits, "_difference", noted)

    def times(scale: float, seed: int = 0) -> int:
        compared.clear()
        algorithm = Scaled(scale=scale)
        experiment = Experiment(
            algorithm=algorithm, environment=Drift(), num_envs=4, total_steps=16, seed=seed
        )
        run(experiment, named_policy("single-learner-coarse"))
        return len(compared)

    assert times(1.0) > 0
    assert times(1.0) == 0, "it is remembered"
    assert times(1.5) > 0
    assert times(1.0, seed=1) > 0
