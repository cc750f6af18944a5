"""Distributions over actions. They are pytrees; batch axes come first, keys have just those."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, Int32, Key


class Categorical(NamedTuple):
    """One of `A` choices, by unnormalised log-probabilities."""

    logits: Float[Array, "*B A"]

    @property
    def log_probs(self) -> Float[Array, "*B A"]:
        """Normalised."""
        return jax.nn.log_softmax(self.logits)

    def sample(self, keys: Key[Array, "*B"]) -> Int32[Array, "*B"]:
        """One draw per key."""
        # Inverts the cumulative distribution: one uniform number per draw instead of A Gumbels.
        uniform = _per_key(jax.random.uniform, keys, ())
        cumulative = jnp.cumsum(jax.nn.softmax(self.logits), axis=-1)
        # The last entry is one up to rounding and is left out, so that every draw is below A.
        return jnp.sum(uniform[..., None] >= cumulative[..., :-1], axis=-1, dtype=jnp.int32)

    def mode(self) -> Int32[Array, "*B"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*B"]) -> Float[Array, "*B"]:
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(self.log_probs * chosen, axis=-1)

    def entropy(self) -> Float[Array, "*B"]:
        log_probs = self.log_probs
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


class Normal(NamedTuple):
    """Independent normal distributions over the last axis."""

    mean: Float[Array, "*B A"]
    log_std: Float[Array, "*#B A"]

    def sample(self, keys: Key[Array, "*B"]) -> Float[Array, "*B A"]:
        """One draw per key."""
        noise = _per_key(jax.random.normal, keys, self.mean.shape[-1:])
        return self.mean + lax.broadcast_to_rank(jnp.exp(self.log_std), noise.ndim) * noise

    def mode(self) -> Float[Array, "*B A"]:
        return self.mean

    def log_prob(self, action: Float[Array, "*B A"]) -> Float[Array, "*B"]:
        rank = action.ndim
        scaled = (action - self.mean) * lax.broadcast_to_rank(jnp.exp(-self.log_std), rank)
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = -0.5 * jnp.square(scaled) - lax.broadcast_to_rank(self.log_std, rank) - constant
        return jnp.sum(log_prob, axis=-1)

    def entropy(self) -> Float[Array, "*B"]:
        per_dimension = self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)
        return jnp.sum(jnp.broadcast_to(per_dimension, self.mean.shape), axis=-1)


class MultiCategorical(NamedTuple):
    """Several independent choices."""

    parts: tuple[Categorical, ...]

    def sample(self, keys: Key[Array, "*B"]) -> Int32[Array, "*B K"]:
        """One draw per key."""
        fold = jax.random.fold_in
        for _ in range(keys.ndim):
            fold = jax.vmap(fold, (0, None))
        draws = [part.sample(fold(keys, k)) for k, part in enumerate(self.parts)]
        return jnp.stack(draws, axis=-1)

    def mode(self) -> Int32[Array, "*B K"]:
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, action: Int[Array, "*B K"]) -> Float[Array, "*B"]:
        return _sum(part.log_prob(action[..., k]) for k, part in enumerate(self.parts))

    def entropy(self) -> Float[Array, "*B"]:
        return _sum(part.entropy() for part in self.parts)


def _sum(arrays: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, arrays)


Distribution: TypeAlias = Categorical | Normal | MultiCategorical


def _per_key(
    draw: Callable[..., Array], keys: Key[Array, "*B"], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """`draw(key, shape)` for every key: `[*keys.shape, *shape]`."""
    for _ in range(keys.ndim):
        draw = jax.vmap(draw, (0, None))
    return draw(keys, shape)


class TanhNormal(NamedTuple):
    """`tanh(mean + exp(log_std) * noise)`, independent over the last axis."""

    mean: Float[Array, "*B A"]
    log_std: Float[Array, "*B A"]

    def transform(
        self, noise: Float[Array, "*B A"]
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B"]]:
        """The draws that standard normal `noise` leads to, and their log-probabilities.

        From the noise and not from the draw: a draw near 1 does not tell what it was made of.
        """
        inner = self.mean + jnp.exp(self.log_std) * noise
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = -0.5 * jnp.square(noise) - self.log_std - constant - _log_slope(inner)
        return jnp.tanh(inner), jnp.sum(log_prob, axis=-1)

    def mode(self) -> Float[Array, "*B A"]:
        """The image of the mean."""
        return jnp.tanh(self.mean)


def _log_slope(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """`log(1 - tanh(x)^2)`, without taking the logarithm of a difference that rounds to zero."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
