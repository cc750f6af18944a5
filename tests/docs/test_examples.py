"""The examples learn the same under every policy, and stay short."""

import functools
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow.policies import POLICIES, named_policy
from fragflow.run import Experiment, Outcome, run

EXAMPLES = Path(__file__).parents[2] / "examples"

QUICK = [
    ("single-learner-coarse", 1, 1),
    ("single-learner-coarse", 2, 1),
    ("single-learner-fine", 2, 1),
    ("multi-learner", 2, 1),
    ("gpu-only", 2, 1),
    ("environments", 4, 2),
    ("central", 2, 1),
]
"""(policy, workers, learners)"""
ALL = [
    *((policy, workers, 1) for policy in POLICIES for workers in (1, 2, 4)),
    ("environments", 2, 2),
]
ONE_LEARNER = ("single-learner-coarse", "single-learner-fine", "environments")
CASES = [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in ALL if c not in QUICK)]


class Line:
    """A point on a line that should stay near zero: as little to compile as possible."""

    name = "line"
    observation = ff.Box(shape=(2,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.stack([jax.random.uniform(key, minval=-1.0, maxval=1.0), jnp.float32(0.0)])
        return state, state

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> ff.Step:
        del key
        position, time = state[0] + 0.2 * (2 * action - 1), state[1] + 1.0
        state = jnp.stack([position, time])
        far = jnp.abs(position)
        return ff.Step(state, state, -far, terminated=far > 1.5, truncated=time >= 5.0)


@functools.cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def algorithm(name: str) -> Any:
    cls = {"reinforce": "Reinforce", "evolution_strategy": "EvolutionStrategy"}[name]
    network = ff.ops.MLPActorCritic((4,))
    return getattr(example(name), cls)(rollout_length=4, network=network)


def trained(name: str, policy: ff.Policy, workers: int = 1, learners: int = 1) -> Outcome:
    experiment = Experiment(
        algorithm=algorithm(name), environment=Line(), num_envs=8, total_steps=64, seed=1
    )
    return run(experiment, policy, workers=workers, learners=learners)


@functools.cache
def undivided(name: str) -> Outcome:
    return trained(name, named_policy("gpu-only"))


def assert_same_parameters(outcome: Outcome, reference: Outcome, *, bitwise: bool) -> None:
    ours, theirs = (jax.tree.leaves(o.state.params) for o in (outcome, reference))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert not bitwise or np.array_equal(a, b), "equal to rounding, but not bitwise"


@pytest.mark.parametrize("name", ["reinforce", "evolution_strategy"])
@pytest.mark.parametrize(("policy", "workers", "learners"), CASES)
def test_policies_do_not_change_learning(
    name: str, policy: str, workers: int, learners: int
) -> None:
    outcome = trained(name, named_policy(policy), workers, learners)
    one_learner = learners == 1 and policy in ONE_LEARNER
    assert_same_parameters(outcome, undivided(name), bitwise=workers == 1 or one_learner)
    assert (outcome.messages > 0) == (policy != "gpu-only")


@pytest.mark.parametrize("name", ["reinforce", "evolution_strategy"])
def test_parameters_change(name: str) -> None:
    """Otherwise the comparisons above would show nothing."""
    outcome = undivided(name)
    assert outcome.episodes > 0
    # Biases are zero at first.
    biases = [leaf for leaf in jax.tree.leaves(outcome.state.params) if leaf.ndim == 1]
    assert biases
    assert all(np.all(bias != 0.0) for bias in biases)


def test_own_policy_does_not_change_learning() -> None:
    outcome = trained("reinforce", example("own_policy").THREE_WAY, workers=2)
    assert_same_parameters(outcome, undivided("reinforce"), bitwise=True)
    assert outcome.start.fdg is not None
    assert list(outcome.start.fdg.fragments) == ["environment", "actor", "learner"]


def test_own_policy_is_printed() -> None:
    picture = example("own_policy").compiled(workers=2).show()
    assert re.findall(r"^fragment (\w+) .2 @", picture, re.M) == ["environment", "actor"]
    assert re.findall(r"^message ([a-z>]+)", picture, re.M)


def test_an_engine_of_one_s_own_computes_what_xla_does() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    xla, onnx = (example("onnx_network").train(how, total_steps=256) for how in ("xla", "onnx"))
    said = onnx.implementations["example.layers"]
    assert re.match(r"onnx in environment\+actor, xla \(onnx did not fit: .*\) in learner", said)
    assert onnx.equality == "rounding: example.layers=onnx"
    for a, b in zip(jax.tree.leaves(onnx.state), jax.tree.leaves(xla.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-3, atol=5e-3)


@pytest.mark.filterwarnings("ignore")  # other libraries' imports
@pytest.mark.parametrize(
    ("name", "library"), [("Game2048", "pgx"), ("Craftax", "craftax"), ("Snake", "jumanji")]
)
def test_environments_of_other_libraries(name: str, library: str) -> None:
    """Where somebody has installed them."""
    pytest.importorskip(library)
    environment = getattr(example("other_libraries"), name)()

    def play(ids: jax.Array) -> ff.Timestep:
        env = ff.Environments(environment, ids, 2)
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, jnp.zeros(2, jnp.int32))[1]

    step = jax.eval_shape(play, jnp.arange(2))
    assert step.obs.shape == (2, *environment.observation.shape)
    assert step.obs.dtype == environment.observation.dtype


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80
