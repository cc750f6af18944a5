"""One step of an optimiser, with clipped gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def descend(
    optimiser: optax.GradientTransformation,
    params: Any,
    memory: Any,
    grads: Any,
    *,
    rate: jax.Array | float,
    max_norm: float,
) -> tuple[Any, Any, jax.Array]:
    """Parameters and the optimiser's memory after a step against `grads`, and their norm.

    Gradients with a larger global norm than `max_norm` are scaled down to it. They must be means
    over all environments already: neither clipping nor Adam is linear.
    """
    norm = optax.tree.norm(grads)
    shrink = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-8))
    grads = jax.tree.map(lambda g: g * shrink, grads)
    updates, memory = optimiser.update(grads, memory)
    return jax.tree.map(lambda p, u: p - rate * u, params, updates), memory, norm
