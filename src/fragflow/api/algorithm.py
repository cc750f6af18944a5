"""Algorithms: three functions over explicit state, with their hyperparameters as fields."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from fragflow._jax_typed import is_mapping
from fragflow.api.environment_batch import Environments
from fragflow.errors import ConfigError

Metrics = dict[str, jax.Array]


class Clock(NamedTuple):
    """The point that training has reached; given by the runtime, equal on all replicas."""

    key: jax.Array
    """a fresh random key for this iteration"""
    iteration: jax.Array
    """int32, from 0"""
    env_steps: jax.Array
    """int32, environment steps made before this iteration"""
    progress: jax.Array
    """float32, from 0 towards 1 at the last iteration"""


@dataclass(frozen=True)
class Algorithm:
    """A training loop. Subclasses are frozen dataclasses; their fields are the hyperparameters.

    Write it for one imagined device that holds all environments. Nothing in it but shapes may
    depend on how many environments it is given.
    """

    def init(self, env: Environments, key: jax.Array) -> Any:
        """The first state: a pytree with a field `params`."""
        raise NotImplementedError(f"{type(self).__name__} has no init(env, key)")

    def step(self, env: Environments, state: Any, clock: Clock) -> tuple[Any, Metrics]:
        """One iteration of the training loop: the next state, and scalars to report."""
        raise NotImplementedError(f"{type(self).__name__} has no step(env, state, clock)")

    def weights(self, state: Any) -> Any:
        """The part of the state that `policy` acts with, and that a run saves: its `params`.

        Override it where acting needs more of the state, such as statistics of observations.
        """
        return state["params"] if is_mapping(state) else state.params

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        """Returns a trained agent's action in one environment, and its next memory.

        `params` are what `weights` takes from the state. `memory` is None at the start of an
        episode, then what the last call returned.
        """
        raise NotImplementedError(f"{type(self).__name__} has no policy(params, obs, memory, key)")


def check_settings(
    algorithm: Any,
    *,
    at_least_1: Sequence[str] = (),
    above_0: Sequence[str] = (),
    from_0: Sequence[str] = (),
    from_0_to_1: Sequence[str] = (),
    below_1: Sequence[str] = (),
    sizes: Sequence[str] = (),
    divides: Sequence[tuple[str, str]] = (),
) -> None:
    """Refuses hyperparameters outside of their ranges.

    Args:
        algorithm: the object that has them, as attributes.
        at_least_1: names of those that are 1 or more.
        above_0: names of those that are more than 0.
        from_0: names of those that are 0 or more.
        from_0_to_1: names of those between 0 and 1, both included.
        below_1: names of those that are 0 or more, and less than 1.
        sizes: names of tuples of whole numbers, each 1 or more.
        divides: pairs of names; of each the first divides the second.

    Raises:
        ConfigError: one is outside of its range; the message names it.
    """
    rules: list[tuple[Sequence[str], Callable[[Any], bool], str]] = [
        (at_least_1, lambda x: x >= 1, "at least 1"),
        (above_0, lambda x: x > 0, "above 0"),
        (from_0, lambda x: x >= 0, "0 or more"),
        (from_0_to_1, lambda x: 0 <= x <= 1, "between 0 and 1"),
        (below_1, lambda x: 0 <= x < 1, "0 or more, and below 1"),
        (sizes, lambda x: all(size >= 1 for size in x), "sizes of at least 1"),
    ]
    for names, holds, expected in rules:
        for name in names:
            value = getattr(algorithm, name)
            if not holds(value):
                raise ConfigError(f"{name} = {value}: expected {expected}")
    for part, whole in divides:
        if getattr(algorithm, whole) % getattr(algorithm, part):
            raise ConfigError(
                f"{part} = {getattr(algorithm, part)} does not divide {whole} = "
                f"{getattr(algorithm, whole)}: expected a divisor of it"
            )
