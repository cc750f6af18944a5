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
PARTS = 8
"""of a block, whose sums are looked at in turn"""
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
    """In one ring `[capacity]`: places for `uniform` `[U, K]`, and the probability of each.

    Found from above: a block, a part of it, an entry. XLA takes a running sum over all entries of a
    block in several times the time that both shorter ones take.
    """
    entries = chances.reshape(-1, PARTS, BLOCK // PARTS)
    parts = jnp.sum(entries, axis=-1)
    blocks = jnp.sum(parts, axis=-1)
    total = jnp.sum(blocks)
    block, left = _first_above(blocks, uniform * total)
    part, left = _first_above(parts[block], left)
    within = entries[block, part]
    entry, _ = _first_above(within, left)
    chance = _pick(within, entry) / jnp.maximum(total, 1e-12)
    return (block * PARTS + part) * (BLOCK // PARTS) + entry, chance


def _first_above(chances: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first position along the last axis up to which more than `target` adds up, int32.

    And what is left of the target there. `chances` are one row for all targets, or one for each.
    """
    ends = jnp.cumsum(chances, axis=-1)
    passed = jnp.sum(ends <= target[..., None], axis=-1, dtype=jnp.int32)
    position = jnp.minimum(passed, ends.shape[-1] - 1)
    # Rounding may point to a place without a chance: then the likeliest is taken.
    best = jnp.argmax(chances, axis=-1).astype(jnp.int32)
    position = jnp.where(_pick(chances, position) > 0, position, best)
    before = _pick(ends, jnp.maximum(position - 1, 0))
    return position, target - jnp.where(position > 0, before, 0.0)


def _pick(rows: jax.Array, position: jax.Array) -> jax.Array:
    if rows.ndim == 1:
        return rows[position]
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
