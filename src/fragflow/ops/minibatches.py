"""Splits of a batch: into minibatches, chunks of time, and blocks that fit a cache."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from fragflow.errors import ConfigError

Tree = TypeVar("Tree")
Result = TypeVar("Result")

BLOCK_SAMPLES = 8192
"""Samples for which the output of a layer of usual width stays in a CPU's cache."""


def time_minibatches(key: jax.Array, length: int, epochs: int, minibatches: int) -> jax.Array:
    """Time steps of each minibatch, int32 `[epochs * minibatches, length / minibatches]`.

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


@runtime_checkable
class RememberingCritic(Protocol):
    """The methods of a network that `values_over_chunks` needs; see `GRUActorCritic`."""

    def observe(self, part: Any, memory: jax.Array, obs: jax.Array) -> jax.Array: ...

    def observe_all(
        self, part: Any, memory: jax.Array, first: jax.Array, obs: jax.Array
    ) -> jax.Array: ...

    def value(self, critic: Any, memory: jax.Array) -> jax.Array: ...


def check_chunks(rollout_length: int, chunk_length: int, minibatches: int) -> None:
    """A rollout is made of whole chunks, and a minibatch too."""
    if rollout_length % chunk_length:
        raise ConfigError(
            f"chunk_length = {chunk_length} does not divide rollout_length = {rollout_length}: "
            "a rollout is cut into whole chunks"
        )
    chunks = rollout_length // chunk_length
    if chunks % minibatches:
        raise ConfigError(
            f"minibatches = {minibatches} does not divide the number of chunks, "
            f"rollout_length / chunk_length = {chunks}: a minibatch takes whole chunks"
        )


def scan_chunks(
    step: Callable[[Any, Any], tuple[Any, Any]], start: tuple[Any, ...], xs: Any
) -> tuple[tuple[Any, ...], Any, Any]:
    """`lax.scan` over `[C, L, ...]`: the end, memories before each chunk, and what `step` puts out.

    A memory is what is carried last.
    """

    def chunk(carry: tuple[Any, ...], xs: Any) -> tuple[tuple[Any, ...], Any]:
        after, outputs = lax.scan(step, carry, xs)
        return after, (carry[-1], outputs)

    end, (memories, outputs) = lax.scan(chunk, start, xs)
    return end, memories, outputs


def values_over_chunks(
    network: RememberingCritic,
    critic: Any,
    memory: jax.Array,
    first: jax.Array,
    obs: jax.Array,
    next_obs: jax.Array,
    see: Callable[[jax.Array], jax.Array] = lambda obs: obs,
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Values before and after each step, `[C, L, ...]`, and memories between chunks.

    These are `[C + 1, ..., units]`: `memory` is the first, and the last one is for the next
    rollout. `see` makes of observations what the critic sees, chunk by chunk.
    """

    def of_chunk(memory: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
        first, now, later = chunk[0], see(chunk[1]), see(chunk[2])
        memories = network.observe_all(critic, memory, first, now)
        # The true successor, seen with the memory of this episode, also where it ends here.
        beyond = network.observe(critic, memories, later)
        values = (network.value(critic, memories), network.value(critic, beyond))
        return memories[-1], (values, memory)

    last, (values, before) = lax.scan(of_chunk, memory, (first, obs, next_obs))
    return values, jnp.concatenate([before, last[None]])
