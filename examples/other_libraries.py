"""One environment each of pgx, Craftax and Jumanji: a class for a library that has no adapter.

    pip install pgx craftax jumanji
    cd examples
    fragflow train ppo --env other_libraries:Snake --policy single-learner-coarse --workers 2

Each calls the steps of its library that start no new episode at the end of one: fragflow does that.
"""

import importlib
from typing import Any

import jax

import fragflow as ff


class Game2048:
    """The game 2048, from pgx. A move that changes nothing ends it."""

    name = "2048"
    observation = ff.Box(shape=(4 * 4 * 31,), low=0.0, high=1.0)
    action = ff.Discrete(n=4)

    def __init__(self) -> None:
        self._game = importlib.import_module("pgx").make("2048")

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self._game.init(key)
        return state, state.observation.ravel().astype("float32")

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        state = self._game.step(state, action, key)
        obs = state.observation.ravel().astype("float32")
        return ff.Step(state, obs, state.rewards[0], state.terminated, state.truncated)


class Craftax:
    """Craftax-Classic, as symbols: dig, build and survive."""

    name = "Craftax-Classic-Symbolic"
    observation = ff.Box(shape=(1345,))
    action = ff.Discrete(n=17)

    def __init__(self) -> None:
        library = importlib.import_module("craftax.craftax_env")
        name = "Craftax-Classic-Symbolic-v1"
        self._world: Any = library.make_craftax_env_from_name(name, auto_reset=False)
        self._params = self._world.default_params

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = self._world.reset_env(key, self._params)
        return state, obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        obs, state, reward, over, _ = self._world.step_env(key, state, action, self._params)
        cut = state.timestep >= self._params.max_timesteps
        return ff.Step(state, obs, reward, over & ~cut, over & cut)


class Snake:
    """Snake, from Jumanji."""

    name = "Snake"
    observation = ff.Box(shape=(12 * 12 * 5,), low=0.0, high=1.0)
    action = ff.Discrete(n=4)

    def __init__(self) -> None:
        self._game: Any = importlib.import_module("jumanji").make("Snake-v1")

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state, first = self._game.reset(key)
        return state, first.observation.grid.ravel()

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        state, then = self._game.step(state, action)  # it keeps a key of its own
        cut = state.step_count >= self._game.time_limit
        obs = then.observation.grid.ravel()
        return ff.Step(state, obs, then.reward, then.last() & ~cut, then.last() & cut)
