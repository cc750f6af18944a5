"""A pole on a cart, balanced by pushing the cart to the left or to the right.

A. G. Barto, R. S. Sutton and C. W. Anderson: Neuronlike adaptive elements that can solve difficult
learning control problems. IEEE Transactions on Systems, Man, and Cybernetics 13 (1983).
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.spaces import Box, Discrete
from fragflow.environments.classic.task import box, start_of_time


class CartPoleState(NamedTuple):
    time: jax.Array
    x: jax.Array
    """of the cart, from the middle of its track"""
    x_dot: jax.Array
    theta: jax.Array
    """of the pole, from upright"""
    theta_dot: jax.Array


@dataclasses.dataclass(frozen=True)
class CartPole:
    """Every step that the pole stays up is rewarded with 1 (Barto, Sutton and Anderson 1983)."""

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5
    """half of the pole's: to its centre of mass"""
    force_mag: float = 10.0
    tau: float = 0.02
    """seconds per step"""
    theta_threshold_radians: float = math.radians(12)
    x_threshold: float = 2.4
    max_steps: int = 500

    action = Discrete(n=2)

    @property
    def observation(self) -> Box:
        # Twice as far as an episode goes, so that its last observation is inside too.
        far = [2 * self.x_threshold, math.inf, 2 * self.theta_threshold_radians, math.inf]
        return box([-bound for bound in far], far)

    def start(self, key: jax.Array) -> CartPoleState:
        x, x_dot, theta, theta_dot = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return CartPoleState(start_of_time(), x, x_dot, theta, theta_dot)

    def advance(
        self, state: CartPoleState, action: jax.Array
    ) -> tuple[CartPoleState, jax.Array, jax.Array]:
        time, x, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, self.force_mag, -self.force_mag)
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        mass = self.masscart + self.masspole
        leverage = self.masspole * self.length / mass
        push = force / mass + leverage * theta_dot**2 * sin
        inertia = self.length * (4 / 3 - self.masspole / mass * cos**2)
        theta_acceleration = (self.gravity * sin - push * cos) / inertia
        x_acceleration = push - leverage * theta_acceleration * cos
        # Euler's method: places move with the velocities from before the step.
        after = CartPoleState(
            time + 1,
            x + self.tau * x_dot,
            x_dot + self.tau * x_acceleration,
            theta + self.tau * theta_dot,
            theta_dot + self.tau * theta_acceleration,
        )
        is_off_track = jnp.abs(after.x) > self.x_threshold
        has_fallen = jnp.abs(after.theta) > self.theta_threshold_radians
        return after, jnp.float32(1.0), is_off_track | has_fallen

    def observe(self, state: CartPoleState) -> jax.Array:
        return jnp.stack(state[1:])
