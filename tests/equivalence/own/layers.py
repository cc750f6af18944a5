"""Small networks, as plain pytrees, and one step of Adam: what the algorithms here share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax


def init_layers(key: jax.Array, *sizes: int) -> list[Any]:
    """Layers from the first size to the last."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (i, o)) / math.sqrt(i), "b": jnp.zeros(o)}
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def layers(params: list[Any], *inputs: jax.Array) -> jax.Array:
    """What the layers make of the inputs, side by side; all but the last are tanh layers."""
    x = jnp.concatenate(inputs, axis=-1)
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def init_gru(key: jax.Array, inputs: int, units: int) -> list[Any]:
    return [init_layers(k, inputs + units, units) for k in jax.random.split(key, 3)]


def gru(params: list[Any], memory: jax.Array, *inputs: jax.Array) -> jax.Array:
    """The next memory of a gated recurrent unit (Cho et al. 2014)."""
    update, reset = (jax.nn.sigmoid(layers(gate, *inputs, memory)) for gate in params[:2])
    return memory + update * (jnp.tanh(layers(params[2], *inputs, reset * memory)) - memory)


def adam(rate: float, params: Any, memory: Any, grads: Any) -> tuple[Any, Any]:
    """Parameters and the optimiser's memory after a step against `grads`.

    A gradient that is zero but for rounding stays small by `eps`: it would decide on whole steps.
    """
    updates, memory = optax.adam(rate, eps=1e-5).update(grads, memory)
    return optax.apply_updates(params, updates), memory
