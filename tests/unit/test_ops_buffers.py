"""Replay buffers against flashbax, against lists, and by how often they give what."""

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow import ops
from fragflow.ops.replay import _draw
from shapes import as_others_write

pytestmark = pytest.mark.usefixtures("explicit_promotion")

ENVS, CAPACITY, LENGTH = 3, 12, 4


def keys(draws: int, envs: int = ENVS) -> jax.Array:
    return jax.random.split(jax.random.key(1), (draws, envs))


def steps(first: int, length: int = LENGTH) -> dict[str, jax.Array]:
    """`[T, N, ...]`: time and environment can be read off every entry."""
    time = jnp.arange(first, first + length, dtype=jnp.float32)
    number = time[:, None] + 1000.0 * jnp.arange(ENVS, dtype=jnp.float32)[None]
    return {"number": number, "vector": jnp.stack([number, -number], axis=-1)}


def filled(additions: int) -> ops.Ring:
    ring = ops.empty_ring(jax.tree.map(lambda x: x[0], steps(0)), CAPACITY)
    add = jax.jit(ops.add_steps)
    for k in range(additions):
        ring = add(ring, steps(k * LENGTH))
    return ring


@pytest.mark.parametrize("additions", [1, 3, 4, 8])
def test_a_ring_holds_what_flashbax_holds(additions: int) -> None:
    buffer = flashbax.make_trajectory_buffer(
        add_batch_size=ENVS,
        sample_batch_size=1,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=CAPACITY,
    )
    theirs = buffer.init(jax.tree.map(lambda x: x[0, 0], steps(0)))
    for k in range(additions):
        new = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps(k * LENGTH))
        theirs = buffer.add(theirs, new)
    ours = filled(additions)
    jax.tree.map(np.testing.assert_array_equal, ours.rows, theirs.experience)
    assert int(ours.head) == int(theirs.current_index)
    assert int(ours.filled) == min(additions * LENGTH, CAPACITY)


def test_samples_are_uniform_over_the_latest_steps_of_each_environment() -> None:
    ring = filled(5)
    places = ops.sample_uniformly(ring, keys(2_000), 4)
    taken = jax.jit(ops.take)(ring, places)
    assert taken["vector"].shape == (2_000, ENVS, 4, 2)
    for env in range(ENVS):
        seen, counts = np.unique(taken["number"][:, env], return_counts=True)
        # Steps 8 to 19 of 20 are left.
        np.testing.assert_array_equal(seen, np.arange(8, 20) + 1000 * env)
        np.testing.assert_allclose(counts / counts.sum(), 1 / CAPACITY, atol=0.01)
    np.testing.assert_array_equal(taken["vector"][..., 0], -taken["vector"][..., 1])


def test_what_was_never_written_is_not_sampled() -> None:
    places = ops.sample_uniformly(filled(1), keys(500), 4)
    assert set(np.unique(places)) == set(range(LENGTH))


def test_the_capacity_is_enough_and_a_whole_number_of_additions() -> None:
    assert ops.ring_capacity(total=1000, num_envs=4, length=8) == 256
    assert ops.ring_capacity(total=1024, num_envs=4, length=8) == 256
    assert ops.ring_capacity(total=1, num_envs=4, length=8) == 8


def weighted(weights: np.ndarray, capacity: int = 200) -> tuple[ops.Priorities, ops.Ring]:
    """Rings that are full, whose entries have these chances `[N, capacity]`."""
    ring = ops.empty_ring({"x": jnp.zeros(len(weights))}, capacity)
    ring = ring._replace(added=jnp.int32(capacity))
    empty = ops.no_priorities(len(weights), capacity)
    chances = empty.chances.at[:, :capacity].set(jnp.asarray(weights, jnp.float32))
    return empty._replace(chances=chances), ring


def test_draws_are_proportional_to_priorities() -> None:
    random = np.random.default_rng(0)
    weights = random.random((2, 200)) ** 4 * (random.random((2, 200)) < 0.5)
    priorities, ring = weighted(weights)
    drawn = jax.jit(ops.sample_by_priority, static_argnums=3)(
        priorities, ring, keys(2_000, 2), 50, jnp.float32(1.0)
    )
    for env in range(2):
        counts = np.bincount(np.asarray(drawn.places[:, env]).ravel(), minlength=200)
        assert not counts[weights[env] == 0].any()
        chance = weights[env] / weights[env].sum()
        np.testing.assert_allclose(counts / counts.sum(), chance, atol=0.0015)


def test_weights_undo_the_bias() -> None:
    weights = np.array([[1.0, 2.0, 4.0, 8.0] * 50, [1.0] * 200])
    priorities, ring = weighted(weights)
    drawn = ops.sample_by_priority(priorities, ring, keys(100, 2), 50, jnp.float32(1.0))
    expected = weights.sum(1)[:, None] / (200 * weights)
    expected = np.stack([expected[env][np.asarray(drawn.places[:, env])] for env in range(2)], 1)
    expected /= expected.max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(drawn.weight, expected, rtol=1e-4)
    uncorrected = ops.sample_by_priority(priorities, ring, keys(100, 2), 50, jnp.float32(0.0))
    np.testing.assert_array_equal(uncorrected.weight, 1.0)


def test_draws_follow_the_same_distribution_as_those_of_flashbax() -> None:
    """One environment of 128 entries, the same priorities on both sides, 40,000 draws each."""
    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=400,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=128,
        priority_exponent=0.7,
    )
    error = np.random.default_rng(0).random(128).astype(np.float32)
    with as_others_write():
        theirs = buffer.init({"x": jnp.float32(0)})
        theirs = buffer.add(theirs, {"x": jnp.arange(128, dtype=jnp.float32)[None]})
        # flashbax leaves it to its users to add a small number to errors.
        theirs = buffer.set_priorities(theirs, jnp.arange(128), jnp.asarray(error + 1e-3))
        sampled = jax.jit(jax.vmap(buffer.sample, (None, 0)))(
            theirs, jax.random.split(jax.random.key(0), 100)
        )
    their_counts = np.bincount(np.asarray(sampled.experience["x"], int).ravel(), minlength=128)

    priorities, ring = weighted(np.ones((1, 128)), capacity=128)
    priorities = ops.set_priorities(
        priorities, jnp.arange(128)[None, None], jnp.asarray(error)[None, None], 0.7
    )
    drawn = ops.sample_by_priority(priorities, ring, keys(100, 1), 400, jnp.float32(1.0))
    our_counts = np.bincount(np.asarray(drawn.places).ravel(), minlength=128)
    np.testing.assert_allclose(our_counts / 40_000, their_counts / 40_000, atol=0.003)


@pytest.mark.parametrize("first", [0, 7, 8, 63, 64, 1000, 1023])
def test_a_place_without_a_chance_is_never_drawn(first: int) -> None:
    """Blocks, parts of them and entries are empty on either side; targets lie at both ends."""
    weights = np.zeros((1, 1024))
    weights[0, first] = 1e-3
    weights[0, (first + 9) % 1024] = 0.3
    priorities, _ = weighted(weights, capacity=1024)
    uniform = jnp.asarray([0.0, 1e-9, 0.5, 1.0 - 2.0**-24, 1.0])
    places, chance = _draw(priorities.chances[0], uniform)
    assert set(np.asarray(places).tolist()) <= {first, (first + 9) % 1024}
    assert np.all(np.asarray(chance) > 0)


def test_new_steps_get_the_largest_priority_of_all_and_those_that_did_not_happen_none() -> None:
    ring = filled(1)
    priorities = ops.no_priorities(ENVS, CAPACITY)
    places = jnp.zeros((1, ENVS, 1), jnp.int32)
    error = jnp.array([0.5, 3.0, 1.0])[None, :, None]
    priorities = ops.set_priorities(priorities, places, error, 1.0)
    happened = jnp.ones((LENGTH, ENVS)).at[2, 1].set(0.0)
    after = ops.add_priorities(priorities, ring, happened)
    expected = np.full((ENVS, LENGTH), 3.0 + 1e-3, np.float32)
    expected[1, 2] = 0.0
    np.testing.assert_allclose(after.chances[:, LENGTH : 2 * LENGTH], expected)
    np.testing.assert_allclose(after.chances[:, 0], [0.501, 3.001, 1.001], rtol=1e-6)


def test_of_two_errors_of_one_entry_the_larger_counts_whatever_it_had_before() -> None:
    priorities, _ = weighted(np.full((1, 200), 9.0))
    places = jnp.array([[[5, 7]], [[5, 6]]])
    error = jnp.array([[[0.2, 1.0]], [[0.1, 2.0]]])
    after = ops.set_priorities(priorities, places, error, 1.0)
    np.testing.assert_allclose(after.chances[0, 4:8], [9.0, 0.201, 2.001, 1.001], rtol=1e-6)
