"""Value normalisation: critics that count in standard deviations from the mean of returns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

SMALLEST_DEVIATION = 0.1
"""So that the first reward after a long time without any does not look enormous to the critic."""


class ValueScale(NamedTuple):
    """Running averages over returns; one per team, say."""

    mean: jax.Array
    square: jax.Array

    @staticmethod
    def of_nothing(shape: tuple[int, ...] = ()) -> "ValueScale":
        return ValueScale(jnp.zeros(shape), jnp.ones(shape))

    @property
    def deviation(self) -> jax.Array:
        variance = jnp.maximum(self.square - jnp.square(self.mean), 0.0)
        return jnp.maximum(jnp.sqrt(variance), SMALLEST_DEVIATION)

    def normalised(self, value: jax.Array) -> jax.Array:
        return (value - self.mean) / self.deviation

    def restored(self, value: jax.Array) -> jax.Array:
        """In units of rewards again."""
        return value * self.deviation + self.mean

    def moved(self, towards: "ValueScale", weight: jax.Array) -> "ValueScale":
        """The running averages after newer ones."""
        return ValueScale(*(a + weight * (b - a) for a, b in zip(self, towards, strict=True)))
