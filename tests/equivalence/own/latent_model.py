"""A recurrent model of an environment, of which latents tell where one is (Hafner et al. 2019)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from equivalence.own.layers import gru, init_gru, init_layers, layers
from fragflow import ops


class Latent(NamedTuple):
    """What an agent believes of where it is; any axes first."""

    memory: jax.Array
    code: jax.Array
    """drawn, given the memory"""


def init_model(key: jax.Array, seen: int, actions: int, hidden: int, codes: int) -> Any:
    keys, size = jax.random.split(key, 5), hidden + codes
    return {
        "gru": init_gru(keys[0], codes + actions, hidden),
        "prior": init_layers(keys[1], hidden, hidden, 2 * codes),
        "posterior": init_layers(keys[2], hidden + seen, hidden, 2 * codes),
        "obs": init_layers(keys[3], size, hidden, seen),
        "outcome": init_layers(keys[4], size + actions, hidden, 2),
    }


def observe(
    model: Any,
    belief: tuple[Latent, jax.Array],
    first: jax.Array,
    obs: jax.Array,
    noise: jax.Array,
) -> tuple[Latent, jax.Array]:
    """The latent after an earlier one, an action and `obs`, and how much was new.

    Where an episode begins, what was before is forgotten.
    """
    latent, action = jax.tree.map(lambda x: ops.forget(x, first), belief)
    memory = gru(model["gru"], latent.memory, latent.code, action)
    prior, posterior = _belief(model["prior"], memory), _belief(model["posterior"], memory, obs)
    return Latent(memory, _drawn(posterior, noise)), _divergence(posterior, prior)


def imagine(model: Any, latent: Latent, action: jax.Array, noise: jax.Array) -> Latent:
    """The latent after `action`, with closed eyes."""
    memory = gru(model["gru"], latent.memory, latent.code, action)
    return Latent(memory, _drawn(_belief(model["prior"], memory), noise))


def outcome(model: Any, latent: Latent, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The reward of an action, and the logit that the episode ends."""
    both = layers(model["outcome"], *latent, action)
    return both[..., 0], both[..., 1]


def chosen(policy: ops.Categorical, uniform: jax.Array) -> jax.Array:
    """An action as ones and zeros, by numbers from 0 to 1; gradients pass to the probabilities."""
    probs = jax.nn.softmax(policy.logits)
    below = jnp.cumsum(probs, axis=-1)[..., :-1]
    number = jnp.sum(uniform[..., None] >= below, axis=-1)
    return jax.nn.one_hot(number, probs.shape[-1]) + probs - jax.lax.stop_gradient(probs)


def lambda_returns(
    reward: jax.Array, discount: jax.Array, next_value: jax.Array, mix: float
) -> jax.Array:
    """Between what is expected after each step (0) and at the end (1); time first."""

    def back(later: jax.Array, step: tuple[jax.Array, ...]):
        reward, discount, value = step
        later = reward + discount * ((1.0 - mix) * value + mix * later)
        return later, later

    steps = (reward, discount, next_value)
    return jax.lax.scan(back, next_value[-1], steps, reverse=True)[1]


def _belief(params: list[Any], *inputs: jax.Array) -> ops.Normal:
    return ops.Normal(*jnp.split(layers(params, *inputs), 2, axis=-1))


def _drawn(belief: ops.Normal, noise: jax.Array) -> jax.Array:
    return belief.mean + jnp.exp(belief.log_std) * noise


def _divergence(a: ops.Normal, b: ops.Normal) -> jax.Array:
    """Kullback and Leibler's, from one normal distribution to another."""
    squares = jnp.square(a.mean - b.mean) + jnp.exp(2 * a.log_std)
    terms = b.log_std - a.log_std + 0.5 * squares * jnp.exp(-2 * b.log_std) - 0.5
    return jnp.sum(terms, axis=-1)
