"""Faults end a run with one named cause; the same results by every way of running."""

import functools
import threading
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow.errors import ConfigError, NonFiniteError, RunError
from fragflow.planned_run import iterations_for
from fragflow.policies import Deployment, named_policy
from fragflow.run import Experiment, Outcome, Silent, run
from fragflow.runtime.drivers.channels import Closed, QueueChannels
from fragflow.runtime.programs import devices
from graph.toy import Drift, State, Toy

pytestmark = pytest.mark.least_time


@functools.cache
def train(policy: str, workers: int = 1, runtime: Any = "local", iterations: int = 3) -> Outcome:
    steps = iterations * 4 * 12
    experiment = Experiment(
        algorithm=Toy(), environment=Drift(), num_envs=12, total_steps=steps, seed=3
    )
    return run(experiment, named_policy(policy), workers=workers, runtime=runtime)


def params(outcome: Outcome) -> np.ndarray:
    return np.asarray(outcome.state.params["w"])


def test_eager_gives_the_same_to_rounding():
    fused, eager = train("gpu-only"), train("gpu-only", runtime="eager")
    np.testing.assert_allclose(params(eager), params(fused), rtol=1e-5)
    assert eager.start.equality.startswith("rounding")


def test_eager_shows_values_while_they_are_computed():
    seen = []

    @dataclass(frozen=True)
    class Printing(Toy):
        def update(self, w: jax.Array, grads: jax.Array) -> jax.Array:
            seen.append(float(grads.sum()))  # impossible while tracing
            return w - grads

    experiment = Experiment(
        algorithm=Printing(), environment=Drift(), num_envs=2, total_steps=8, seed=0
    )
    run(experiment, named_policy("gpu-only"), runtime="eager")
    assert len(seen) == 4
    assert all(np.isfinite(seen))


class GradientProbe(Toy):
    """Keeps gradients instead of using them: clipping and Adam would hide a wrong factor."""

    def update(self, w: jax.Array, grads: jax.Array) -> jax.Array:
        return Toy.update(self, w, grads) * 0.0 + grads


@functools.cache
def gradient(policy: str, workers: int) -> np.ndarray:
    experiment = Experiment(
        algorithm=GradientProbe(), environment=Drift(), num_envs=12, total_steps=48, seed=1
    )
    return params(run(experiment, named_policy(policy), workers=workers))


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("policy", ["gpu-only", "multi-learner", "central"])
def test_gradients_of_replicated_learners(policy, workers):
    expected = gradient("gpu-only", 1)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(gradient(policy, workers), expected, rtol=1e-5, atol=1e-7)


def test_many_environment_workers_serve_a_group_of_learners():
    experiment = Experiment(
        algorithm=Toy(), environment=Drift(), num_envs=12, total_steps=144, seed=3
    )
    outcome = run(experiment, named_policy("environments"), workers=4, learners=2)
    np.testing.assert_allclose(params(outcome), params(train("gpu-only")), rtol=1e-5)


def test_an_exception_in_a_fragment_stops_all_and_names_the_cause():
    def explode(reward: np.ndarray) -> np.ndarray:
        raise ValueError("the world ended")

    class Broken(Drift):
        def step(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
            step = Drift.step(self, state, action, key)
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            reward = jax.pure_callback(explode, shape, step.reward, vmap_method="sequential")
            return step._replace(reward=reward)

    experiment = Experiment(
        algorithm=Toy(), environment=Broken(), num_envs=4, total_steps=64, seed=0
    )
    before = threading.active_count()
    with pytest.raises(RunError) as error:
        run(experiment, named_policy("single-learner-fine"), workers=2)
    text = str(error.value)
    assert "the world ended" in text
    assert "fragment environment[" in text
    assert "toy.py" in text
    assert threading.active_count() <= before + 1


def test_a_message_that_never_comes_is_an_error_in_time():
    channels = QueueChannels(timeout_seconds=0.05)
    channel = channels.open("m", 0, 0)
    with pytest.raises(RunError, match="did not come within 0 seconds"):
        channel.get("message m of learner")
    channels.close()
    with pytest.raises(Closed):
        channel.get("message m of learner")


def test_nan_ends_the_run_with_its_metric():
    algorithm = Toy(report=lambda rewards: rewards.sum() * jnp.nan)
    experiment = Experiment(
        algorithm=algorithm, environment=Drift(), num_envs=2, total_steps=8, seed=0
    )
    with pytest.raises(NonFiniteError, match="metric reward is nan at iteration 0"):
        run(experiment, named_policy("gpu-only"))


def test_stopping_early_keeps_what_was_done():
    class StopAtOnce(Silent):
        def __init__(self) -> None:
            self.count = 0

        def rows(self, rows: Any) -> None:
            self.count += len(rows)

        def should_stop(self) -> bool:
            return self.count >= 1

    experiment = Experiment(
        algorithm=Toy(), environment=Drift(), num_envs=2, total_steps=8000, seed=0
    )
    outcome = run(experiment, named_policy("gpu-only"), observer=StopAtOnce())
    assert len(outcome.rows) == 1
    assert isinstance(outcome.state, State)


def test_more_devices_than_there_are():
    with pytest.raises(ConfigError, match="needs 16 devices") as error:
        devices.prepare_devices(named_policy("gpu-only"), Deployment(workers=16))
    assert "JAX has already started with 4" in str(error.value)
    assert "JAX_NUM_CPU_DEVICES=16" in str(error.value)


@pytest.mark.parametrize(("total", "expected"), [(1, 1), (8, 1), (9, 2), (16, 2)])
def test_total_steps_are_rounded_up_to_iterations(total, expected):
    assert iterations_for(total, 8) == expected


def test_arithmetic_outside_components_is_not_called_bitwise():
    assert train("single-learner-coarse", 2).start.equality.startswith("rounding: what ")
    assert train("single-learner-coarse", 1).start.equality == "bitwise"
