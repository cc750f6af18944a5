"""Updates of parameters: a clipped step of an optimiser, and a target that follows."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float


class Learner(NamedTuple):
    """What a gradient step changes: the parameters, and the optimiser's state."""

    params: Any
    optimiser: Any


def descend(
    optimiser: optax.GradientTransformation,
    learner: Learner,
    grads: Any,
    rate: Float[Array, ""] | float,
    max_norm: float | None = None,
) -> tuple[Learner, Float[Array, ""]]:
    """The learner after a step against `grads`, and their norm.

    Gradients with a larger global norm than `max_norm` are scaled down to it. They must be means
    over all environments already: neither clipping nor Adam is linear.
    """
    norm = optax.tree.norm(grads)
    if max_norm is not None:
        shrink = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-8))
        grads = jax.tree.map(lambda g: g * shrink, grads)
    updates, state = optimiser.update(grads, learner.optimiser)
    return Learner(jax.tree.map(lambda p, u: p - rate * u, learner.params, updates), state), norm


def descend_apart(
    optimiser: optax.GradientTransformation,
    learner: Learner,
    grads: Any,
    rate: Float[Array, ""] | float,
    max_norm: float | None = None,
) -> tuple[Learner, dict[str, Float[Array, ""]]]:
    """`descend` part by part: gradients of a critic, say, do not shrink those of an actor."""
    after = {
        part: descend(
            optimiser, Learner(learner.params[part], learner.optimiser[part]), grad, rate, max_norm
        )
        for part, grad in grads.items()
    }
    params = {part: learner.params for part, (learner, _) in after.items()}
    states = {part: learner.optimiser for part, (learner, _) in after.items()}
    return Learner(params, states), {part: norm for part, (_, norm) in after.items()}


Tree = TypeVar("Tree")


def polyak(target: Tree, online: Tree, rate: Float[Array, ""] | float) -> Tree:
    """`target` moved towards `online` by `rate` (Lillicrap et al. 2016, section 3)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
