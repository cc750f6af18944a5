"""Environments on the host: the same results wherever they run, and faults with a name."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.api.host import HostStep
from fragflow.errors import EnvironmentFault, GraphError, PolicyError
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run
from graph.toy import State, Toy

pytestmark = pytest.mark.quick


@dataclass(frozen=True)
class HostDrift:
    """A point that actions push around, in numpy; every fourth step starts anew."""

    name: str = "host drift"
    disturb: Callable[[int, HostStep], HostStep] = lambda step, answer: answer
    observation = ff.Box(shape=(3,))
    action = ff.Discrete(n=2)
    has_mask = False
    draws_apart = True

    def open(self, ids: Sequence[int]) -> "HostDriftBatch":
        return HostDriftBatch(self)


class HostDriftBatch:
    def __init__(self, environment: HostDrift):
        self.environment = environment
        self.steps = 0
        self.is_closed = False

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.rngs = [np.random.default_rng(int(seed)) for seed in seeds]
        self.place = self._fresh()
        return self.place.copy()

    def _fresh(self) -> np.ndarray:
        return np.stack([rng.normal(size=3) for rng in self.rngs]).astype(np.float32)

    def step(self, action: np.ndarray) -> HostStep:
        self.steps += 1
        successor = (0.9 * self.place + 0.1 * (action[:, None] - 0.5)).astype(np.float32)
        ends = np.full(len(self.rngs), self.steps % 4 == 0)
        self.place = self._fresh() if ends[0] else successor
        reward = -np.abs(successor).sum(1)
        answer = HostStep(self.place.copy(), successor, reward, np.zeros_like(ends), ends)
        return self.environment.disturb(self.steps, answer)

    def close(self) -> None:
        self.is_closed = True


def still(env: ff.Environments, key: jax.Array) -> jax.Array:
    return jnp.zeros(3)


def train(
    policy: str, workers: int = 1, environment: Any = None, runtime: Any = "local", **options: Any
) -> Outcome:
    experiment = Experiment(
        algorithm=options.pop("algorithm", None) or Toy(disturb=still),
        environment=environment or HostDrift(),
        num_envs=8,
        total_steps=3 * 4 * 8,
        seed=5,
    )
    return run(experiment, named_policy(policy), workers=workers, runtime=runtime, **options)


@functools.cache
def alone() -> Outcome:
    return train("single-learner-coarse")


def params(outcome: Outcome) -> np.ndarray:
    return np.asarray(outcome.state.params["w"])


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("policy", ["single-learner-coarse", "single-learner-fine", "environments"])
def test_the_same_wherever_environments_are(policy, workers):
    outcome = train(policy, workers)
    np.testing.assert_array_equal(params(outcome), params(alone()))
    assert [r.return_sum for r in outcome.rows] == [r.return_sum for r in alone().rows]
    assert outcome.messages > 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_where_workers_compute_gradients(workers):
    np.testing.assert_allclose(params(train("central", workers)), params(alone()), rtol=1e-4)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_same_to_rounding_with_replicated_learners(workers):
    outcome = train("multi-learner", workers)
    np.testing.assert_allclose(params(outcome), params(alone()), rtol=1e-4)


def test_the_same_without_optimisations_and_uncompiled():
    from fragflow.graph.optimisations import Optimisations

    plain = train(
        "single-learner-fine",
        2,
        optimisations=Optimisations(hoist=False, sink=False, coalesce=False),
    )
    np.testing.assert_array_equal(params(plain), params(alone()))
    eager = train("single-learner-coarse", runtime="eager")
    np.testing.assert_allclose(params(eager), params(alone()), rtol=1e-5)


def test_episodes_are_counted_on_the_host():
    rows = alone().rows
    assert [row.episodes for row in rows] == [8, 8, 8]
    assert [row.length_sum for row in rows] == [32, 32, 32]


def test_a_policy_that_compiles_the_environment_is_refused():
    with pytest.raises(PolicyError, match=r"drift is not a JAX program.*single-learner-coarse"):
        train("gpu-only")


def raises(step: int, answer: HostStep) -> HostStep:
    if step == 6:
        raise ValueError("the motor is hot")
    return answer


def wrong_shape(step: int, answer: HostStep) -> HostStep:
    return answer._replace(reward=answer.reward[:-1]) if step == 6 else answer


def wrong_type(step: int, answer: HostStep) -> HostStep:
    return answer._replace(obs=answer.obs.astype(np.float64)) if step == 6 else answer


def not_a_number(step: int, answer: HostStep) -> HostStep:
    if step == 6:
        answer.obs[1, 2] = np.nan
    return answer


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (raises, r"failed in step at step 6: ValueError: the motor is hot"),
        (wrong_shape, r"float32\[3\] from step at step 6: expected float32\[4\]"),
        (wrong_type, r"float64\[4, 3\] from step at step 6: expected float32\[4, 3\]"),
        (not_a_number, r"environment [15] returned NaN or infinity from step at step 6"),
    ],
)
def test_a_fault_names_environment_step_and_cause(fault, said):
    with pytest.raises(EnvironmentFault, match=said) as error:
        train("single-learner-fine", 2, HostDrift(disturb=fault))
    assert "host drift" in str(error.value)


def test_an_environment_that_hangs_ends_the_run():
    def hangs(step: int, answer: HostStep) -> HostStep:
        if step == 6:
            time.sleep(3.0)
        return answer

    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match="have not answered for 1 seconds, at step 6"):
        train(
            "single-learner-coarse", environment=HostDrift(disturb=hangs), stall_timeout_seconds=1
        )
    assert time.monotonic() - began < 30


@dataclass(frozen=True)
class Twice(Toy):
    """Goes on from an old state of its environments."""

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        new, metrics = Toy.step(self, env, state, clock)
        return new._replace(env_state=state.env_state), metrics


def test_going_back_to_an_old_state_is_refused():
    with pytest.raises(EnvironmentFault, match="cannot go back"):
        train("single-learner-coarse", algorithm=Twice())


@dataclass(frozen=True)
class Looping(Toy):
    """Steps its environments where nothing can be cut."""

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def body(env_state: Any) -> Any:
            action = self.act(state.params["w"], state.obs, env.keys(clock.key))
            return env.step(env_state, action)[0]

        env_state = lax.fori_loop(0, clock.iteration, lambda _, s: body(s), state.env_state)
        return Toy.step(self, env, state._replace(env_state=env_state), clock)


def test_a_while_loop_around_the_host_is_refused_with_its_line():
    with pytest.raises(GraphError, match=r"the while at .*test_host.py.* runs on the host"):
        train("single-learner-coarse", algorithm=Looping())


class TestGymnasium:
    """The adapter, on environments of Gymnasium itself."""

    def test_truncation_keeps_the_true_last_observation(self):
        environment = ff_environment("CartPole-v1", vectorization="sync", max_episode_steps=3)
        batch = environment.open(range(2))
        obs = batch.reset(np.array([1, 2]))
        for t in range(2):
            batch.step(np.array([t % 2, (t + 1) % 2]))
        step = batch.step(np.array([0, 1]))
        assert step.truncated.all()
        assert not step.terminated.any()
        assert (step.obs != step.next_obs).any(1).all()
        assert np.abs(step.obs).max() <= 0.05  # where a new episode starts
        assert obs.dtype == np.float32
        batch.close()

    def test_an_environment_depends_on_its_seed_alone(self):
        environment = ff_environment("Acrobot-v1", vectorization="sync")

        def play(seeds: list[int]) -> np.ndarray:
            batch = environment.open(range(len(seeds)))
            seen = [batch.reset(np.array(seeds))]
            seen += [batch.step(np.full(len(seeds), t % 3)).obs for t in range(20)]
            batch.close()
            return np.stack(seen, 1)

        np.testing.assert_array_equal(play([3, 4, 5])[1], play([4])[0])

    def test_restarting_at_the_next_step_is_masked(self):
        environment = ff_environment("CartPole-v1", vectorization="vector")
        assert environment.has_mask
        batch = environment.open(range(4))
        batch.reset(np.arange(4))
        was_done = np.zeros(4, bool)
        for _ in range(40):
            step = batch.step(np.ones(4, np.int32))
            assert step.mask is not None
            np.testing.assert_array_equal(step.mask, ~was_done)
            assert not step.reward[was_done].any()
            was_done = step.terminated | step.truncated
        batch.close()

    def test_ppo_learns_from_a_vector_environment(self):
        environment = ff_environment("CartPole-v1")
        experiment = Experiment(
            algorithm=PPO(), environment=environment, num_envs=8, total_steps=20_000
        )
        outcome = run(experiment, named_policy("single-learner-coarse"))
        assert outcome.start.equality == "bitwise"  # one worker draws for all, as undivided
        assert outcome.mean_return is not None
        assert outcome.mean_return > 40.0
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))


def ff_environment(name: str, **arguments: Any) -> Any:
    from fragflow.environments import make_environment

    return make_environment(f"gymnasium:{name}", **arguments)
