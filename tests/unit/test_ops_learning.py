"""Minibatches, statistics, losses and networks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fragflow import ops
from fragflow.api import Box, Discrete
from fragflow.errors import ConfigError
from fragflow.ops.networks.images import convolution_init, convolve

pytestmark = pytest.mark.usefixtures("explicit_promotion")


def test_minibatches_visit_every_step_once_per_epoch_in_a_new_order() -> None:
    rows = ops.time_minibatches(jax.random.key(0), length=24, epochs=3, minibatches=4)
    assert rows.shape == (12, 6)
    assert rows.dtype == jnp.int32
    epochs = np.asarray(rows).reshape(3, 24)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(24), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_each_environment_may_have_an_order_of_its_own() -> None:
    keys = jax.random.split(jax.random.key(0), (3, 5))
    time_idx = ops.env_minibatches(keys, length=24, epochs=3, minibatches=4)
    assert time_idx.shape == (12, 6, 5)
    epochs = np.asarray(time_idx).reshape(3, 24, 5)
    np.testing.assert_array_equal(
        np.sort(epochs, axis=1), np.arange(24)[None, :, None].repeat(5, 2).repeat(3, 0)
    )
    assert len({tuple(order) for epoch in epochs for order in epoch.T}) == 15
    x = jnp.arange(24 * 5 * 2).reshape(24, 5, 2)
    taken = ops.take_time((x, None), time_idx[0])[0]
    np.testing.assert_array_equal(taken, np.asarray(x)[np.asarray(time_idx[0]), np.arange(5)])


def test_gradients_in_blocks_are_those_of_all_at_once() -> None:
    x = jax.random.normal(jax.random.key(0), (12, 4096, 2))

    def loss(w: jax.Array, samples: jax.Array) -> tuple[jax.Array, jax.Array]:
        error = jnp.mean(jnp.square(samples @ w - 1.0))
        return error, error

    w, time_idx = jnp.ones(2), jnp.array([7, 0, 3, 9])
    found = ops.grad_over_time(loss, w, x, time_idx, row_samples=4096)
    expected = jax.grad(loss, has_aux=True)(w, x[time_idx].reshape(-1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize(("num_envs", "blocks"), [(8, 1), (4096, 6), (10**6, 12)])
def test_blocks_hold_every_row_in_order(num_envs: int, blocks: int) -> None:
    rows = jnp.arange(12)
    sizes = ops.map_over_time(lambda block: block * 0 + len(block), rows, num_envs)
    np.testing.assert_array_equal(sizes, 12 // blocks)
    doubled = ops.map_over_time(lambda block: 2 * block, rows, num_envs)
    np.testing.assert_array_equal(doubled, 2 * np.arange(12))


def test_a_chunk_starts_with_the_memory_that_the_one_before_it_left() -> None:
    def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        count, memory = carry
        return (count + 1, memory + x), memory

    end, memories, outputs = ops.scan_chunks(step, (0, 0), jnp.arange(6).reshape(3, 2))
    assert (int(end[0]), int(end[1])) == (6, 15)
    np.testing.assert_array_equal(memories, [0, 1, 6])
    np.testing.assert_array_equal(outputs, [[0, 0], [1, 3], [6, 10]])


@pytest.mark.parametrize(("length", "message"), [(5, "rollout_length = 16"), (8, "chunks, .* = 2")])
def test_rollouts_and_minibatches_are_whole_chunks(length: int, message: str) -> None:
    ops.check_chunks(16, 4, 4)
    with pytest.raises(ConfigError, match=message):
        ops.check_chunks(16, length, 4)


def test_large_gradients_of_a_critic_do_not_shrink_an_actors() -> None:
    plain = optax.identity()
    params = {"actor": jnp.zeros(2), "critic": jnp.zeros(2)}
    learner = ops.Learner(params, {part: plain.init(x) for part, x in params.items()})
    grads = {"actor": jnp.array([0.3, 0.4]), "critic": jnp.array([30.0, 40.0])}
    after, norms = ops.descend_apart(plain, learner, grads, rate=1.0, max_norm=1.0)
    np.testing.assert_allclose(after.params["actor"], [-0.3, -0.4], rtol=1e-6)
    np.testing.assert_allclose(after.params["critic"], [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose([norms["actor"], norms["critic"]], [0.5, 50.0], rtol=1e-6)


def test_standardise_gives_mean_zero_and_variance_one() -> None:
    x = ops.standardise(7.0 + 3.0 * jax.random.normal(jax.random.key(0), (50, 8)))
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(x.var()) == pytest.approx(1.0, abs=1e-4)


def test_standardise_of_equal_elements_is_finite() -> None:
    np.testing.assert_allclose(ops.standardise(jnp.full((4, 3), 0.1)), 0.0, atol=1e-3)


def test_a_scale_of_returns_follows_their_size() -> None:
    scale, returns = ops.ReturnScale.of_nothing(), jnp.array([30.0, -40.0])
    for iteration in range(2):
        latest = scale.mean_square(returns / scale.size)
        scale = scale.moved(latest, jnp.int32(iteration), 0.95)
        assert float(scale.size) == pytest.approx(np.sqrt(1250.0), rel=1e-5)
    near_zero = scale.moved(jnp.float32(0.0), jnp.int32(0), 0.95)
    assert float(near_zero.size) == pytest.approx(0.1)
    later = scale.moved(jnp.float32(0.0), jnp.int32(1000), 0.95)
    assert float(later.square) == pytest.approx(0.95 * 1250.0, rel=1e-5)
    mask = jnp.array([True, False])
    assert float(scale.mean_square(returns / scale.size, mask)) == pytest.approx(900.0, rel=1e-5)


def test_surrogate_stops_paying_outside_the_clip_range() -> None:
    def gradient(ratio: float, advantage: float) -> float:
        loss = jax.grad(ops.clipped_surrogate)
        return float(loss(jnp.float32(ratio), jnp.float32(advantage), 0.2))

    assert gradient(1.1, 2.0) == pytest.approx(-2.0)
    assert gradient(1.3, 2.0) == 0.0
    assert gradient(0.7, -2.0) == 0.0
    # The wrong way out of the range is always corrected.
    assert gradient(0.7, 2.0) == pytest.approx(-2.0)
    assert gradient(1.3, -2.0) == pytest.approx(2.0)


def test_clipped_value_loss_is_never_below_the_plain_one() -> None:
    value, old, target = jax.random.normal(jax.random.key(0), (3, 100))
    clipped = ops.clipped_value_loss(value, old, target, 0.2)
    assert bool(jnp.all(clipped >= ops.value_loss(value, target)))
    np.testing.assert_allclose(
        ops.clipped_value_loss(old, old, target, 0.2), ops.value_loss(old, target)
    )


@pytest.mark.parametrize("action", [Discrete(n=3), Discrete(n=7), Box(shape=(2,))], ids=str)
@pytest.mark.parametrize(
    "observation", [Box(shape=(5,)), Box(shape=(4, 3, 2), dtype="uint8"), Discrete(n=6)], ids=str
)
def test_network_keeps_batch_axes(observation: Box | Discrete, action: Box | Discrete) -> None:
    network = ops.MLPActorCritic((8, 8))

    def shapes(batch: tuple[int, ...]) -> tuple[Any, ...]:
        params = network.init(jax.random.key(0), observation, action)
        assert set(params) == {"actor", "critic"}
        obs = jnp.ones((*batch, *observation.shape), observation.dtype)
        policy = network.policy(params["actor"], obs)
        return network.value(params["critic"], obs), policy.entropy(), policy.mode()

    for batch in [(), (4,), (3, 4)]:
        value, entropy, mode = jax.eval_shape(lambda: shapes(batch))  # noqa: B023
        assert value.shape == entropy.shape == batch
        assert mode.shape == (*batch, *action.shape)


def test_network_starts_with_an_almost_uniform_policy() -> None:
    @jax.jit
    def entropy_at(obs: jax.Array) -> jax.Array:
        network = ops.MLPActorCritic()
        params = network.init(jax.random.key(0), Box(shape=(4,)), Discrete(n=2))
        return network.policy(params["actor"], obs).entropy()

    entropy = entropy_at(jax.random.normal(jax.random.key(1), (100, 4)))
    np.testing.assert_allclose(entropy, np.log(2.0), atol=1e-3)


def test_network_tells_which_actions_it_can_make() -> None:
    with pytest.raises(ConfigError, match=r"shape \(2, 3\)"):
        ops.MLPActorCritic().init(jax.random.key(0), Box(shape=(4,)), Box(shape=(2, 3)))


@pytest.mark.parametrize("shape", [(84, 84, 4), (10, 10, 4)])
def test_images_give_the_same_features_in_either_order_and_type(shape: tuple[int, ...]) -> None:
    layers, features = convolution_init(jax.random.key(0), shape)
    images = jax.random.randint(jax.random.key(1), (2, 3, *shape), 0, 256).astype(jnp.uint8)
    expected = convolve(layers, images)
    assert expected.shape == (2, 3, features)
    np.testing.assert_array_equal(convolve(layers, jnp.moveaxis(images, -1, 2)), expected)
    np.testing.assert_array_equal(convolve(layers, images.astype(jnp.float32) / 255.0), expected)
    again, _ = convolution_init(jax.random.key(0), (shape[2], *shape[:2]))
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, layers)


@pytest.mark.parametrize("shape", [(84, 84, 4), (50, 41, 3), (10, 10, 4)])
def test_convolutions_equal_xlas(shape: tuple[int, ...]) -> None:
    layers, features = convolution_init(jax.random.key(0), shape)
    x = jax.random.uniform(jax.random.key(1), (6, *shape))
    ours = convolve(layers, x)
    assert ours.shape == (6, features)
    for layer in layers:
        stride = {8: 4, 4: 2, 3: 1}[layer["kernel"].shape[0]]
        x = jax.lax.conv_general_dilated(
            *(x, layer["kernel"], (stride, stride), "VALID"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = jax.nn.relu(x + layer["bias"][None, None, None])
    np.testing.assert_allclose(ours, x.reshape(6, -1), rtol=1e-4, atol=1e-5)


def test_what_does_not_count_is_left_out_of_statistics() -> None:
    x = jnp.array([1.0, 2.0, 3.0, 1000.0])
    mask = jnp.array([True, True, True, False])
    np.testing.assert_allclose(ops.standardise(x, mask)[:3], ops.standardise(x[:3]), rtol=1e-5)
    np.testing.assert_allclose(ops.moments(x, mask), ops.moments(x[:3]), rtol=1e-6)
