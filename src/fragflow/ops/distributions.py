"""Distributions over actions. They are pytrees; batch axes come first, keys have just those."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp


class Categorical(NamedTuple):
    """One of `A` choices, by unnormalised log-probabilities."""

    logits: jax.Array
    """`[..., A]`"""

    @property
    def log_probs(self) -> jax.Array:
        """Normalised, `[..., A]`."""
        return jax.nn.log_softmax(self.logits)

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw per key, int32 `[...]`."""
        # Inverts the cumulative distribution: one uniform number per draw instead of A Gumbels.
        uniform = _per_key(jax.random.uniform, keys, ())
        cumulative = jnp.cumsum(jax.nn.softmax(self.logits), axis=-1)
        # The last entry is one up to rounding and is left out, so that every draw is below A.
        return jnp.sum(uniform[..., None] >= cumulative[..., :-1], axis=-1, dtype=jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(self.log_probs * chosen, axis=-1)

    def entropy(self) -> jax.Array:
        log_probs = self.log_probs
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


class Normal(NamedTuple):
    """Independent normal distributions over the last axis."""

    mean: jax.Array
    """`[..., A]`"""
    log_std: jax.Array
    """`[A]`, or `[..., A]`"""

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw per key, `[..., A]`."""
        noise = _per_key(jax.random.normal, keys, self.mean.shape[-1:])
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        scaled = (action - self.mean) * jnp.exp(-self.log_std)
        constant = 0.5 * math.log(2.0 * math.pi)
        return jnp.sum(-0.5 * jnp.square(scaled) - self.log_std - constant, axis=-1)

    def entropy(self) -> jax.Array:
        per_dimension = self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)
        return jnp.sum(jnp.broadcast_to(per_dimension, self.mean.shape), axis=-1)


class MultiCategorical(NamedTuple):
    """Several independent choices."""

    parts: tuple[Categorical, ...]

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw per key, int32 `[..., K]`."""
        fold = jax.random.fold_in
        for _ in range(keys.ndim):
            fold = jax.vmap(fold, (0, None))
        draws = [part.sample(fold(keys, k)) for k, part in enumerate(self.parts)]
        return jnp.stack(draws, axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return _sum(part.log_prob(action[..., k]) for k, part in enumerate(self.parts))

    def entropy(self) -> jax.Array:
        return _sum(part.entropy() for part in self.parts)


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, arrays)


Distribution: TypeAlias = Categorical | Normal | MultiCategorical


def _per_key(draw: Callable[..., jax.Array], keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`draw(key, shape)` for every key: `[*keys.shape, *shape]`."""
    for _ in range(keys.ndim):
        draw = jax.vmap(draw, (0, None))
    return draw(keys, shape)


class TanhNormal(NamedTuple):
    """`tanh(mean + exp(log_std) * noise)`, independent over the last axis."""

    mean: jax.Array
    """`[..., A]`"""
    log_std: jax.Array
    """`[..., A]`"""

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The draws `[..., A]` that standard normal `noise` leads to, and their log-probabilities.

        From the noise and not from the draw: a draw near 1 does not tell what it was made of.
        """
        inner = self.mean + jnp.exp(self.log_std) * noise
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = -0.5 * jnp.square(noise) - self.log_std - constant - _log_slope(inner)
        return jnp.tanh(inner), jnp.sum(log_prob, axis=-1)

    def mode(self) -> jax.Array:
        """The image of the mean."""
        return jnp.tanh(self.mean)


def _log_slope(x: jax.Array) -> jax.Array:
    """`log(1 - tanh(x)^2)`, without taking the logarithm of a difference that rounds to zero."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
