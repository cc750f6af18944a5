"""One step of an optimiser, with clipped gradients."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fragflow.ops.teams import per_part, per_team


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


def descend_teams(
    optimiser: optax.GradientTransformation,
    params: dict[str, Sequence[Any]],
    memories: Sequence[Any],
    grads: dict[str, Sequence[Any]],
    *,
    rate: jax.Array | float,
    max_norm: float,
) -> tuple[dict[str, tuple[Any, ...]], tuple[Any, ...], jax.Array]:
    """`descend` for each team by itself: clipped by its own norm, of which the mean is returned."""
    teams = zip(per_team(params), memories, per_team(grads), strict=True)
    moved = [descend(optimiser, *team, rate=rate, max_norm=max_norm) for team in teams]
    team_params, team_memories, norms = zip(*moved, strict=True)
    return per_part(team_params), team_memories, jnp.mean(jnp.stack(norms))
