"""IMPALA as one program: in step it is A2C, behind it corrects, and it refuses what cannot work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops
from fragflow.algorithms import algorithm_class
from fragflow.algorithms.a3c import A2C
from fragflow.algorithms.impala import IMPALA
from fragflow.errors import ConfigError
from unit.test_a3c import ENVS, STEPS, is_same, params_of, random_rollout
from unit.training import EqnPair, assert_all_learned, components, environments, iterate

SMALL = IMPALA(rollout_length=8, hidden=(8,))


def rollout_by(actor: Any) -> ops.Rollout:
    """A rollout whose actions were as likely as `actor` says."""
    rollout = random_rollout()
    policy = ops.MLPActorCritic(SMALL.hidden).policy(actor, rollout.obs)
    return rollout._replace(log_prob=policy.log_prob(rollout.action))


@jax.jit
def gradient(rollout: ops.Rollout) -> Any:
    return SMALL.gradient(params_of(SMALL), rollout)


def other_actor() -> Any:
    """Somewhat different parameters, as actors with a lag have."""
    actor = params_of(SMALL)["actor"]
    leaves, structure = jax.tree.flatten(actor)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.5 * jax.random.normal(key, p.shape) for key, p in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, jax.tree.map(jnp.add, leaves, noise))


def test_an_iteration_changes_every_parameter() -> None:
    before, after, metrics = iterate(SMALL, "Pendulum-v1", num_envs=4, iterations=2)
    assert set(metrics) == {"policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm"}
    assert_all_learned(before, after, metrics)
    # Actors and learner are in step here.
    np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-6)


def test_its_components() -> None:
    learner = {"learner.gradient", "learner.update"}
    assert components(SMALL, "CartPole-v1") == {"environment.step", "actor", *learner}


def test_in_step_the_gradient_is_that_of_a2c() -> None:
    rollout = rollout_by(params_of(SMALL)["actor"])
    a2c = A2C(rollout_length=8, hidden=(8,), gae_lambda=SMALL.trace_lambda)
    expected = jax.jit(a2c.gradient)(params_of(a2c), random_rollout())[0]
    grads, info = gradient(rollout)
    assert is_same(grads, expected)
    assert float(info["approx_kl"]) == pytest.approx(0.0, abs=1e-6)


def test_behind_the_gradient_is_that_of_corrected_targets() -> None:
    params, network = params_of(SMALL), ops.MLPActorCritic(SMALL.hidden)
    rollout = rollout_by(other_actor())
    now, following = (network.value(params["critic"], x) for x in (rollout.obs, rollout.next_obs))
    learned = network.policy(params["actor"], rollout.obs).log_prob(rollout.action)
    target, advantage = ops.vtrace(
        log_ratio=learned - rollout.log_prob,
        reward=rollout.reward,
        value=now,
        next_value=following,
        terminated=rollout.terminated,
        done=rollout.terminated,
        gamma=SMALL.gamma,
        trace_lambda=SMALL.trace_lambda,
    )

    def loss(params: Any) -> jax.Array:
        policy = network.policy(params["actor"], rollout.obs)
        error = network.value(params["critic"], rollout.obs) - target
        return jnp.mean(
            -advantage * policy.log_prob(rollout.action)
            + SMALL.value_coef * 0.5 * error**2
            - SMALL.entropy_coef * policy.entropy()
        )

    grads, info = gradient(rollout)
    assert is_same(grads, jax.grad(loss)(params))
    assert not is_same(grads, gradient(rollout_by(params["actor"]))[0])
    assert float(info["approx_kl"]) > 0.01


def test_the_true_successor_counts_unless_the_episode_terminated() -> None:
    rollout = rollout_by(other_actor())
    ended = rollout.truncated.at[3, 0].set(True)
    elsewhere = rollout.next_obs.at[3, 0].add(1.0)
    for name, counts in (("truncated", True), ("terminated", False)):
        here = rollout._replace(**{name: ended})
        same = is_same(gradient(here)[0], gradient(here._replace(next_obs=elsewhere))[0])
        assert same is not counts


def test_steps_at_which_nothing_happened_do_not_count() -> None:
    rollout = rollout_by(other_actor())
    rollout = rollout._replace(
        terminated=rollout.terminated.at[3, 0].set(True),
        mask=jnp.ones((STEPS, ENVS), bool).at[4, 0].set(False),
    )
    other = rollout._replace(
        obs=rollout.obs.at[4, 0].add(1.0),
        log_prob=rollout.log_prob.at[4, 0].add(1.0),
        reward=rollout.reward.at[4, 0].add(1.0),
    )
    assert is_same(gradient(rollout)[0], gradient(other)[0])
    unmasked = [r._replace(mask=None) for r in (rollout, other)]
    assert not is_same(*(gradient(r)[0] for r in unmasked))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rollout_length": 0}, "rollout_length = 0: expected at least 1"),
        ({"clip_rho": 0.0}, "clip_rho = 0.0: expected above 0"),
        ({"trace_lambda": -0.5}, "trace_lambda = -0.5: expected between 0 and 1"),
    ],
)
def test_impossible_hyperparameters_are_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IMPALA(**wrong)


def test_several_agents_are_refused() -> None:
    env = environments(EqnPair(), 2)
    with pytest.raises(ConfigError, match="IMPALA is for one agent, but there are 2"):
        algorithm_class("impala")().init(env, jax.random.key(0))
