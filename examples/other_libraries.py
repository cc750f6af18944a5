"""One environment each of pgx, Craftax and Jumanji: a class for a library that has no adapter.

    pip install pgx craftax jumanji
    cd examples
    fragflow train ppo --env other_libraries:Game2048 --policy single-learner-coarse --workers 2
    fragflow train ppo --env other_libraries:Craftax --policy single-learner-coarse --workers 2
    fragflow train ppo --env other_libraries:Snake --policy single-learner-coarse --workers 2

Each calls the steps of its library that start no new episode at the end of one: fragflow does that.
"""

from typing import Any

import jax
import jax.numpy as jnp

import fragflow as ff


class Game2048:
    """The game 2048, from pgx. A move that changes nothing ends it."""

    name = "2048"
    observation = ff.Box(shape=(4 * 4 * 31,), low=0.0, high=1.0)
    action = ff.Discrete(n=4)

    def __init__(self) -> None:
        import pgx

        self._game = pgx.make("2048")

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self._game.init(key)
        return state, self._seen(state)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        state = self._game.step(state, action, key)
        return ff.Step(
            state, self._seen(state), state.rewards[0], state.terminated, state.truncated
        )

    def _seen(self, state: Any) -> jax.Array:
        return state.observation.ravel().astype(jnp.float32)


class Craftax:
    """Craftax-Classic, as symbols: dig, build and survive."""

    name = "Craftax-Classic-Symbolic"
    observation = ff.Box(shape=(1345,))
    action = ff.Discrete(n=17)

    def __init__(self) -> None:
        from craftax.craftax_env import make_craftax_env_from_name

        self._world = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
        self._params = self._world.default_params

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = self._world.reset_env(key, self._params)
        return state, obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        obs, state, reward, over, _ = self._world.step_env(key, state, action, self._params)
        truncated = state.timestep >= self._params.max_timesteps
        return ff.Step(state, obs, reward, over & ~truncated, over & truncated)


class Snake:
    """Snake, from Jumanji."""

    name = "Snake"
    observation = ff.Box(shape=(12 * 12 * 5,), low=0.0, high=1.0)
    action = ff.Discrete(n=4)

    def __init__(self) -> None:
        import jumanji

        self._game: Any = jumanji.make("Snake-v1")

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state, first = self._game.reset(key)
        return state, first.observation.grid.ravel()

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        del key  # it keeps one of its own in its state
        state, next = self._game.step(state, action)
        truncated = state.step_count >= self._game.time_limit
        obs = next.observation.grid.ravel()
        return ff.Step(state, obs, next.reward, next.last() & ~truncated, next.last() & truncated)
