"""Two links that hang from a bar, with a motor between them, to be swung up to a height.

R. S. Sutton: Generalization in reinforcement learning: successful examples using sparse coarse
coding. Advances in Neural Information Processing Systems 8 (1996).
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.spaces import Box, Discrete
from fragflow.environments.classic.task import box, start_of_time


class AcrobotState(NamedTuple):
    time: jax.Array
    joint_angle1: jax.Array
    """of the first link, from hanging down"""
    joint_angle2: jax.Array
    """of the second, from the direction of the first"""
    velocity_1: jax.Array
    velocity_2: jax.Array


@dataclasses.dataclass(frozen=True)
class Acrobot:
    """Every step costs 1, until the tip is a link's length above the bar (Sutton 1996).

    The acceleration is that of Sutton and Barto's book, which has a term more than the paper's.
    """

    dt: float = 0.2
    """seconds per step"""
    gravity: float = 9.8
    link_length_1: float = 1.0
    link_mass_1: float = 1.0
    link_mass_2: float = 1.0
    link_com_pos_1: float = 0.5
    """from a link's upper end to its centre of mass"""
    link_com_pos_2: float = 0.5
    link_moi: float = 1.0
    """moment of inertia, of either link"""
    max_vel_1: float = 4 * math.pi
    max_vel_2: float = 9 * math.pi
    max_steps: int = 500

    action = Discrete(n=3)

    @property
    def observation(self) -> Box:
        most = [1.0, 1.0, 1.0, 1.0, self.max_vel_1, self.max_vel_2]
        return box([-bound for bound in most], most)

    def start(self, key: jax.Array) -> AcrobotState:
        return AcrobotState(
            start_of_time(), *jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        )

    def advance(
        self, state: AcrobotState, action: jax.Array
    ) -> tuple[AcrobotState, jax.Array, jax.Array]:
        torque = (action - 1).astype(jnp.float32)
        angle1, angle2, velocity1, velocity2 = self._moved(jnp.stack(state[1:]), torque)
        after = AcrobotState(
            state.time + 1,
            _wrapped(angle1),
            _wrapped(angle2),
            jnp.clip(velocity1, -self.max_vel_1, self.max_vel_1),
            jnp.clip(velocity2, -self.max_vel_2, self.max_vel_2),
        )
        # Counted in links, whatever their length.
        height = -jnp.cos(after.joint_angle1) - jnp.cos(after.joint_angle1 + after.joint_angle2)
        is_up = height > 1.0
        return after, jnp.where(is_up, 0.0, -1.0), is_up

    def observe(self, state: AcrobotState) -> jax.Array:
        _, angle1, angle2, velocity1, velocity2 = state
        return jnp.stack(
            [
                jnp.cos(angle1),
                jnp.sin(angle1),
                jnp.cos(angle2),
                jnp.sin(angle2),
                velocity1,
                velocity2,
            ]
        )

    def _moved(self, place: jax.Array, torque: jax.Array) -> jax.Array:
        """Angles and velocities after a step, by the Runge-Kutta method of fourth order."""
        slope1 = self._slope(place, torque)
        slope2 = self._slope(place + self.dt / 2 * slope1, torque)
        slope3 = self._slope(place + self.dt / 2 * slope2, torque)
        slope4 = self._slope(place + self.dt * slope3, torque)
        return place + self.dt / 6 * (slope1 + 2 * slope2 + 2 * slope3 + slope4)

    def _slope(self, place: jax.Array, torque: jax.Array) -> jax.Array:
        """The rates of change of angles and velocities."""
        angle1, angle2, velocity1, velocity2 = place
        m1, m2, length = self.link_mass_1, self.link_mass_2, self.link_length_1
        centre1, centre2, moi = self.link_com_pos_1, self.link_com_pos_2, self.link_moi
        sin, cos = jnp.sin(angle2), jnp.cos(angle2)
        coupling = m2 * length * centre2
        # Inertia: of both links about the bar, of one about the other, of the second about its end.
        both = m1 * centre1**2 + m2 * (length**2 + centre2**2) + 2 * coupling * cos + 2 * moi
        shared = m2 * centre2**2 + coupling * cos + moi
        second = m2 * centre2**2 + moi
        # Weight pulls links down; each turn of a link pulls at the other.
        weight2 = m2 * centre2 * self.gravity * jnp.sin(angle1 + angle2)
        weight1 = (m1 * centre1 + m2 * length) * self.gravity * jnp.sin(angle1) + weight2
        load1 = weight1 - coupling * sin * velocity2 * (velocity2 + 2 * velocity1)
        load2 = weight2 + coupling * sin * velocity1**2
        ratio = shared / both
        acceleration2 = (torque - load2 + ratio * load1) / (second - ratio * shared)
        acceleration1 = -(load1 + shared * acceleration2) / both
        return jnp.stack([velocity1, velocity2, acceleration1, acceleration2])


def _wrapped(angle: jax.Array) -> jax.Array:
    """The same angle, from -π to π."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))
