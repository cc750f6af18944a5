"""Networks that remember: a GRU in front of an actor and of a critic, as plain pytrees."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Key, Shaped

from fragflow.api.spaces import Box, Discrete, Space
from fragflow.ops.distributions import Distribution
from fragflow.ops.networks.actor_critic import (
    MLPActorCritic,
    Params,
    activation,
    apply_tower,
    init_tower,
)
from fragflow.ops.networks.images import convolution_init, convolve, is_image


@dataclass(frozen=True)
class GRUActorCritic:
    """Actor and critic with a memory each, layers before it, and layers that read it.

    A memory is `[..., units]`. It starts as zeros, and `observe` brings it up to date.
    """

    units: int = 64
    hidden: tuple[int, ...] = (64,)
    before: tuple[int, ...] = ()
    """sizes of the layers between the observation and the memory"""
    rectified: bool = False
    """rectified layers instead of tanh layers"""

    def init(
        self,
        key: Key[Array, ""],
        observation: Space,
        action: Space,
        critic_sees: Space | None = None,
    ) -> Params:
        """Parameters, under `actor` and `critic`; the critic may see more than the actor."""
        readers_key, *keys = jax.random.split(key, 3)
        readers = self._readers.init(readers_key, Box(shape=(self.units,)), action)
        seen = (observation, critic_sees or observation)
        return {
            part: self._init_part(part_key, space) | {"reader": readers[part]}
            for part, part_key, space in zip(("actor", "critic"), keys, seen, strict=True)
        }

    def _init_part(self, key: Key[Array, ""], space: Space) -> Params:
        if not self.before:
            return {"gru": init_gru(key, space, self.units)}
        tower_key, gru_key = jax.random.split(key)
        tower = init_tower(tower_key, space, self.before[:-1], self.before[-1], math.sqrt(2.0))
        return {"before": tower, "gru": init_gru(gru_key, Box(shape=self.before[-1:]), self.units)}

    def memory_size(self, _: Space) -> int:
        """The number of entries of a memory."""
        return self.units

    def observe(
        self, part: Params, memory: Float[Array, "*B units"], obs: Shaped[Array, "..."]
    ) -> Float[Array, "*B units"]:
        """The memory of the actor or the critic after `obs`; any number of batch axes."""
        return gru(part["gru"], memory, self._gates(part, obs))

    def observe_all(
        self,
        part: Params,
        memory: Float[Array, "*B units"],
        first: Bool[Array, "T *B"],
        obs: Shaped[Array, "T ..."],
    ) -> Float[Array, "T *B units"]:
        """The memory after each of the observations.

        `memory` is that before them; it is forgotten where an episode begins, which is what `first`
        says.
        """

        def step(memory: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            first, gates = inputs
            memory = gru(part["gru"], forget(memory, first), gates)
            return memory, memory

        # What observations contribute does not depend on memory: all steps at once are faster.
        # As one batch axis they are faster still to differentiate.
        gates = self._gates(part, obs.reshape(-1, *obs.shape[2:]))
        gates = gates.reshape(obs.shape[0], *memory.shape[:-1], -1)
        return lax.scan(step, memory, (first, gates))[1]

    def policy(self, actor: Params, memory: Float[Array, "*B units"]) -> Distribution:
        """The distribution of actions, given the memory after the observation."""
        return self._readers.policy(actor["reader"], memory)

    def value(self, critic: Params, memory: Float[Array, "*B units"]) -> Float[Array, "*B"]:
        """The expected return, given the memory after the observation."""
        return self._readers.value(critic["reader"], memory)

    def _gates(self, part: Params, obs: Shaped[Array, "..."]) -> Float[Array, "... gates"]:
        if "before" in part:
            rise = activation(self.rectified)
            obs = rise(apply_tower(part["before"], obs, rise))
        return gates_of(part["gru"], obs)

    @property
    def _readers(self) -> MLPActorCritic:
        return MLPActorCritic(self.hidden, self.rectified)


@dataclass(frozen=True)
class LastSeen:
    """Actor and critic that remember nothing: their memory is what they see now.

    So that an algorithm for networks with memory has feed-forward networks too.
    """

    hidden: tuple[int, ...] = (64, 64)
    rectified: bool = False

    def init(
        self,
        key: Key[Array, ""],
        observation: Space,
        action: Space,
        critic_sees: Space | None = None,
    ) -> Params:
        actor_key, critic_key = jax.random.split(key)
        network = self._network
        return {
            "actor": network.init(actor_key, observation, action)["actor"],
            "critic": network.init(critic_key, critic_sees or observation, action)["critic"],
        }

    def memory_size(self, space: Space) -> int:
        return math.prod(space.shape)

    def observe(
        self, part: Params, memory: Float[Array, "*B units"], obs: Shaped[Array, "..."]
    ) -> Float[Array, "*B units"]:
        del part
        return obs.reshape(memory.shape).astype(memory.dtype)

    def observe_all(
        self,
        part: Params,
        memory: Float[Array, "*B units"],
        first: Bool[Array, "T *B"],
        obs: Shaped[Array, "T ..."],
    ) -> Float[Array, "T *B units"]:
        del part, first
        return obs.reshape(obs.shape[0], *memory.shape).astype(memory.dtype)

    def policy(self, actor: Params, memory: Float[Array, "*B units"]) -> Distribution:
        return self._network.policy(actor, memory)

    def value(self, critic: Params, memory: Float[Array, "*B units"]) -> Float[Array, "*B"]:
        return self._network.value(critic, memory)

    @property
    def _network(self) -> MLPActorCritic:
        return MLPActorCritic(self.hidden, self.rectified)


def forget(memory: Float[Array, "*B units"], first: Bool[Array, "*B"]) -> Float[Array, "*B units"]:
    """`memory` with zeros where an episode begins."""
    return jnp.where(first[..., None], 0.0, memory)


def init_gru(key: Key[Array, ""], observation: Space, units: int) -> Params:
    """A gated recurrent unit that reads observations; weights are orthogonal, gate by gate."""
    image_key, input_key, memory_key = jax.random.split(key, 3)
    params: Params = {}
    if is_image(observation.shape):
        params["convolutions"], features = convolution_init(image_key, observation.shape)
        inputs: tuple[int, ...] = (features,)
    else:
        inputs = (observation.n,) if isinstance(observation, Discrete) else observation.shape
    # A choice among n is looked up in a table; the name tells it from a vector of size n.
    name = "table" if isinstance(observation, Discrete) else "kernel"
    kernel = _gates(input_key, math.prod(inputs), units)
    params[name] = kernel.reshape(*inputs, 3 * units)
    return params | {
        "recurrent": _gates(memory_key, units, units),
        "bias": jnp.zeros(3 * units),
        "candidate_bias": jnp.zeros(units),
    }


def gates_of(params: Params, obs: Shaped[Array, "..."]) -> Float[Array, "... gates"]:
    """The contribution of observations to the three gates, side by side."""
    if "table" in params:
        product = jax.nn.one_hot(obs, params["table"].shape[0]) @ params["table"]
        return product + lax.broadcast_to_rank(params["bias"], product.ndim)
    if "convolutions" in params:
        obs = convolve(params["convolutions"], obs)
    # The kernel has the observation's axes, and so tells which ones are batch axes.
    kernel = params["kernel"]
    batch = obs.shape[: obs.ndim + 1 - kernel.ndim]
    x = obs.reshape(*batch, -1).astype(kernel.dtype)
    product = x @ kernel.reshape(-1, kernel.shape[-1])
    return product + lax.broadcast_to_rank(params["bias"], product.ndim)


def gru(
    params: Params, memory: Float[Array, "*B units"], gates: Float[Array, "*B 3*units"]
) -> Float[Array, "*B units"]:
    """The next memory of a gated recurrent unit (Cho et al. 2014).

    In the form in which the reset gate is applied after the product with the memory's weights, so
    that there is one product for all gates.
    """
    update, reset, candidate = jnp.split(gates, 3, axis=-1)
    recurrent = jnp.split(memory @ params["recurrent"], 3, axis=-1)
    keep = jax.nn.sigmoid(update + recurrent[0])
    reset = jax.nn.sigmoid(reset + recurrent[1])
    bias = lax.broadcast_to_rank(params["candidate_bias"], memory.ndim)
    fresh = jnp.tanh(candidate + reset * (recurrent[2] + bias))
    return keep * memory + (1.0 - keep) * fresh


def _gates(key: Key[Array, ""], inputs: int, units: int) -> Float[Array, "{inputs} 3*{units}"]:
    orthogonal = jax.nn.initializers.orthogonal()
    keys = jax.random.split(key, 3)
    return jnp.concatenate([orthogonal(k, (inputs, units), jnp.float32) for k in keys], axis=1)
