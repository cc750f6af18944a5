"""Rollouts in chunks of time, `[C, L, ...]`: what networks with a memory learn from."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from fragflow.errors import ConfigError


class RememberingCritic(Protocol):
    """What is asked of a network; see `GRUActorCritic`."""

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
