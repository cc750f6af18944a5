"""Replay buffers: a ring of the latest steps for every environment, as pure functions.

Environments fill their rings in step, so all rings have their oldest entry at the same place, and a
ring is never looked at by another environment: it can live wherever its environment does.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Ring(NamedTuple):
    """The latest steps of every environment."""

    rows: Any
    """a pytree of `[N, capacity, ...]`: environments first"""
    added: jax.Array
    """int32, how many steps were ever added to each ring"""

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.rows)[0].shape[1]

    @property
    def filled(self) -> jax.Array:
        """How many entries of each ring are in use: the first ones."""
        return jnp.minimum(self.added, self.capacity)

    @property
    def head(self) -> jax.Array:
        """Where the next step is written."""
        return self.added % self.capacity


def ring_capacity(total: int, num_envs: int, length: int) -> int:
    """Steps per environment that hold `total` in all; `length` are added at once.

    A multiple of `length`, so that what is added never has to be broken in two.
    """
    return -(-total // (num_envs * length)) * length


def empty_ring(like: Any, capacity: int) -> Ring:
    """Rings for steps of the type of `like`, a pytree of `[N, ...]`."""

    def zeros(x: jax.Array) -> jax.Array:
        return jnp.zeros((x.shape[0], capacity, *x.shape[1:]), x.dtype)

    return Ring(jax.tree.map(zeros, like), jnp.int32(0))


def add_steps(ring: Ring, steps: Any) -> Ring:
    """Writes steps `[T, N, ...]` over the oldest ones; `T` divides the capacity."""

    def write(rows: jax.Array, new: jax.Array) -> jax.Array:
        start = (0, ring.head, *(0 for _ in new.shape[2:]))
        return lax.dynamic_update_slice(rows, jnp.moveaxis(new, 0, 1), start)

    length = jax.tree.leaves(steps)[0].shape[0]
    return Ring(jax.tree.map(write, ring.rows, steps), ring.added + length)


def sample_uniformly(ring: Ring, keys: jax.Array, number: int) -> jax.Array:
    """Places of `number` entries for every key, int32 `[U, N, number]`; keys are `[U, N]`."""
    uniform = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (number,))))(keys)
    # Rounding may give the number of entries itself.
    return jnp.minimum((uniform * ring.filled).astype(jnp.int32), ring.filled - 1)


def take(ring: Ring, places: jax.Array) -> Any:
    """The entries at `places` `[U, N, K]`: a pytree of `[U, N, K, ...]`."""

    def of_environment(rows: jax.Array, places: jax.Array) -> jax.Array:
        return rows.at[places].get(mode="promise_in_bounds")

    of_all = jax.vmap(of_environment, in_axes=(0, 1), out_axes=1)
    return jax.tree.map(lambda rows: of_all(rows, places), ring.rows)
