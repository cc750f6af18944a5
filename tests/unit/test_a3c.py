"""A2C as one program: what its gradient is, what counts in it, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow.algorithms import algorithm_class
from fragflow.algorithms.a3c import A2C, A3C
from fragflow.errors import ConfigError
from unit.training import EqnPair, assert_all_learned, components, environments, iterate

SMALL = A2C(rollout_length=8, hidden=(8,))
STEPS, ENVS = 8, 3


def params_of(algorithm: Any) -> Any:
    network = ops.MLPActorCritic(algorithm.hidden)
    return network.init(jax.random.key(0), ff.Box(shape=(4,)), ff.Discrete(n=2))


def random_rollout() -> ops.Rollout:
    random = np.random.default_rng(0)
    obs = random.normal(size=(STEPS + 1, ENVS, 4)).astype(np.float32)
    no = np.zeros((STEPS, ENVS), bool)
    return ops.Rollout(
        obs=jnp.asarray(obs[:-1]),
        action=jnp.asarray(random.integers(2, size=(STEPS, ENVS)), jnp.int32),
        log_prob=None,
        next_obs=jnp.asarray(obs[1:]),
        reward=jnp.asarray(random.normal(size=(STEPS, ENVS)), jnp.float32),
        terminated=jnp.asarray(no),
        truncated=jnp.asarray(no),
        mask=None,
    )


def is_same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs)


@jax.jit
def gradient(rollout: ops.Rollout) -> Any:
    return SMALL.gradient(params_of(SMALL), rollout)[0]


def test_an_iteration_changes_every_parameter() -> None:
    before, after, metrics = iterate(SMALL, "Pendulum-v1", num_envs=4, iterations=2)
    assert set(metrics) == {"policy_loss", "value_loss", "entropy", "grad_norm"}
    assert_all_learned(before, after, metrics)


def test_gradients_and_updates_are_components_of_their_own() -> None:
    """What an asynchronous server needs: nothing else of the learner is between them."""
    assert components(SMALL, "CartPole-v1") == {
        "environment.step",
        "actor",
        "learner.gradient",
        "learner.update",
    }


def test_the_gradient_is_that_of_the_paper() -> None:
    """Returns and advantages are constants: the critic's say on the future gets no gradient."""
    rollout, params, network = random_rollout(), params_of(SMALL), ops.MLPActorCritic(SMALL.hidden)
    rollout = rollout._replace(terminated=rollout.terminated.at[4, 1].set(True))
    value, following = (network.value(params["critic"], x) for x in (rollout.obs, rollout.next_obs))
    advantage = np.zeros((STEPS, ENVS), np.float32)
    later = np.zeros(ENVS, np.float32)
    for t in reversed(range(STEPS)):
        goes_on = 1.0 - np.asarray(rollout.terminated[t], np.float32)
        delta = rollout.reward[t] + SMALL.gamma * goes_on * following[t] - value[t]
        advantage[t] = later = delta + SMALL.gamma * SMALL.gae_lambda * goes_on * later

    def loss(params: Any) -> jax.Array:
        policy = network.policy(params["actor"], rollout.obs)
        error = network.value(params["critic"], rollout.obs) - (advantage + value)
        return jnp.mean(
            -advantage * policy.log_prob(rollout.action)
            + SMALL.value_coef * 0.5 * error**2
            - SMALL.entropy_coef * policy.entropy()
        )

    assert is_same(gradient(rollout), jax.grad(loss)(params))


def test_the_true_successor_counts_unless_the_episode_terminated() -> None:
    rollout = random_rollout()
    last = rollout._replace(next_obs=rollout.next_obs.at[3, 0].add(1.0))
    truncated = rollout.truncated.at[3, 0].set(True)
    assert not is_same(
        gradient(rollout._replace(truncated=truncated)),
        gradient(last._replace(truncated=truncated)),
    )
    assert is_same(
        gradient(rollout._replace(terminated=truncated)),
        gradient(last._replace(terminated=truncated)),
    )


def test_steps_at_which_nothing_happened_do_not_count() -> None:
    """A step spent on starting an episode, after one that ended."""
    rollout = random_rollout()
    rollout = rollout._replace(
        truncated=rollout.truncated.at[3, 0].set(True),
        mask=jnp.ones((STEPS, ENVS), bool).at[4, 0].set(False),
    )
    other = rollout._replace(
        obs=rollout.obs.at[4, 0].add(1.0),
        action=rollout.action.at[4, 0].set(1 - rollout.action[4, 0]),
        reward=rollout.reward.at[4, 0].add(1.0),
    )
    assert is_same(gradient(rollout), gradient(other))
    assert not is_same(gradient(rollout._replace(mask=None)), gradient(other._replace(mask=None)))


def test_large_gradients_are_scaled_down_together() -> None:
    params = params_of(SMALL)
    learner = ops.Learner(params, SMALL._optimiser.init(params))

    @jax.jit
    def update(size: float) -> tuple[ops.Learner, jax.Array]:
        grads = jax.tree.map(lambda p: jnp.full_like(p, size), params)
        return SMALL.update(learner, grads, jnp.float32(0.0))

    large, larger = update(100.0), update(1000.0)
    assert float(larger[1]) == pytest.approx(10 * float(large[1]), rel=1e-3)
    assert is_same(large[0].params, larger[0].params)
    assert not is_same(update(1e-4)[0].params, large[0].params)


def test_it_acts_greedily_unless_it_explores() -> None:
    params = params_of(SMALL)

    @jax.jit
    @jax.vmap
    def actions(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        greedy, _ = SMALL.policy(params, jnp.ones(4), None, key)
        exploring, _ = SMALL.policy(params, jnp.ones(4), None, key, explore=True)
        return greedy, exploring

    greedy, exploring = actions(jax.random.split(jax.random.key(1), 50))
    assert len(np.unique(greedy)) == 1
    assert len(np.unique(exploring)) == 2


def test_both_names_lead_to_it() -> None:
    assert algorithm_class("a2c") is A2C
    assert algorithm_class("A3C") is A3C
    assert {**vars(A3C())} == {**vars(A2C())}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rollout_length": 0}, "rollout_length = 0: expected at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate = nan: expected above 0"),
        ({"gae_lambda": 1.5}, "gae_lambda = 1.5: expected between 0 and 1"),
        ({"decay": 1.0}, "decay = 1.0: expected 0 or more, and below 1"),
        ({"value_coef": -0.1}, "value_coef = -0.1: expected 0 or more"),
        ({"hidden": (64, 0)}, "hidden"),
    ],
)
def test_impossible_hyperparameters_are_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        A2C(**wrong)


def test_several_agents_are_refused() -> None:
    env = environments(EqnPair(), 2)
    with pytest.raises(ConfigError, match="A3C is for one agent, but there are 2"):
        A3C().init(env, jax.random.key(0))
