"""Transitions over several steps, as replay buffers keep them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.environment import Timestep


class Steps(NamedTuple):
    """What happened, `[T, N, ...]`: time first, then environments."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    """the true successor"""
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None = None
    """False where nothing happened; None: it always did"""


class Transition(NamedTuple):
    """All that learning needs to know; any axes first, the same for all fields."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    """the discounted sum over the steps"""
    discount: jax.Array
    """of the value of `next_obs`: zero where the episode terminated"""
    next_obs: jax.Array
    weight: jax.Array
    """how much it counts; 0 for one that did not happen"""


def steps_of(obs: jax.Array, action: jax.Array, t: Timestep) -> Steps:
    """What `action` after `obs` led to."""
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

    def at(k: int, x: jax.Array) -> jax.Array:
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
    return Transition(
        obs=at(0, steps.obs),
        action=at(0, steps.action),
        reward=reward,
        discount=jnp.where(terminated, 0.0, discount),
        next_obs=next_obs,
        weight=jnp.ones_like(reward) if steps.mask is None else at(0, steps.mask) * 1.0,
    )


def _like(flag: jax.Array, x: jax.Array) -> jax.Array:
    """`flag` with as many axes as `x`."""
    return flag.reshape(*flag.shape, *(1 for _ in range(x.ndim - flag.ndim)))
