"""Distributions against closed forms and frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops

pytestmark = pytest.mark.usefixtures("explicit_promotion")


def test_categorical_log_probs_and_entropy_are_those_of_its_probabilities() -> None:
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32)
    distribution = ops.Categorical(jnp.log(probabilities) + 3.0)
    for action in range(3):
        np.testing.assert_allclose(
            distribution.log_prob(jnp.full(2, action)), np.log(probabilities[:, action]), rtol=1e-5
        )
    entropy = -np.sum(probabilities * np.log(probabilities), axis=-1)
    np.testing.assert_allclose(distribution.entropy(), entropy, rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), [2, 0])


def test_categorical_samples_as_often_as_it_says() -> None:
    probabilities = np.array([0.05, 0.6, 0.35], np.float32)
    keys = jax.random.split(jax.random.key(0), 20_000)
    logits = jnp.broadcast_to(jnp.log(probabilities), (20_000, 3))
    actions = ops.Categorical(logits).sample(keys)
    assert actions.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(actions) / 20_000, probabilities, atol=0.015)


def test_categorical_never_leaves_its_range() -> None:
    keys = jax.random.split(jax.random.key(1), 5_000)
    certain = ops.Categorical(jnp.broadcast_to(jnp.array([-1e9, -1e9, 0.0]), (5_000, 3)))
    assert set(np.asarray(certain.sample(keys))) == {2}


def test_normal_log_prob_and_entropy_are_those_of_its_density() -> None:
    mean, std = np.array([[0.5, -1.0]]), np.array([0.3, 2.0])
    action = np.array([[0.7, 1.5]])
    distribution = ops.Normal(jnp.asarray(mean, jnp.float32), jnp.asarray(np.log(std), jnp.float32))
    density = np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(
        distribution.log_prob(jnp.asarray(action, jnp.float32)),
        np.log(density).sum(-1),
        rtol=1e-5,
    )
    entropy = 0.5 * np.log(2 * np.pi * np.e * std**2)
    np.testing.assert_allclose(distribution.entropy(), [entropy.sum()], rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), distribution.mean)


def test_normal_samples_have_its_mean_and_deviation() -> None:
    keys = jax.random.split(jax.random.key(2), 20_000)
    mean = jnp.broadcast_to(jnp.array([1.0, -2.0]), (20_000, 2))
    samples = np.asarray(ops.Normal(mean, jnp.log(jnp.array([0.5, 3.0]))).sample(keys))
    np.testing.assert_allclose(samples.mean(0), [1.0, -2.0], atol=0.08)
    np.testing.assert_allclose(samples.std(0), [0.5, 3.0], rtol=0.03)


@pytest.mark.parametrize(
    "distribution",
    [
        ops.Categorical(jnp.arange(12.0).reshape(6, 2)),
        ops.Normal(jnp.arange(12.0).reshape(6, 2), jnp.zeros(2)),
    ],
    ids=["categorical", "normal"],
)
def test_a_sample_depends_on_its_own_key_only(distribution: ops.Distribution) -> None:
    keys = jax.random.split(jax.random.key(3), 6)
    together = distribution.sample(keys)
    for i in range(6):
        alone = jax.tree.map(lambda x: x[i] if x.ndim == 2 else x, distribution)  # noqa: B023
        np.testing.assert_array_equal(together[i], alone.sample(keys[i]))
