"""How a batch is split into minibatches."""

import jax
import jax.numpy as jnp


def time_minibatches(key: jax.Array, length: int, epochs: int, minibatches: int) -> jax.Array:
    """Which time steps each minibatch takes, int32 `[epochs * minibatches, length / minibatches]`.

    Every epoch visits every step once, in a new order. A minibatch holds all environments at its
    steps: it does not depend on where they are, and is a gather of whole rows.
    """
    keys = jax.random.split(key, epochs)
    steps = jnp.arange(length, dtype=jnp.int32)
    orders = jax.vmap(jax.random.permutation, (0, None))(keys, steps)
    return orders.reshape(epochs * minibatches, length // minibatches)
