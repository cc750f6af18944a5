"""A car in a valley whose engine is too weak for the hill: it has to gather way by going back.

A. W. Moore: Efficient memory-based learning for robot control. PhD thesis, University of Cambridge
(1990).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.spaces import Box, Discrete
from fragflow.environments.classic.task import box, start_of_time


class CarState(NamedTuple):
    time: jax.Array
    position: jax.Array
    """the valley's bottom is at -π/6"""
    velocity: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Valley:
    """The valley that the car drives in; a step is a unit of time (Moore 1990)."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float
    goal_velocity: float = 0.0
    gravity: float = 0.0025

    @property
    def observation(self) -> Box:
        return box([self.min_position, -self.max_speed], [self.max_position, self.max_speed])

    def start(self, key: jax.Array) -> CarState:
        position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
        return CarState(start_of_time(), position, jnp.float32(0.0))

    def drive(self, state: CarState, thrust: jax.Array) -> tuple[CarState, jax.Array]:
        """The state after a step, and whether the car is at its goal."""
        velocity = state.velocity + thrust - self.gravity * jnp.cos(3 * state.position)
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, self.min_position, self.max_position)
        # The wall on the left stops the car.
        velocity = jnp.where(position <= self.min_position, jnp.maximum(velocity, 0.0), velocity)
        is_there = (position >= self.goal_position) & (velocity >= self.goal_velocity)
        return CarState(state.time + 1, position, velocity), is_there

    def observe(self, state: CarState) -> jax.Array:
        return jnp.stack(state[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MountainCar(Valley):
    """The engine pulls back, idles or pulls forth; every step costs 1 (Moore 1990)."""

    goal_position: float = 0.5
    force: float = 0.001
    max_steps: int = 200

    action = Discrete(n=3)

    def advance(self, state: CarState, action: jax.Array) -> tuple[CarState, jax.Array, jax.Array]:
        after, is_there = self.drive(state, (action - 1).astype(jnp.float32) * self.force)
        return after, jnp.float32(-1.0), is_there


@dataclasses.dataclass(frozen=True, kw_only=True)
class MountainCarContinuous(Valley):
    """The engine pulls as hard as it is told, which has its cost; the goal is worth 100."""

    goal_position: float = 0.45
    power: float = 0.0015
    max_steps: int = 999

    action = Box(shape=(1,), low=-1.0, high=1.0)

    def advance(self, state: CarState, action: jax.Array) -> tuple[CarState, jax.Array, jax.Array]:
        after, is_there = self.drive(state, jnp.clip(action[0], -1.0, 1.0) * self.power)
        return after, jnp.where(is_there, 100.0, 0.0) - 0.1 * action[0] ** 2, is_there
