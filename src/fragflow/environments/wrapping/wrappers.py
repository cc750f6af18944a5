"""Standard wrappers of environments, and `ff.wrap`, which puts them on."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fragflow.api.environment import Environment
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import HostEnvironment
from fragflow.api.spaces import Box, Space
from fragflow.environments.wrapping.wrapper import TimeLimited, Wrapper, with_time_limit
from fragflow.errors import ConfigError, unknown
from fragflow.ops.networks.images import channel_axis


@dataclass(frozen=True)
class FrameStack(Wrapper):
    """See the last N observations; an episode starts with its first one N times.

    Vectors are joined end to end, images along their channels, where they have some.
    """

    count: int

    def __post_init__(self) -> None:
        _require_whole("frame_stack", self.count)

    def observation(self, space: Space) -> Space:
        if not isinstance(space, Box):
            raise ConfigError(f"frame_stack is for numbers, but observations are {space}")

        def stacked(bound: Any) -> Any:
            if np.ndim(bound) == 0:
                return bound
            return tuple(self.first(space, np.reshape(bound, space.shape))[0].ravel().tolist())

        shape = self.first(space, np.empty(space.shape))[0].shape
        return Box(shape=shape, dtype=space.dtype, low=stacked(space.low), high=stacked(space.high))

    def first(self, space: Space, obs: Any) -> tuple[Any, Any]:
        stack = _join([_frame(space, obs)] * self.count, _stacking_axis(space))
        return stack, stack

    def next(self, space: Space, obs: Any, memory: Any) -> tuple[Any, Any]:
        axis, frame = _stacking_axis(space), _frame(space, obs)
        size = frame.shape[axis]
        kept = memory[..., size:, :, :] if axis == -3 else memory[..., size:]
        stack = _join([kept, frame], axis)
        return stack, stack


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Cut episodes after N steps, unless they end by themselves."""

    steps: int

    def __post_init__(self) -> None:
        _require_whole("time_limit", self.steps)

    def around(self, environment: AnyEnvironment) -> AnyEnvironment:
        if isinstance(environment, HostEnvironment):
            return with_time_limit(environment, self.steps)
        return TimeLimited(environment, self.steps)


@dataclass(frozen=True)
class ScaleActions(Wrapper):
    """Act between -1 and 1, whatever bounds the environment has."""

    def action(self, space: Space) -> Space:
        _require_continuous("scale_actions", space)
        if not np.all(np.isfinite(_bounds(space))):
            raise ConfigError(f"scale_actions needs bounds to scale to, but actions are {space}")
        return Box(shape=space.shape, dtype=space.dtype, low=-1.0, high=1.0)

    def act(self, space: Space, action: Any) -> Any:
        low, high = _bounds(space)
        centre, reach = _centre_and_reach(space)
        return action.__array_namespace__().clip(centre + reach * action, low, high)


@dataclass(frozen=True)
class ClipActions(Wrapper):
    """Act without bounds; the environment gets the nearest action within its own."""

    def action(self, space: Space) -> Space:
        _require_continuous("clip_actions", space)
        return Box(shape=space.shape, dtype=space.dtype)

    def act(self, space: Space, action: Any) -> Any:
        return action.__array_namespace__().clip(action, *_bounds(space))


@dataclass(frozen=True)
class ScaleRewards(Wrapper):
    """Multiply rewards by N; the returns that a run reports are scaled too."""

    factor: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        if not is_number or not 0.0 < self.factor < math.inf:
            raise ConfigError(f"scale_rewards is {self.factor!r}: expected a number above 0")

    def reward(self, reward: Any) -> Any:
        return reward * self.factor


WRAPPERS: dict[str, type[Any]] = {
    "frame_stack": FrameStack,
    "time_limit": TimeLimit,
    "scale_actions": ScaleActions,
    "clip_actions": ClipActions,
    "scale_rewards": ScaleRewards,
}
"""By the names that users give them. A wrapper has one field, or none and is just switched on."""


def wrap(environment: AnyEnvironment, *wrappers: Wrapper, **named: Any) -> Any:
    """The environment inside wrappers, the first one innermost; named ones come last.

    Args:
        environment: an environment in JAX or on the host, as an object.
        *wrappers: objects, the innermost first.
        **named: by name, `frame_stack=4`, `time_limit=200`, `scale_actions=True`,
            `clip_actions=True` and `scale_rewards=0.1`.

    Returns:
        An environment of the same kind.

    Raises:
        ConfigError: there is no such wrapper, or it does not fit the environment.
    """
    if isinstance(environment, type) or not isinstance(environment, Environment | HostEnvironment):
        raise ConfigError(
            f"cannot wrap {environment!r}: expected an environment. For one given by name, use the "
            "argument `wrap` of ff.train, or --wrap"
        )
    for wrapper in (*wrappers, *_made(named)):
        environment = wrapper.around(environment)
    return environment


def takes_value(name: str) -> bool:
    """True if the wrapper of this name is given a number."""
    return bool(fields(WRAPPERS[name]))


def _made(named: Mapping[str, Any]) -> list[Wrapper]:
    made: list[Wrapper] = []
    for name, value in named.items():
        if name not in WRAPPERS:
            raise ConfigError(unknown("wrapper", name, WRAPPERS))
        if takes_value(name):
            made.append(WRAPPERS[name](value))
        elif not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}: expected true or false")
        elif value:
            made.append(WRAPPERS[name]())
    return made


def _require_whole(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}: expected a whole number of at least 1")


def _require_continuous(wrapper: str, space: Space) -> None:
    if not isinstance(space, Box) or np.dtype(space.dtype).kind != "f":
        raise ConfigError(f"{wrapper} is for continuous actions, but actions are {space}")


# On the host these are asked for at every step.
@functools.lru_cache
def _bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(space, Box)
    return space.bounds


@functools.lru_cache
def _centre_and_reach(space: Space) -> tuple[np.ndarray, np.ndarray]:
    low, high = _bounds(space)
    return 0.5 * high + 0.5 * low, 0.5 * high - 0.5 * low


def _stacking_axis(space: Space) -> int:
    return channel_axis(space.shape) if len(space.shape) == 3 else -1


def _frame(space: Space, obs: Any) -> Any:
    """An observation with an axis to stack along: numbers and grey images have none."""
    return obs[..., None] if len(space.shape) in (0, 2) else obs


def _join(frames: list[Any], axis: int) -> Any:
    return frames[0].__array_namespace__().concat(frames, axis=axis)
