"""How a batch is split: into minibatches to learn from, and into blocks to compute with."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Tree = TypeVar("Tree")
Result = TypeVar("Result")

BLOCK_SAMPLES = 8192
"""What a layer of usual width makes of so many samples stays in a CPU's cache."""


def time_minibatches(key: jax.Array, length: int, epochs: int, minibatches: int) -> jax.Array:
    """Which time steps each minibatch takes, int32 `[epochs * minibatches, length / minibatches]`.

    Every epoch visits every step once, in a new order. A minibatch holds all environments at its
    steps: it does not depend on where they are, and is a gather of whole rows.
    """
    keys = jax.random.split(key, epochs)
    steps = jnp.arange(length, dtype=jnp.int32)
    orders = jax.vmap(jax.random.permutation, (0, None))(keys, steps)
    return orders.reshape(epochs * minibatches, length // minibatches)


def chunks_as_batch(x: jax.Array) -> jax.Array:
    """Chunks of time `[C, L, N, ...]` as sequences of one batch, `[L, C * N, ...]`."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])


def merged(x: jax.Array, axis: int, count: int) -> jax.Array:
    """`x` with `count` axes, from `axis` on, as one."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + count :])


def map_blocks(function: Callable[[Tree], Result], rows: Tree, num_envs: int) -> Result:
    """`function` of one block of rows after the other, its results stacked.

    A large batch takes half the time when it goes through a network in blocks that fit the cache.
    A row is `num_envs` samples; how many rows make a block must not matter for the result.
    """
    length = jax.tree.leaves(rows)[0].shape[0]
    size = max(
        n
        for n in range(1, min(length, BLOCK_SAMPLES) + 1)
        if length % n == 0 and _fits(n, num_envs)
    )
    return lax.map(function, jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows))


def _fits(rows: int, num_envs: int) -> bool:
    return rows == 1 or rows * num_envs <= BLOCK_SAMPLES
