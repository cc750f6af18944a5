"""Networks of the user's own: what they return is looked at where they return it.

Without that, a wrong shape would fail far behind, in an algorithm that has done nothing wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from fragflow.api.spaces import Box, Discrete, Space
from fragflow.error_owner import defined_at
from fragflow.errors import ConfigError, TraceError
from fragflow.ops.distributions import Distribution, TanhNormal
from fragflow.ops.networks.action_values import QNetwork, SoftNetwork
from fragflow.ops.networks.actor_critic import ActorCriticNetwork, MLPActorCritic

TOWERS = ("actor", "critic")
METHODS = ("sample", "mode", "log_prob", "entropy")
"""methods of a distribution that algorithms call"""


@dataclass(frozen=True)
class GivenActorCritic:
    """An `ActorCriticNetwork` that is looked at."""

    network: ActorCriticNetwork

    def __post_init__(self) -> None:
        _require(self.network, "init", "policy", "value")

    def init(self, key: jax.Array, observation: Space, action: Space) -> dict[str, Any]:
        return _towers(self.network.init, self.network.init(key, observation, action))

    def policy(self, actor: Any, obs: jax.Array) -> Distribution:
        made = self.network.policy(actor, obs)
        missing = [name for name in METHODS if not callable(getattr(made, name, None))]
        if missing:
            raise _unexpected(
                self.network.policy,
                made,
                f"a distribution such as fragflow.ops.Categorical, with {', '.join(missing)}",
            )
        entropy = jax.eval_shape(made.entropy)
        if entropy.shape != obs.shape[: entropy.ndim]:
            shape = list(entropy.shape)
            expected = f"one for each observation of {_described(obs)}"
            raise TraceError(
                f"{_name(self.network.policy)} returned distributions of shape {shape}: expected "
                f"{expected}{defined_at(self.network.policy)}"
            )
        return made

    def value(self, critic: Any, obs: jax.Array) -> jax.Array:
        return _per_observation(self.network.value, self.network.value(critic, obs), obs)


def actor_critic(network: Any, hidden: tuple[int, ...]) -> ActorCriticNetwork:
    """The user's network, or one of fragflow's with `hidden` layers."""
    return MLPActorCritic(hidden) if network is None else GivenActorCritic(network)


@dataclass(frozen=True)
class GivenQNetwork:
    """A `QNetwork` that is looked at."""

    network: QNetwork

    def __post_init__(self) -> None:
        _require(self.network, "init", "values")

    def init(self, key: jax.Array, observation: Space, action: Discrete) -> Any:
        return self.network.init(key, observation, action)

    def values(self, params: Any, obs: jax.Array) -> jax.Array:
        made = self.network.values(params, obs)
        shape = getattr(made, "shape", None)
        if not shape or shape[:-1] != obs.shape[: len(shape) - 1]:
            expected = "one number per choice, [..., A], for each observation"
            raise _unexpected(self.network.values, made, f"{expected} of {_described(obs)}")
        return made


@dataclass(frozen=True)
class GivenSoftNetwork:
    """A `SoftNetwork` that is looked at."""

    network: SoftNetwork

    def __post_init__(self) -> None:
        _require(self.network, "init", "policy", "values")

    def init(self, key: jax.Array, observation: Space, action: Box) -> dict[str, Any]:
        return _towers(self.network.init, self.network.init(key, observation, action))

    def policy(self, actor: Any, obs: jax.Array) -> TanhNormal:
        return self.network.policy(actor, obs)

    def values(self, critic: Any, obs: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        made = self.network.values(critic, obs, action)
        if not isinstance(made, tuple | list) or not made:
            raise _unexpected(self.network.values, made, "a tuple with each critic's opinion")
        return tuple(_per_observation(self.network.values, opinion, obs) for opinion in made)


def _require(network: Any, *methods: str) -> None:
    missing = [name for name in methods if not callable(getattr(network, name, None))]
    if missing or isinstance(network, type):
        raise ConfigError(
            f"the network is {network!r}: expected an object with {', '.join(methods)}"
        )


def _towers(function: Callable[..., Any], made: Any) -> dict[str, Any]:
    if not isinstance(made, Mapping) or any(tower not in made for tower in TOWERS):
        raise _unexpected(function, made, "a dictionary of parameters with 'actor' and 'critic'")
    return dict(made)


def _per_observation(function: Callable[..., Any], made: Any, obs: jax.Array) -> jax.Array:
    shape = getattr(made, "shape", None)
    if shape is None or shape != obs.shape[: len(shape)]:
        raise _unexpected(function, made, f"one number for each observation of {_described(obs)}")
    return made


def _unexpected(function: Callable[..., Any], made: Any, expected: str) -> TraceError:
    return TraceError(
        f"{_name(function)} returned {_described(made)}: expected {expected}{defined_at(function)}"
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return f"a dictionary with {', '.join(map(repr, value)) or 'nothing'}"
    return type(value).__name__
