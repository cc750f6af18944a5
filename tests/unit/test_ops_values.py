"""n-step transitions, tanh-normal distributions, target networks and losses against oracles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
import scipy.stats

import fragflow.api as ff
from fragflow import ops

pytestmark = pytest.mark.usefixtures("explicit_promotion")

GAMMA = 0.9


def rollout(length: int, envs: int, ends: float) -> ops.Steps:
    random = np.random.default_rng(3)
    terminated = random.random((length, envs)) < ends / 2
    truncated = (random.random((length, envs)) < ends / 2) & ~terminated

    def number(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=(length, envs, *shape)), jnp.float32)

    return ops.Steps(
        obs=number(2),
        action=number(),
        reward=number(),
        next_obs=number(2),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
    )


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("ends", [0.0, 0.3, 1.0])
def test_n_step_equals_the_definition(n: int, ends: float) -> None:
    steps = rollout(length=20, envs=4, ends=ends)
    found = jax.jit(ops.n_step, static_argnums=(1, 2))(steps, n, GAMMA)
    assert found.reward.shape == (21 - n, 4)
    steps, found = jax.tree.map(np.asarray, (steps, found))
    for t in range(21 - n):
        for env in range(4):
            total, last = 0.0, t
            for k in range(n):
                last = t + k
                total += GAMMA**k * float(steps.reward[last, env])
                if steps.terminated[last, env] or steps.truncated[last, env]:
                    break
            discount = 0.0 if steps.terminated[last, env] else GAMMA ** (last - t + 1)
            np.testing.assert_allclose(found.reward[t, env], total, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.discount[t, env], discount, rtol=1e-5)
            np.testing.assert_array_equal(found.next_obs[t, env], steps.next_obs[last, env])
            np.testing.assert_array_equal(found.obs[t, env], steps.obs[t, env])


def test_n_step_returns_are_those_of_rlax() -> None:
    steps = rollout(length=30, envs=1, ends=0.0)
    terminated = np.random.default_rng(0).random((30, 1)) < 0.2
    steps = steps._replace(terminated=jnp.asarray(terminated))
    value = jnp.asarray(np.random.default_rng(1).normal(size=30), jnp.float32)
    expected: Any = rlax.n_step_bootstrapped_returns(
        steps.reward[:, 0], GAMMA * (1.0 - terminated[:, 0]), value, n=3
    )
    # The value of an observation is looked up by its position in time.
    position = jnp.arange(30, dtype=jnp.float32)[:, None, None]
    found = ops.n_step(steps._replace(next_obs=position), 3, GAMMA)
    successor = value[found.next_obs[:, 0, 0].astype(int)]
    np.testing.assert_allclose(
        found.reward[:, 0] + found.discount[:, 0] * successor, expected[:28], rtol=1e-4, atol=1e-5
    )


def test_steps_that_did_not_happen_have_no_weight() -> None:
    steps = rollout(length=6, envs=2, ends=0.3)
    mask = jnp.asarray(np.random.default_rng(0).random((6, 2)) < 0.5)
    np.testing.assert_array_equal(ops.n_step(steps._replace(mask=mask), 2, GAMMA).weight, mask[:5])
    earlier = ops.no_steps(jax.tree.map(lambda x: x[0], steps), 2)
    joined = ops.n_step(ops.join_steps(earlier, steps), 3, GAMMA)
    np.testing.assert_array_equal(joined.weight, [[0, 0]] * 2 + [[1, 1]] * 4)
    alone = ops.n_step(steps, 3, GAMMA)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2:], b), joined, alone)


def test_a_timestep_becomes_a_step() -> None:
    no = jnp.zeros(2, bool)
    t = ff.Timestep(jnp.ones((2, 1)), jnp.zeros((2, 1)), jnp.ones(2), ~no, no)
    step = ops.steps_of(jnp.full((2, 1), 5.0), jnp.zeros(2), t)
    np.testing.assert_array_equal(step.next_obs, t.next_obs)
    assert step.mask is None


def test_tanh_normal_has_the_density_of_a_squashed_normal() -> None:
    """Against scipy, and against the definition where that does not round to infinity."""
    mean, log_std = jnp.array([[0.3, -0.8]]), jnp.array([[-0.5, 0.2]])
    noise = jnp.array([[0.7, -1.1]])
    action, log_prob = ops.TanhNormal(mean, log_std).transform(noise)
    inner = np.arctanh(np.asarray(action, np.float64))
    normal: Any = scipy.stats.norm(np.asarray(mean), np.exp(np.asarray(log_std)))
    expected = normal.logpdf(inner) - np.log(1.0 - np.tanh(inner) ** 2)
    np.testing.assert_allclose(log_prob, expected.sum(-1), rtol=1e-4)
    assert ops.TanhNormal(mean, log_std).mode().shape == (1, 2)


def test_tanh_normal_is_finite_far_out() -> None:
    for mean in (-40.0, 40.0):

        def log_prob(mean: jax.Array) -> jax.Array:
            distribution = ops.TanhNormal(mean, jnp.zeros(1))
            return distribution.transform(jnp.array([0.5]))[1]

        value, slope = jax.value_and_grad(log_prob)(jnp.array([mean]))
        # log(1 - tanh(x)^2) goes to log 4 - 2|x|.
        expected = -0.125 - 0.5 * np.log(2 * np.pi) - np.log(4.0) + 2 * abs(mean + 0.5)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(slope, [2.0 * np.sign(mean)], rtol=1e-5)


def test_tanh_normal_probabilities_sum_to_one() -> None:
    grid = np.linspace(-6, 6, 20_001, dtype=np.float32)[:, None]
    distribution = ops.TanhNormal(jnp.array([[0.4]]), jnp.array([[-0.3]]))
    action, log_prob = distribution.transform(jnp.asarray(grid))
    total = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), np.asarray(action)[:, 0])
    np.testing.assert_allclose(total, 1.0, atol=1e-3)


def test_huber_is_that_of_rlax() -> None:
    error = jnp.linspace(-4.0, 4.0, 41)
    for delta in (0.5, 1.0):
        np.testing.assert_allclose(
            ops.huber(error, delta), rlax.huber_loss(error, delta), rtol=1e-5, atol=1e-6
        )
    slope = jax.vmap(jax.grad(ops.huber))(error)
    np.testing.assert_allclose(slope, jnp.clip(error, -1.0, 1.0), atol=1e-6)


def test_polyak_is_the_incremental_update_of_optax() -> None:
    target, online = {"a": jnp.ones(3)}, {"a": jnp.arange(3.0)}
    expected = optax.incremental_update(online, target, 0.1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        ops.polyak(target, online, 0.1),
        expected,
    )


@pytest.mark.parametrize("shape", [(4,), (6, 6, 2)])
def test_dueling_networks_separate_value_and_advantages(shape: tuple[int, ...]) -> None:
    network = ops.MLPQNetwork((8, 8), dueling=True)
    params = network.init(jax.random.key(0), ff.Box(shape=shape), ff.Discrete(n=3))
    obs = jax.random.normal(jax.random.key(1), (5, *shape))
    values = network.values(params, obs)
    assert values.shape == (5, 3)
    # The mean over actions is the value: advantages do not move it.
    moved = params | {"advantage": jax.tree.map(lambda x: 2.0 * x, params["advantage"])}
    np.testing.assert_allclose(
        values.mean(-1), network.values(moved, obs).mean(-1), rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(values, network.values(moved, obs))
