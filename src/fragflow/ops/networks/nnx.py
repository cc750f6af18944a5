"""Actors and critics that are flax nnx modules: split once into plain pytrees, at the edge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key, Shaped

from fragflow.api.spaces import Box, Space
from fragflow.errors import ConfigError
from fragflow.ops.distributions import Categorical, Distribution, Normal

try:
    from flax import nnx
except ModuleNotFoundError as error:
    raise ConfigError(
        f"networks of nnx modules need flax, which is not installed ({error.name} is missing): "
        "pip install 'fragflow[flax]'"
    ) from error

Make = Callable[[nnx.Rngs], nnx.Module]


@dataclass(frozen=True)
class NnxActorCritic:
    """Two modules, each made from random numbers alone; only their parameters travel."""

    actor: Make
    """its output: logits of a choice, or means of a vector of actions"""
    critic: Make
    """its output: `[..., 1]`"""

    def init(self, key: Key[Array, ""], observation: Space, action: Space) -> dict[str, Any]:
        del observation  # the modules know their own sizes
        actor_key, critic_key = jax.random.split(key)
        actor = {"net": _params(self.actor, actor_key)}
        if isinstance(action, Box):
            actor["log_std"] = jnp.zeros(action.shape, jnp.float32)
        return {"actor": actor, "critic": {"net": _params(self.critic, critic_key)}}

    def policy(self, actor: Any, obs: Shaped[Array, "..."]) -> Distribution:
        output = _apply(self.actor, actor["net"], obs)
        return Normal(output, actor["log_std"]) if "log_std" in actor else Categorical(output)

    def value(self, critic: Any, obs: Shaped[Array, "..."]) -> Float[Array, "..."]:
        return _apply(self.critic, critic["net"], obs)[..., 0]


def _params(make: Make, key: Key[Array, ""]) -> Any:
    return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))


def _apply(make: Make, params: Any, obs: Shaped[Array, "..."]) -> Float[Array, "..."]:
    structure, state = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    module: Any = nnx.merge(structure, state)
    return module(obs)
