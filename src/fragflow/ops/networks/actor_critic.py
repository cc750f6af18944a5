"""Function approximators as plain pytrees of arrays: what to initialise, and how to apply it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Key, Shaped

from fragflow.api.spaces import Box, Discrete, MultiDiscrete, Space
from fragflow.errors import ConfigError
from fragflow.ops.distributions import Categorical, Distribution, MultiCategorical, Normal
from fragflow.ops.networks.images import Weights, convolution_init, convolve, is_image

Params = dict[str, Any]

NARROW = 4
"""Layers with at most this many outputs are computed one output at a time: on a CPU the gradient of
a `[64, 2]` kernel takes XLA six times as long as those of two vectors."""


@runtime_checkable
class ActorCriticNetwork(Protocol):
    """A policy and a value function with parameters of their own.

    Any library will do that can give its parameters as a pytree. An instance must be hashable: it
    is part of the algorithm, like a hyperparameter.
    """

    def init(self, key: Key[Array, ""], observation: Space, action: Space) -> Params:
        """Parameters, under `actor` and `critic`."""
        ...

    def policy(self, actor: Any, obs: Shaped[Array, "..."]) -> Distribution:
        """The distribution of actions, for observations with any number of batch axes."""
        ...

    def value(self, critic: Any, obs: Shaped[Array, "..."]) -> Float[Array, "..."]:
        """The expected return from each observation: its batch axes are all that is left."""
        ...


@dataclass(frozen=True)
class MLPActorCritic:
    """Two separate towers of layers, behind convolutions where observations are images.

    Orthogonal weights, a policy that starts almost uniform, a standard deviation that does not
    depend on the observation (Andrychowicz et al. 2021; Huang et al. 2022).
    """

    hidden: tuple[int, ...] = (64, 64)
    rectified: bool = False
    """rectified layers instead of tanh layers"""

    def init(self, key: Key[Array, ""], observation: Space, action: Space) -> Params:
        actor_key, critic_key = jax.random.split(key)
        actor = init_tower(actor_key, observation, self.hidden, _outputs(action), 0.01)
        if isinstance(action, MultiDiscrete):
            # One bias per choice, apart from the others: it tells where each begins.
            actor["choices"] = [jnp.zeros(count) for count in action.counts]
        if isinstance(action, Box):
            actor["log_std"] = jnp.zeros(action.shape, jnp.float32)
        return {"actor": actor, "critic": init_tower(critic_key, observation, self.hidden, 1, 1.0)}

    def policy(self, actor: Params, obs: Shaped[Array, "..."]) -> Distribution:
        output = apply_tower(actor, obs, activation(self.rectified))
        if "choices" in actor:
            parts, start = [], 0
            for bias in actor["choices"]:
                logits = output[..., start : start + len(bias)]
                parts.append(Categorical(logits + lax.broadcast_to_rank(bias, logits.ndim)))
                start += len(bias)
            return MultiCategorical(tuple(parts))
        return Normal(output, actor["log_std"]) if "log_std" in actor else Categorical(output)

    def value(self, critic: Params, obs: Shaped[Array, "..."]) -> Float[Array, "..."]:
        return apply_tower(critic, obs, activation(self.rectified))[..., 0]


def activation(rectified: bool) -> Callable[[Array], Array]:
    return jax.nn.relu if rectified else jnp.tanh


def init_tower(
    key: Key[Array, ""], observation: Space, hidden: tuple[int, ...], outputs: int, scale: float
) -> Params:
    """A tower of layers, behind convolutions where observations are images.

    Weights are orthogonal; `scale` is the size of those of the last layer.
    """
    if is_image(observation.shape):
        image_key, key = jax.random.split(key)
        convolutions, features = convolution_init(image_key, observation.shape)
        layers = _init_layers(key, Box(shape=(features,)), hidden, outputs, scale)
        return {"convolutions": convolutions, "layers": layers}
    return {"layers": _init_layers(key, observation, hidden, outputs, scale)}


def _init_layers(
    key: Key[Array, ""], observation: Space, hidden: tuple[int, ...], outputs: int, scale: float
) -> list[Params]:
    sizes = (*hidden, outputs)
    scales = (math.sqrt(2.0),) * len(hidden) + (scale,)
    # A choice among n is looked up in a table; the name tells it from a vector of size n.
    name = "table" if isinstance(observation, Discrete) else "kernel"
    inputs = (observation.n,) if isinstance(observation, Discrete) else observation.shape
    layers: list[Params] = []
    keys = jax.random.split(key, len(sizes))
    for layer_key, size, layer_scale in zip(keys, sizes, scales, strict=True):
        orthogonal = jax.nn.initializers.orthogonal(layer_scale)
        weights = orthogonal(layer_key, (math.prod(inputs), size), jnp.float32)
        layers.append({name: weights.reshape(*inputs, size), "bias": jnp.zeros(size)})
        name, inputs = "kernel", (size,)
    return layers


def apply_tower(
    tower: Params, obs: Shaped[Array, "..."], activation: Callable[[Array], Array] = jnp.tanh
) -> Float[Array, "... outputs"]:
    """The outputs of a tower for observations with any number of batch axes."""
    layers = tower["layers"]
    if "convolutions" in tower:
        obs = convolve(tower["convolutions"], obs)
    x = _first(layers[0], obs)
    for layer in layers[1:]:
        x = _linear(layer["kernel"], layer["bias"], activation(x))
    return x


def _first(layer: Params, obs: Shaped[Array, "..."]) -> Float[Array, "... outputs"]:
    if "table" in layer:
        rows = jax.nn.one_hot(obs, layer["table"].shape[0], dtype=layer["table"].dtype)
        return _linear(layer["table"], layer["bias"], rows)
    # The kernel has the observation's axes, and so tells which ones are batch axes.
    kernel = layer["kernel"]
    batch = obs.shape[: obs.ndim + 1 - kernel.ndim]
    x = obs.reshape(*batch, -1).astype(kernel.dtype)
    return _linear(kernel.reshape(-1, kernel.shape[-1]), layer["bias"], x)


def _linear(
    kernel: Float[Weights, "inputs outputs"],
    bias: Float[Weights, " outputs"],
    x: Float[Array, "*B inputs"],
) -> Float[Array, "*B outputs"]:
    if kernel.shape[-1] > NARROW:
        return x @ kernel + lax.broadcast_to_rank(bias, x.ndim)
    product = jnp.stack([x @ column for column in kernel.T], axis=-1)
    return product + lax.broadcast_to_rank(bias, x.ndim)


def _outputs(action: Space) -> int:
    if isinstance(action, Discrete):
        return action.n
    if isinstance(action, MultiDiscrete):
        return sum(action.counts)
    if len(action.shape) != 1:
        raise ConfigError(
            f"actions have shape {action.shape}: this network makes vectors, of shape (n,)"
        )
    return action.shape[0]
