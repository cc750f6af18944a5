"""Updates of parameters: a clipped step of an optimiser, and a target that follows."""

from collections.abc import Mapping
from typing import Any, TypeVar

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


def descend_apart(
    optimiser: optax.GradientTransformation,
    params: Mapping[str, Any],
    memory: Mapping[str, Any],
    grads: Mapping[str, Any],
    *,
    rate: jax.Array | float,
    max_norm: float,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, jax.Array]]:
    """`descend` part by part: gradients of a critic, say, do not shrink those of an actor."""
    after = {
        part: descend(optimiser, params[part], memory[part], grad, rate=rate, max_norm=max_norm)
        for part, grad in grads.items()
    }
    params, memory, norms = ({part: x[k] for part, x in after.items()} for k in range(3))
    return params, memory, norms


Tree = TypeVar("Tree")


def polyak(target: Tree, online: Tree, rate: float | jax.Array) -> Tree:
    """`target` moved towards `online` by `rate` (Lillicrap et al. 2016, section 3)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
