"""JAX ports of environments on the host, most of them wrong; importing registers an original."""

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import fragflow as ff
from fragflow.environments import make_environment


class CartPole:
    """fragflow's, which is right; subclasses get one thing wrong."""

    name = "ported cart pole"

    def __init__(self, **arguments: Any) -> None:
        self.inner = make_environment("fragflow:CartPole-v1", **arguments)
        self.observation, self.action = self.inner.observation, self.inner.action

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.inner.reset(key)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        return self.inner.step(state, action, key)


class EarlyEnd(CartPole):
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = self.inner.step(state, action, key)
        return step._replace(terminated=step.terminated | (jnp.abs(step.state.theta) > 0.15))


class LateEnd(CartPole):
    """Ends one step later than it should, so that it goes on where the original has ended."""

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = self.inner.step(state, action, key)
        return step._replace(terminated=jnp.abs(state.theta) > 0.2095)


class LastRewardIsZero(CartPole):
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = self.inner.step(state, action, key)
        return step._replace(reward=jnp.where(step.terminated, 0.0, 1.0))


class MixedUpSides(CartPole):
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        return self.inner.step(state, 1 - action, key)


class NotANumber(CartPole):
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = self.inner.step(state, action, key)
        return step._replace(obs=step.obs.at[2].set(jnp.nan))


class OtherSpaces(CartPole):
    def __init__(self) -> None:
        super().__init__()
        self.observation = ff.Box(shape=(4,), low=-4.8, high=4.8)
        self.action = ff.Discrete(n=3)


class OtherShape(CartPole):
    def __init__(self) -> None:
        super().__init__()
        self.observation = ff.Box(shape=(5,))


class Raises(CartPole):
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        raise NotImplementedError("to be ported")


class Fall(gymnasium.Env):
    """A ball falls; its state is not called `state`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.height, self.speed = self.np_random.uniform(1.0, 2.0), 0.0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([self.height, self.speed], np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.speed += 0.1 * (float(action[0]) - 1.0)
        self.height += 0.1 * self.speed
        return self._obs(), -abs(self.speed), self.height < 0.0, False, {}


gymnasium.register("Fall-v0", "cli.ports:Fall", max_episode_steps=30)


class FallState(NamedTuple):
    steps: jax.Array
    height: jax.Array
    speed: jax.Array
    noise: jax.Array


class FallInJax:
    """The port; its state holds a key of random numbers, which is nothing for numpy."""

    name = "fall"
    observation = ff.Box(shape=(2,))
    action = ff.Box(shape=(1,), low=-1.0, high=1.0)
    limit = 30

    def reset(self, key: jax.Array) -> tuple[FallState, jax.Array]:
        state = FallState(jnp.int32(0), jax.random.uniform(key) + 1.0, jnp.float32(0.0), key)
        return state, jnp.stack([state.height, state.speed])

    def step(self, state: FallState, action: jax.Array, key: jax.Array) -> ff.Step:
        speed = state.speed + 0.1 * (action[0] - 1.0)
        height = state.height + 0.1 * speed
        new = FallState(state.steps + 1, height, speed, key)
        is_late = new.steps >= self.limit
        return ff.Step(new, jnp.stack([height, speed]), -jnp.abs(speed), height < 0.0, is_late)


class ShortFallInJax(FallInJax):
    limit = 6


def same_fall(state: Any, env: Any) -> None:
    env.height, env.speed = float(state.height), float(state.speed)


def bad_map(state: Any, env: Any) -> None:
    env.set_state(state.qpos, state.qvel)
