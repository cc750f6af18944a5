"""What learning of action values is pulled towards, and how hard."""

from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def huber(error: jax.Array, delta: float = 1.0) -> jax.Array:
    """Half the square of an error, linear beyond `delta` (Huber 1964; Mnih et al. 2015 clip so)."""
    size = jnp.abs(error)
    near = jnp.minimum(size, delta)
    return near * (size - 0.5 * near)


def polyak(target: Tree, online: Tree, rate: float | jax.Array) -> Tree:
    """`target` moved towards `online` by `rate` (Lillicrap et al. 2016, section 3)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
