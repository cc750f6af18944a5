"""What looks like one row's work, and is not when it is vmapped: it is read, and refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow.graph.replicas.rule_guards import _equal
from graph.telling import files_named_in, refusal
from graph.toy import Drift


def rbg(key: jax.Array, impl: str = "rbg") -> jax.Array:
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([data, data], -1), impl=impl)


def noise(key: jax.Array) -> jax.Array:
    return jax.random.normal(rbg(key), (3,))


def split(key: jax.Array) -> jax.Array:
    first, _ = jax.random.split(rbg(key, "unsafe_rbg"))
    return jax.random.key_data(first).astype(jnp.float32)


def folded(key: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.fold_in(rbg(key, "unsafe_rbg"), 3)).astype(jnp.float32)


@jax.custom_batching.custom_vmap
def centred(row: jax.Array) -> jax.Array:
    return row


@centred.def_vmap
def _(_size, _is_batched, rows):
    return rows - rows.mean(0), True


DRAWN = "keys that are not threefry's"
ROWS = {
    "drawn in rows": (lambda t: jax.vmap(noise)(t.env.keys(t.key)), DRAWN),
    "drawn in env.map": (lambda t: t.env.map(noise, t.env.keys(t.key)), DRAWN),
    "split in rows": (lambda t: jax.vmap(split)(t.env.keys(t.key)), DRAWN),
    "folded in rows": (lambda t: jax.vmap(folded)(t.env.keys(t.key)), DRAWN),
    "a gamma in rows": (
        lambda t: jax.vmap(lambda k: jax.random.gamma(rbg(k), 2.0))(t.env.keys(t.key)),
        "random_gamma, which the replica check does not know",
    ),
    "another function for many": (lambda t: t.env.map(centred, t.x[0]), "one replica's"),
}


@pytest.mark.parametrize(("rows", "reason"), ROWS.values(), ids=ROWS)
def test_rows_that_are_made_together_are_refused(rows, reason):
    message = refusal(lambda t: ff.all_mean(jnp.mean(rows(t))))
    assert message is not None
    assert reason in message
    assert files_named_in(message) == {"test_rows.py"}


def test_keys_are_not_reduced():
    message = refusal(lambda t: jax.random.normal(ff.all_mean(jax.random.fold_in(t.key, 1)), (3,)))
    assert message is not None
    assert "is a random key, to which all_mean is applied" in message


def test_one_key_for_all_may_be_of_any_kind():
    assert refusal(lambda t: jnp.mean(jax.random.normal(rbg(t.key), (3,)))) is None


class Noisy(Drift):
    def step(self, state, action, key):
        return super().step(state + 0.1 * noise(key), action, key)


def test_environments_that_draw_together_are_refused():
    message = refusal(lambda t: ff.all_mean(jnp.mean(t.x)), environment=Noisy())
    assert message is not None
    assert DRAWN in message


def own_entries(dtype):
    def tell(t):
        which = (t.x[0, :, 0] > 0).astype(dtype)
        return ff.all_mean(jnp.mean(t.x[1][jnp.arange(t.n).astype(dtype), which]))

    return tell


def test_row_numbers_that_wrap_around_are_no_row_numbers():
    assert refusal(own_entries(jnp.uint16), num_envs=512) is None
    assert refusal(own_entries(jnp.uint8), num_envs=512) is not None


def test_long_parameters_are_compared_entry_by_entry():
    """Their text leaves out the middle."""
    one, other = np.arange(2000), np.arange(2000)
    other[1000] = 0
    assert str(one) == str(other)
    assert _equal((one,), (one.copy(),))
    assert not _equal((one,), (other,))


def diagonal(x: jax.Array) -> jax.Array:
    """x[j, j] of row j, by one array of row numbers in both columns of the index."""
    both = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 2), 0)
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)
    )
    return jax.lax.gather(x, both, numbers, (1, 1), mode="clip")


def with_diagonal(x: jax.Array) -> jax.Array:
    both = jnp.broadcast_to(jnp.arange(x.shape[0])[:, None], (x.shape[0], 2))
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1)
    )
    return jax.lax.scatter(x, both, jnp.ones(x.shape[0]), numbers, mode="drop")


@pytest.mark.parametrize("entries", [diagonal, with_diagonal])
def test_a_row_number_finds_the_row_and_nothing_else(entries):
    message = refusal(lambda t: ff.all_mean(jnp.mean(entries(t.x[1]))))
    assert message is not None
    assert "numbers a replica's environments" in message
    assert files_named_in(message) == {"test_rows.py"}
