"""A pendulum, too heavy for its motor, that is to be swung up and kept there.

The equation of a rod that swings around its end, without friction.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.spaces import Box
from fragflow.environments.classic.task import box, start_of_time


class PendulumState(NamedTuple):
    time: jax.Array
    theta: jax.Array
    """from upright; it is not wrapped, so that it counts turns"""
    theta_dot: jax.Array
    last_torque: jax.Array
    """for pictures: the motor's, in the step before"""


@dataclasses.dataclass(frozen=True)
class Pendulum:
    """Being far from upright, fast and forceful has its cost; an episode only ends by its limit."""

    max_speed: float = 8.0
    max_torque: float = 2.0
    dt: float = 0.05
    """seconds per step"""
    g: float = 10.0
    m: float = 1.0
    l: float = 1.0  # noqa: E741
    max_steps: int = 200

    @property
    def observation(self) -> Box:
        most = [1.0, 1.0, self.max_speed]
        return box([-bound for bound in most], most)

    @property
    def action(self) -> Box:
        return Box(shape=(1,), low=-self.max_torque, high=self.max_torque)

    def start(self, key: jax.Array) -> PendulumState:
        most = jnp.array([math.pi, 1.0])
        theta, theta_dot = jax.random.uniform(key, (2,), minval=-most, maxval=most)
        return PendulumState(start_of_time(), theta, theta_dot, jnp.float32(0.0))

    def advance(
        self, state: PendulumState, action: jax.Array
    ) -> tuple[PendulumState, jax.Array, jax.Array]:
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        off = _wrapped(state.theta)
        cost = off**2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2
        inertia = self.m * self.l**2 / 3
        weight = self.m * self.g * self.l / 2 * jnp.sin(state.theta)
        speed = state.theta_dot + (weight + torque) / inertia * self.dt
        speed = jnp.clip(speed, -self.max_speed, self.max_speed)
        after = PendulumState(state.time + 1, state.theta + speed * self.dt, speed, torque)
        return after, -cost, jnp.bool_(False)

    def observe(self, state: PendulumState) -> jax.Array:
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])


def _wrapped(angle: jax.Array) -> jax.Array:
    """The same angle, from -π to π."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
