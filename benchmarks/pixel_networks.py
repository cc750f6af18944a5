"""The network of `pixels.py` that takes an image for a vector."""

import math
from dataclasses import dataclass
from typing import Any

import jax

from fragflow import ops
from fragflow.api.spaces import Box, Space

_MLP = ops.MLPActorCritic()


@dataclass(frozen=True)
class FlatActorCritic:
    """Two tanh layers of 64 for actor and critic each, on all pixels at once."""

    def init(self, key: jax.Array, observation: Space, action: Space) -> dict[str, Any]:
        return _MLP.init(key, Box(shape=(math.prod(observation.shape),)), action)

    def policy(self, actor: Any, obs: jax.Array) -> Any:
        return _MLP.policy(actor, _flat(obs))

    def value(self, critic: Any, obs: jax.Array) -> jax.Array:
        return _MLP.value(critic, _flat(obs))


def _flat(obs: jax.Array) -> jax.Array:
    return obs.reshape(*obs.shape[:-3], -1)
