"""Splits of a batch: into minibatches, chunks of time, and blocks that fit a cache."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Key, Shaped

from fragflow.errors import ConfigError

Tree = TypeVar("Tree")
Info = TypeVar("Info")

BLOCK_SAMPLES = 8192
"""Samples for which the output of a layer of usual width stays in a CPU's cache."""


def time_minibatches(
    key: Key[Array, ""], length: int, epochs: int, minibatches: int
) -> Int32[Array, "{epochs}*{minibatches} {length}//{minibatches}"]:
    """Time steps of each minibatch.

    Every epoch visits every step once, in a new order. A minibatch holds all environments at its
    steps: it does not depend on where they are, and is a gather of whole rows.
    """
    keys = jax.random.split(key, epochs)
    steps = jnp.arange(length, dtype=jnp.int32)
    orders = jax.vmap(jax.random.permutation, (0, None))(keys, steps)
    return orders.reshape(epochs * minibatches, length // minibatches)


def env_minibatches(
    keys: Key[Array, "{epochs} N"], length: int, epochs: int, minibatches: int
) -> Int32[Array, "{epochs}*{minibatches} {length}//{minibatches} N"]:
    """As `time_minibatches`, but each environment's steps come in an order of their own."""
    steps = jnp.arange(length, dtype=jnp.int32)
    orders = jax.vmap(jax.vmap(lambda key: jax.random.permutation(key, steps), 0, 1))(keys)
    return orders.reshape(epochs * minibatches, length // minibatches, keys.shape[1])


def take_time(tree: Tree, time_idx: Int32[Array, "B *N"]) -> Tree:
    """The rows of `[T, N, ...]` at `time_idx` `[B]`, or each environment's own at `[B, N]`."""

    def take(x: Shaped[Array, "T *x"], idx: Int32[Array, " B"]) -> Shaped[Array, "B *x"]:
        return x.at[idx].get(mode="promise_in_bounds")

    by_env = take if time_idx.ndim == 1 else jax.vmap(take, 1, 1)
    return jax.tree.map(lambda x: by_env(x, time_idx), tree)


def chunks_as_batch(x: Shaped[Array, "C L N *x"]) -> Shaped[Array, "L C*N *x"]:
    """Chunks of time as sequences of one batch."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])


def merged(x: Shaped[Array, "..."], axis: int, count: int) -> Shaped[Array, "..."]:
    """`x` with `count` axes, from `axis` on, as one."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + count :])


def map_over_time(function: Callable[[Any], Any], rows: Any, row_samples: int) -> Any:
    """`function` of one block of time steps after the other, its results joined again.

    A large batch takes half the time when it goes through a network in blocks that fit the cache.
    A row is `row_samples` samples; how many rows make a block must not matter for the result.
    """
    return jax.tree.map(lambda x: merged(x, 0, 2), _map_blocks(function, rows, row_samples))


def grad_over_time(
    loss: Callable[[Any, Tree], tuple[Float[Array, ""], Info]],
    params: Any,
    batch: Tree,
    time_idx: Int32[Array, "B *N"],
    row_samples: int,
    batch_axes: int = 2,
) -> tuple[Any, Info]:
    """The gradient of `loss(params, samples)`, and what it tells: means over `time_idx`.

    `batch` is a pytree of `[T, N, ...]` with `batch_axes` such axes, of which the loss sees
    samples, `[B, ...]`. It must be a mean over them, as it is computed in blocks (`map_over_time`).
    """

    def of_block(block: Int32[Array, "B *N"]) -> tuple[Any, Info]:
        # One batch axis: XLA differentiates matrix products of three axes twice as slowly.
        samples = jax.tree.map(lambda x: merged(x, 0, batch_axes), take_time(batch, block))
        return jax.grad(loss, has_aux=True)(params, samples)

    per_block = _map_blocks(of_block, time_idx, row_samples)
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), per_block)


def _map_blocks(function: Callable[[Any], Any], rows: Any, row_samples: int) -> Any:
    length = jax.tree.leaves(rows)[0].shape[0]
    fitting = max(BLOCK_SAMPLES // row_samples, 1)
    size = max(n for n in range(1, min(length, fitting) + 1) if length % n == 0)
    return lax.map(function, jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows))


@runtime_checkable
class RememberingCritic(Protocol):
    """The methods of a network that `values_over_chunks` needs; see `GRUActorCritic`."""

    def observe(
        self, part: Any, memory: Float[Array, "*B units"], obs: Shaped[Array, "..."]
    ) -> Float[Array, "*B units"]: ...

    def observe_all(
        self,
        part: Any,
        memory: Float[Array, "*B units"],
        first: Bool[Array, "T *B"],
        obs: Shaped[Array, "T ..."],
    ) -> Float[Array, "T *B units"]: ...

    def value(self, critic: Any, memory: Float[Array, "*B units"]) -> Float[Array, "*B"]: ...


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
    memory: Float[Array, "*B units"],
    first: Bool[Array, "C L *B"],
    obs: Shaped[Array, "C L ..."],
    next_obs: Shaped[Array, "C L ..."],
    see: Callable[[Array], Array] = lambda obs: obs,
) -> tuple[tuple[Float[Array, "C L *B"], Float[Array, "C L *B"]], Float[Array, "C+1 *B units"]]:
    """Values before and after each step, and memories between chunks.

    `memory` is the first of these, and the last one is for the next rollout. `see` makes of
    observations what the critic sees, chunk by chunk.
    """

    def of_chunk(
        memory: Float[Array, "*B units"], chunk: tuple[Array, ...]
    ) -> tuple[Float[Array, "*B units"], Any]:
        first, now, later = chunk[0], see(chunk[1]), see(chunk[2])
        memories = network.observe_all(critic, memory, first, now)
        # The true successor, seen with the memory of this episode, also where it ends here.
        beyond = network.observe(critic, memories, later)
        values = (network.value(critic, memories), network.value(critic, beyond))
        return memories[-1], (values, memory)

    last, (values, before) = lax.scan(of_chunk, memory, (first, obs, next_obs))
    return values, jnp.concatenate([before, last[None]])
