"""Bounded lag: workers act on parameters k iterations old, whatever the timing."""

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import ConfigError, PolicyError, RunError
from fragflow.graph.optimisations import all_but
from fragflow.policies import named_policy, synchronisation
from fragflow.run import Experiment, Outcome, Silent, run
from graph.toy import Delayed, Drift, Toy
from runtime.test_host import still

pytestmark = pytest.mark.quick
ITERATIONS = 12


def train(algorithm: Any, policy: str, sync: str | None, workers: int = 1, **more: Any) -> Outcome:
    num_envs = more.pop("num_envs", 8)
    experiment = Experiment(
        algorithm=algorithm,
        environment=more.pop("environment", None) or Drift(),
        num_envs=num_envs,
        total_steps=more.pop("iterations", ITERATIONS) * num_envs * 4,
        seed=7,
    )
    chosen = named_policy(policy)
    if sync is not None:
        chosen = replace(chosen, synchronisation=synchronisation(sync))
    return run(experiment, chosen, workers=workers, **more)


@functools.cache
def oracle(lag: int) -> Outcome:
    """The undivided program of an algorithm that keeps old parameters by itself."""
    return train(Delayed(lag=lag, disturb=still), "gpu-only", None)


def weights(outcome: Outcome) -> np.ndarray:
    return np.asarray(outcome.state.params["w"])


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_acts_on_parameters_of_that_age(lag: int, workers: int) -> None:
    late = train(Toy(disturb=still), "single-learner-coarse", f"lag={lag}", workers)
    # The oracle is another program, which XLA may round differently.
    np.testing.assert_allclose(weights(late), weights(oracle(lag)), rtol=1e-4, atol=1e-6)
    assert [row.metrics["reward"] for row in late.rows] == pytest.approx(
        [row.metrics["reward"] for row in oracle(lag).rows], rel=1e-5
    )
    assert [row.metrics["lag"] for row in late.rows] == [min(k, lag) for k in range(ITERATIONS)]


def test_lockstep_is_something_else() -> None:
    now = train(Toy(disturb=still), "single-learner-coarse", "lockstep")
    assert not np.allclose(weights(now), weights(oracle(1)), rtol=1e-2)


@pytest.mark.parametrize(("workers", "learners"), [(1, 1), (2, 1), (2, 2)])
def test_split_devices(workers: int, learners: int) -> None:
    apart = train(Toy(disturb=still), "split-device", None, workers, learners=learners)
    np.testing.assert_allclose(weights(apart), weights(oracle(1)), rtol=1e-5, atol=1e-6)
    assert apart.start.fdg is not None
    assert [f.first_device for f in apart.start.fdg.fragments.values()] == [0, workers]


def test_the_same_for_ppo_twice_and_with_more_workers() -> None:
    def params(workers: int) -> Any:
        algorithm = PPO(rollout_length=4, epochs=1, minibatches=2)
        environment = make_environment("CartPole-v1")
        outcome = train(
            algorithm,
            "single-learner-coarse",
            "lag=1",
            workers,
            environment=environment,
            num_envs=16,
        )
        return outcome.state.params

    first = params(1)
    jax.tree.map(np.testing.assert_array_equal, first, params(1))
    jax.tree.map(np.testing.assert_array_equal, first, params(2))


class StopAfter(Silent):
    """Ends a run when there are so many rows."""

    def __init__(self, count: int):
        self.left = count
        self.seen: list[int] = []

    def rows(self, rows: Any) -> None:
        self.left -= len(rows)
        self.seen += [row.iteration for row in rows]

    def should_stop(self) -> bool:
        return self.left <= 0


def test_stopped_early_all_fragments_come_to_the_same_iteration() -> None:
    observer = StopAfter(2)
    stopped = train(
        Toy(disturb=still), "single-learner-coarse", "lag=1", iterations=4000, observer=observer
    )
    made = len(stopped.rows)
    assert 2 <= made < 4000
    assert observer.seen == list(range(made))
    whole = train(Toy(disturb=still), "single-learner-coarse", "lag=1", iterations=made)
    np.testing.assert_array_equal(weights(stopped), weights(whole))
    np.testing.assert_array_equal(stopped.state.obs, whole.state.obs)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("gpu-only", "no message brings parameters"),
        ("single-learner-fine", "no message brings parameters"),
        ("central", "no message brings parameters"),
    ],
)
def test_policies_in_which_nothing_can_be_late(policy: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        train(Toy(disturb=still), policy, "lag=1", 2)


def test_eager_is_lockstep() -> None:
    with pytest.raises(ConfigError, match="lag=1 needs the local runtime"):
        train(Toy(disturb=still), "single-learner-coarse", "lag=1", runtime="eager")


def test_a_failure_is_named_and_ends_the_run() -> None:
    def fail(rewards: jax.Array) -> jax.Array:
        def refuse(x: np.ndarray) -> np.ndarray:
            raise ValueError("no such luck")

        return jax.pure_callback(refuse, rewards.mean(), rewards).astype(rewards.dtype)

    with pytest.raises(RunError, match=r"(?s)no such luck.*fragment "):
        train(Toy(report=fail), "single-learner-coarse", "lag=1", 2)


class Moving(NamedTuple):
    params: Any
    speed: Any
    env_state: Any
    obs: Any


@dataclass(frozen=True)
class WithSpeed(Toy):
    """Acts with other state too, which follows from the parameters or comes with them."""

    follows: bool = True
    is_same: bool = False

    def init(self, env: ff.Environments, key: jax.Array) -> Any:
        env_state, t = env.reset(key)
        return Moving(jnp.zeros((3, 2)), jnp.ones((3, 2)), env_state, t.obs)

    def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> tuple[Any, Any]:
        def interact(carry: Any, keys: jax.Array) -> tuple[Any, Any]:
            env_state, obs = carry
            action = self.act(state.params + state.speed, obs, keys)
            env_state, t = env.step(env_state, action)
            return (env_state, t.obs), (obs, action, t.reward)

        carry, seen = lax.scan(
            interact, (state.env_state, state.obs), env.keys(clock.key, self.length)
        )
        w = self.learn(state.params, *seen)
        if self.follows:
            speed = self.update(state.speed, 0.1 * w)
        else:
            w, speed = self.damped(w, state.speed)
        reward = {"reward": ff.all_mean(seen[2].mean())}
        return Moving(w, w if self.is_same else speed, *carry), reward

    @ff.component("learner.damped")
    def damped(self, w: jax.Array, speed: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 0.99 * w, 0.9 * speed


@pytest.mark.parametrize("follows", [False, True])
def test_joining_messages_does_not_decide_what_is_late(follows: bool) -> None:
    """Other state that goes the way of the parameters is as late as they are."""
    algorithm = WithSpeed(follows=follows)
    joined = train(algorithm, "single-learner-coarse", "lag=1", 2)
    apart = train(
        algorithm, "single-learner-coarse", "lag=1", 2, optimisations=all_but(["coalesce"])
    )
    assert joined.start.fdg is not None
    assert apart.start.fdg is not None
    assert len(apart.start.fdg.delays) == 2
    assert len(joined.start.fdg.delays) == 1 + follows
    jax.tree.map(np.testing.assert_array_equal, joined.state, apart.state)
    now = train(algorithm, "single-learner-coarse", "lockstep", 2)
    assert not np.array_equal(now.state.params, joined.state.params)


@pytest.mark.parametrize("sync", ["lag=1", "async"])
def test_one_value_for_two_leaves_of_the_state_is_refused(sync: str) -> None:
    """They begin as two, and the one that came late would be the first value of both."""
    with pytest.raises(PolicyError, match="params and speed are one array"):
        train(WithSpeed(is_same=True), "single-learner-coarse", sync, 2)
    train(WithSpeed(is_same=True), "single-learner-coarse", "lockstep", 2, iterations=2)
