"""Replay: rings of the latest steps, draws by priority, transitions over several steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Key, PyTree, Shaped

from fragflow.api.environment import Timestep
from fragflow.api.reduce import all_max


class Ring(NamedTuple):
    """The latest steps of every environment."""

    rows: PyTree[Shaped[Array, "N capacity ..."]]
    added: Int32[Array, ""]
    """how many steps were ever added to each ring"""

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.rows)[0].shape[1]

    @property
    def filled(self) -> Int32[Array, ""]:
        """The number of entries of each ring that are in use: the first ones."""
        return jnp.minimum(self.added, self.capacity)

    @property
    def head(self) -> Int32[Array, ""]:
        """The position that the next step is written to."""
        return self.added % self.capacity


def ring_capacity(total: int, num_envs: int, length: int) -> int:
    """Steps per environment that hold `total` in all; `length` are added at once.

    A multiple of `length`, so that what is added never has to be broken in two.
    """
    return -(-total // (num_envs * length)) * length


def empty_ring(like: PyTree[Shaped[Array, "N ..."]], capacity: int) -> Ring:
    """Rings for steps of the type of `like`."""

    def zeros(x: Shaped[Array, "N ..."]) -> Shaped[Array, "N capacity ..."]:
        return jnp.zeros((x.shape[0], capacity, *x.shape[1:]), x.dtype)

    return Ring(jax.tree.map(zeros, like), jnp.int32(0))


def add_steps(ring: Ring, steps: PyTree[Shaped[Array, "T N ..."]]) -> Ring:
    """Writes steps over the oldest ones; `T` divides the capacity."""

    def write(
        rows: Shaped[Array, "N capacity *x"], new: Shaped[Array, "T N *x"]
    ) -> Shaped[Array, "N capacity *x"]:
        start = (0, ring.head, *(0 for _ in new.shape[2:]))
        return lax.dynamic_update_slice(rows, jnp.moveaxis(new, 0, 1), start)

    length = jax.tree.leaves(steps)[0].shape[0]
    return Ring(jax.tree.map(write, ring.rows, steps), ring.added + length)


def sample_uniformly(
    ring: Ring, keys: Key[Array, "U N"], number: int
) -> Int32[Array, "U N {number}"]:
    """Places of `number` entries for every key."""
    uniform = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (number,))))(keys)
    # Rounding may give the number of entries itself.
    scaled = uniform * ring.filled.astype(jnp.float32)
    return jnp.minimum(scaled.astype(jnp.int32), ring.filled - 1)


def take(ring: Ring, places: Int32[Array, "U N K"]) -> PyTree[Shaped[Array, "U N K ..."]]:
    """The entries at `places`."""

    def of_environment(
        rows: Shaped[Array, "capacity *x"], places: Int32[Array, "U K"]
    ) -> Shaped[Array, "U K *x"]:
        return rows.at[places].get(mode="promise_in_bounds")

    of_all = jax.vmap(of_environment, in_axes=(0, 1), out_axes=1)
    return jax.tree.map(lambda rows: of_all(rows, places), ring.rows)


BLOCK = 64
"""Entries whose sum is looked at before they are: then no running sum is longer than a few hundred,
and XLA's of a whole ring would take most of a training step."""
PARTS = 8
"""of a block, whose sums are looked at in turn"""
MIN_ERROR = 1e-3
"""added to errors, so that every entry may come again (`ε` in section 3.3)"""


class Priorities(NamedTuple):
    """For every entry of every environment's ring; zero where there is none."""

    chances: Float[Array, "N room"]
    """`p^alpha`, in proportion to which entries are drawn; there is room for whole blocks"""
    largest: Float[Array, " N"]
    """the largest that was ever set"""


class Drawn(NamedTuple):
    """Entries to learn from."""

    places: Int32[Array, "U N K"]
    """positions in the ring"""
    weight: Float[Array, "U N K"]
    """corrects for how often an entry is drawn; at most 1"""


def no_priorities(num_envs: int, capacity: int) -> Priorities:
    """Priorities of empty rings."""
    room = -(-capacity // BLOCK) * BLOCK
    return Priorities(jnp.zeros((num_envs, room)), jnp.ones(num_envs))


def add_priorities(priorities: Priorities, ring: Ring, weight: Float[Array, "T N"]) -> Priorities:
    """Before steps are added to `ring`: they get the largest priority known (algorithm 1, line 6).

    What has the weight zero is never drawn.
    """
    largest = all_max(jnp.max(priorities.largest))
    new = jnp.where(weight.T > 0, largest, 0.0)
    chances = lax.dynamic_update_slice(priorities.chances, new, (0, ring.head))
    return priorities._replace(chances=chances)


def sample_by_priority(
    priorities: Priorities,
    ring: Ring,
    keys: Key[Array, "U N"],
    number: int,
    correction: Float[Array, ""],
) -> Drawn:
    """`number` entries for every key, with a chance proportional to `p^alpha` (eq. 1).

    Every environment gives equally many, chosen within its own ring. The weights are
    `(filled * P)^-correction`, over their maximum in the batch (section 3.4).
    """
    uniform = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (number,))))(keys)
    of_all = jax.vmap(_draw, in_axes=(0, 1), out_axes=1)
    places, chance = of_all(priorities.chances, uniform)
    number_filled = ring.filled.astype(jnp.float32)
    weight = (number_filled * jnp.maximum(chance, 1e-12)) ** -correction
    weight = jnp.where(chance > 0, weight, 0.0)
    largest = all_max(jnp.max(weight, axis=(1, 2)))
    return Drawn(places, weight / jnp.maximum(largest, 1e-12)[:, None, None])


def _draw(
    chances: Float[Array, " room"], uniform: Float[Array, "*K"]
) -> tuple[Int32[Array, "*K"], Float[Array, "*K"]]:
    """In one ring: places for `uniform`, and the probability of each.

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


def _first_above(
    chances: Float[Array, "*rows C"], target: Float[Array, "*K"]
) -> tuple[Int32[Array, "*K"], Float[Array, "*K"]]:
    """The first position along the last axis up to which more than `target` adds up.

    And what is left of the target there. `chances` are one row for all targets, or one for each.
    """
    ends = jnp.cumsum(chances, axis=-1)
    for_each = lax.broadcast_to_rank(ends, target.ndim + 1)
    passed = jnp.sum(for_each <= target[..., None], axis=-1, dtype=jnp.int32)
    position = jnp.minimum(passed, ends.shape[-1] - 1)
    # Rounding may point to a place without a chance: then the likeliest is taken.
    best = jnp.argmax(chances, axis=-1).astype(jnp.int32)
    position = jnp.where(_pick(chances, position) > 0, position, best)
    before = _pick(ends, jnp.maximum(position - 1, 0))
    return position, target - jnp.where(position > 0, before, 0.0)


def _pick(rows: Float[Array, "*rows C"], position: Int32[Array, "*K"]) -> Float[Array, "*K"]:
    if rows.ndim == 1:
        return rows[position]
    return jnp.take_along_axis(rows, position[..., None], axis=-1)[..., 0]


def set_priorities(
    priorities: Priorities,
    places: Int32[Array, "U N K"],
    error: Float[Array, "U N K"],
    exponent: float,
) -> Priorities:
    """Gives the entries at `places` priorities by their errors (section 3.3)."""
    new = (jnp.abs(error) + MIN_ERROR) ** exponent

    def of_environment(
        chances: Float[Array, " room"], places: Int32[Array, "U K"], new: Float[Array, "U K"]
    ) -> Float[Array, " room"]:
        # An entry may have been drawn twice; whichever order they come in, the larger one stays.
        return chances.at[places].set(0.0).at[places].max(new)

    chances = jax.vmap(of_environment, in_axes=(0, 1, 1))(priorities.chances, places, new)
    largest = jnp.maximum(priorities.largest, jnp.max(new, axis=(0, 2)))
    return Priorities(chances, largest)


class Steps(NamedTuple):
    """Steps of environments: time first, then environments."""

    obs: Shaped[Array, "T N ..."]
    action: Shaped[Array, "T N ..."]
    reward: Float[Array, "T N"]
    next_obs: Shaped[Array, "T N ..."]
    """the true successor"""
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]
    mask: Bool[Array, "T N"] | None = None
    """False where nothing happened; None: it always did"""


class Transition(NamedTuple):
    """All that learning needs to know; any axes first, the same for all fields."""

    obs: Shaped[Array, "B ..."]
    action: Shaped[Array, "B ..."]
    reward: Float[Array, " B"]
    """the discounted sum over the steps"""
    discount: Float[Array, " B"]
    """of the value of `next_obs`: zero where the episode terminated"""
    next_obs: Shaped[Array, "B ..."]
    weight: Float[Array, " B"]
    """weight in the loss; 0 for a transition that did not happen"""


def steps_of(
    obs: Shaped[Array, "N *obs"], action: Shaped[Array, "N *action"], t: Timestep
) -> Steps:
    """The steps that `action` after `obs` led to."""
    return Steps(obs, action, t.reward, t.next_obs, t.terminated, t.truncated, t.mask)


def no_steps(like: Steps, length: int) -> Steps:
    """`length` steps `[length, N, ...]` that did not happen, of the type of `like` `[N, ...]`."""
    like = like._replace(mask=jnp.zeros_like(like.terminated))
    return jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), like)


def join_steps(earlier: Steps, later: Steps) -> Steps:
    """Two stretches of time as one."""
    mask = jnp.ones_like(later.terminated) if later.mask is None else later.mask
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), earlier, later._replace(mask=mask))


def n_step(steps: Steps, n: int, gamma: float) -> Transition:
    """Transitions over `n` steps, from each of the first `T - n + 1` of `steps`.

    `reward` and `discount` make the truncated n-step return (Sutton & Barto 2018, eq. 7.1). An
    episode that ends earlier ends the sum: where it terminated nothing is added, where it was
    truncated the value of its last observation is.
    """
    length = steps.reward.shape[0] - n + 1

    def at(k: int, x: Shaped[Array, "T *x"]) -> Shaped[Array, "length *x"]:
        return x[k : k + length]

    reward, next_obs = at(0, steps.reward), at(0, steps.next_obs)
    done = steps.terminated | steps.truncated
    terminated, goes_on = at(0, steps.terminated), ~at(0, done)
    discount = jnp.full_like(reward, gamma)
    for k in range(1, n):
        reward += jnp.where(goes_on, discount * at(k, steps.reward), 0.0)
        discount = jnp.where(goes_on, discount * gamma, discount)
        next_obs = jnp.where(_like(goes_on, next_obs), at(k, steps.next_obs), next_obs)
        terminated |= goes_on & at(k, steps.terminated)
        goes_on &= ~at(k, done)
    if steps.mask is None:
        weight = jnp.ones_like(reward)
    else:
        weight = at(0, steps.mask).astype(jnp.float32)
    return Transition(
        obs=at(0, steps.obs),
        action=at(0, steps.action),
        reward=reward,
        discount=jnp.where(terminated, 0.0, discount),
        next_obs=next_obs,
        weight=weight,
    )


def _like(flag: Bool[Array, "*B"], x: Shaped[Array, "..."]) -> Bool[Array, "..."]:
    """`flag` with as many axes as `x`."""
    return flag.reshape(*flag.shape, *(1 for _ in range(x.ndim - flag.ndim)))
