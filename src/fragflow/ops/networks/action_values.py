"""Networks that tell what actions are worth: for a few choices, or for vectors of numbers."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key, Shaped

from fragflow.api.spaces import Box, Discrete, Space
from fragflow.errors import ConfigError
from fragflow.ops.distributions import TanhNormal
from fragflow.ops.networks.actor_critic import Params, apply_tower, init_tower

LOG_STD = (-10.0, 2.0)
"""bounds of the logarithm of an actor's standard deviation"""


@runtime_checkable
class QNetwork(Protocol):
    """Values of all choices at once. An instance must be hashable: it is part of the algorithm."""

    def init(self, key: Key[Array, ""], observation: Space, action: Discrete) -> Any: ...

    def values(self, params: Any, obs: Shaped[Array, "..."]) -> Float[Array, "... A"]:
        """One for each choice, for observations with any number of batch axes."""
        ...


@dataclass(frozen=True)
class MLPQNetwork:
    """Layers of rectified units, behind convolutions where observations are images."""

    hidden: tuple[int, ...] = (64, 64)
    dueling: bool = False
    """the last hidden layer is two, side by side: one for the value, one for advantages"""

    def init(self, key: Key[Array, ""], observation: Space, action: Discrete) -> Params:
        if not self.dueling:
            return init_tower(key, observation, self.hidden, action.n, 1.0)
        trunk_key, value_key, advantage_key = jax.random.split(key, 3)
        *lower, width = self.hidden
        half = Box(shape=(width,))
        return {
            "trunk": init_tower(trunk_key, observation, tuple(lower), 2 * width, 2.0**0.5),
            "value": init_tower(value_key, half, (), 1, 1.0),
            "advantage": init_tower(advantage_key, half, (), action.n, 1.0),
        }

    def values(self, params: Params, obs: Shaped[Array, "..."]) -> Float[Array, "... A"]:
        if not self.dueling:
            return apply_tower(params, obs, jax.nn.relu)
        features = jax.nn.relu(apply_tower(params["trunk"], obs, jax.nn.relu))
        for_value, for_advantage = jnp.split(features, 2, axis=-1)
        value = apply_tower(params["value"], for_value)
        advantage = apply_tower(params["advantage"], for_advantage)
        # Wang et al. 2016, eq. 9.
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


@runtime_checkable
class SoftNetwork(Protocol):
    """An actor that draws vectors in (-1, 1), and critics of them; hashable like a `QNetwork`."""

    def init(self, key: Key[Array, ""], observation: Space, action: Box) -> Params:
        """Parameters, under `actor` and `critic`."""
        ...

    def policy(self, actor: Any, obs: Float[Array, "*B D"]) -> TanhNormal: ...

    def values(
        self, critic: Any, obs: Float[Array, "*B D"], action: Float[Array, "*B A"]
    ) -> tuple[Float[Array, "*B"], ...]:
        """Each critic's opinion; batch axes are all that is left."""
        ...


@dataclass(frozen=True)
class MLPSoftNetwork:
    """One actor and two critics, separate towers of rectified units."""

    hidden: tuple[int, ...] = (256, 256)

    def init(self, key: Key[Array, ""], observation: Space, action: Box) -> Params:
        if not isinstance(observation, Box) or len(observation.shape) != 1:
            raise ConfigError(
                f"observations are {observation}: this network takes vectors of numbers, "
                "Box(shape=(n,))"
            )
        actor_key, *critic_keys = jax.random.split(key, 3)
        both = Box(shape=(observation.size + action.size,))
        return {
            "actor": init_tower(actor_key, observation, self.hidden, 2 * action.size, 0.01),
            "critic": [init_tower(k, both, self.hidden, 1, 1.0) for k in critic_keys],
        }

    def policy(self, actor: Params, obs: Float[Array, "*B D"]) -> TanhNormal:
        mean, log_std = jnp.split(apply_tower(actor, obs, jax.nn.relu), 2, axis=-1)
        return TanhNormal(mean, jnp.clip(log_std, *LOG_STD))

    def values(
        self, critic: list[Params], obs: Float[Array, "*B D"], action: Float[Array, "*B A"]
    ) -> tuple[Float[Array, "*B"], ...]:
        both = jnp.concatenate([obs, action], axis=-1)
        return tuple(apply_tower(tower, both, jax.nn.relu)[..., 0] for tower in critic)
