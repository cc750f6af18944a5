"""Which entries of replay buffers to learn from more often (Schaul et al. 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fragflow.api.reduce import all_max
from fragflow.ops.buffers import Ring

BLOCK = 64
"""Entries whose sum is looked at before they are: then no running sum is longer than a few hundred,
and XLA's of a whole ring would take most of a training step."""
SMALLEST_ERROR = 1e-3
"""added to errors, so that every entry may come again (`ε` in section 3.3)"""


class Priorities(NamedTuple):
    """For every entry of every environment's ring; zero where there is none."""

    chances: jax.Array
    """`[N, capacity]`, up to whole blocks: `p^alpha`, in proportion to which entries are drawn"""
    largest: jax.Array
    """`[N]`, the largest that was ever set"""


class Drawn(NamedTuple):
    """Entries to learn from, `[U, N, K]`."""

    places: jax.Array
    """int32, positions in the ring"""
    weight: jax.Array
    """corrects for how often an entry is drawn; at most 1"""


def no_priorities(num_envs: int, capacity: int) -> Priorities:
    """Priorities of empty rings."""
    room = -(-capacity // BLOCK) * BLOCK
    return Priorities(jnp.zeros((num_envs, room)), jnp.ones(num_envs))


def add_priorities(priorities: Priorities, ring: Ring, weight: jax.Array) -> Priorities:
    """Before steps are added to `ring`: they get the largest priority known (algorithm 1, line 6).

    `weight` is `[T, N]`. What has the weight zero is never drawn.
    """
    largest = all_max(jnp.max(priorities.largest))
    new = jnp.where(weight.T > 0, largest, 0.0)
    chances = lax.dynamic_update_slice(priorities.chances, new, (0, ring.head))
    return priorities._replace(chances=chances)


def sample_by_priority(
    priorities: Priorities, ring: Ring, keys: jax.Array, number: int, correction: jax.Array
) -> Drawn:
    """`number` entries for every key `[U, N]`, with a chance proportional to `p^alpha` (eq. 1).

    Every environment gives equally many, chosen within its own ring. The weights are
    `(filled * P)^-correction`, over their maximum in the batch (section 3.4).
    """
    uniform = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (number,))))(keys)
    of_all = jax.vmap(_draw, in_axes=(0, 1), out_axes=1)
    places, chance = of_all(priorities.chances, uniform)
    weight = (ring.filled * jnp.maximum(chance, 1e-12)) ** -correction
    weight = jnp.where(chance > 0, weight, 0.0)
    largest = all_max(jnp.max(weight, axis=(1, 2)))
    return Drawn(places, weight / jnp.maximum(largest, 1e-12)[:, None, None])


def _draw(chances: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """In one ring `[capacity]`: places for `uniform` `[U, K]`, and the probability of each."""
    blocks = chances.reshape(-1, BLOCK)
    sums = jnp.sum(blocks, axis=-1)
    ends = jnp.cumsum(sums)
    target = uniform * ends[-1]
    block = _first_above(ends, target)
    before = jnp.where(block > 0, ends[block - 1], 0.0)
    within = blocks[block]
    offset = _first_above(jnp.cumsum(within, axis=-1), target - before)
    # Rounding may point to an entry without a chance: then the largest of the block is taken.
    chance = _pick(within, offset)
    best = jnp.argmax(within, axis=-1).astype(jnp.int32)
    offset = jnp.where(chance > 0, offset, best)
    chance = _pick(within, offset) / jnp.maximum(ends[-1], 1e-12)
    return block * BLOCK + offset, chance


def _first_above(ends: jax.Array, target: jax.Array) -> jax.Array:
    """The first position along the last axis where `ends` is above each `target`, int32."""
    passed = jnp.sum(ends <= target[..., None], axis=-1, dtype=jnp.int32)
    return jnp.minimum(passed, ends.shape[-1] - 1)


def _pick(rows: jax.Array, position: jax.Array) -> jax.Array:
    return jnp.take_along_axis(rows, position[..., None], axis=-1)[..., 0]


def set_priorities(
    priorities: Priorities, places: jax.Array, error: jax.Array, exponent: float
) -> Priorities:
    """Gives the entries at `places` `[U, N, K]` priorities by their errors (section 3.3)."""
    new = (jnp.abs(error) + SMALLEST_ERROR) ** exponent

    def of_environment(chances: jax.Array, places: jax.Array, new: jax.Array) -> jax.Array:
        # An entry may have been drawn twice; whichever order they come in, the larger one stays.
        return chances.at[places].set(0.0).at[places].max(new)

    chances = jax.vmap(of_environment, in_axes=(0, 1, 1))(priorities.chances, places, new)
    largest = jnp.maximum(priorities.largest, jnp.max(new, axis=(0, 2)))
    return Priorities(chances, largest)
