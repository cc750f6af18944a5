"""The environments as an algorithm sees them: one batch, of which a fragment may hold a part."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragflow.api.component import component
from fragflow.api.environment import Environment, Timestep
from fragflow.api.spaces import Space
from fragflow.errors import ConfigError


class EpisodeStats(NamedTuple):
    """Per environment, over the episodes that ended since the statistics were last cleared."""

    episodes: jax.Array
    return_sum: jax.Array
    length_sum: jax.Array


class EnvState(NamedTuple):
    """State of a batch of environments; every leaf has the environment axis first."""

    inner: Any
    key: jax.Array
    """raw key data, fixed per environment; draws are made from it and `steps`"""
    steps: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    finished: EpisodeStats


class Environments:
    """`num_envs` environments of one kind, identified by their global indices `ids`."""

    def __init__(
        self,
        environment: Environment,
        ids: jax.Array,
        total: int,
        on_step: Callable[[], None] | None = None,
    ):
        """`on_step` is called whenever Python comes by a step: once, where it is traced."""
        self._environment = environment
        self._on_step = on_step
        self._ids = ids
        self._total = total

    @property
    def num_envs(self) -> int:
        """How many environments are here. For shapes only."""
        return self._ids.shape[0]

    @property
    def observation(self) -> Space:
        return self._environment.observation

    @property
    def action(self) -> Space:
        return self._environment.action

    def keys(self, key: jax.Array, *shape: int) -> jax.Array:
        """One key per environment, `[*shape, num_envs]`: the only source of per-environment noise.

        An environment's key depends on its global index, not on which fragment holds it.
        """
        per_env = jax.vmap(jax.random.fold_in, (None, 0))
        if not shape:
            return per_env(key, self._ids)
        rows = jax.random.split(key, shape)
        for _ in shape:
            per_env = jax.vmap(per_env, (0, None))
        return per_env(rows, self._ids)

    def per_env(self, total: int) -> int:
        """A global count (batch size, capacity) as a count per environment."""
        if total % self._total:
            raise ConfigError(
                f"{total} cannot be divided among {self._total} environments: "
                f"use a multiple of {self._total}"
            )
        return total // self._total

    def reset(self, key: jax.Array) -> tuple[EnvState, Timestep]:
        """Starts an episode in every environment."""
        return self._reset(self.keys(key))

    def step(self, state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
        """One step of every environment; an episode that ends is followed by a new one."""
        if self._on_step is not None:
            self._on_step()
        return self._step(state, action)

    @component("environment.reset")
    def _reset(self, keys: jax.Array) -> tuple[EnvState, Timestep]:
        raw = jax.random.key_data(keys)
        inner, obs = jax.vmap(lambda key: self._environment.reset(_draw(key, 0)))(raw)
        # Zeros and ones are made from the keys' rows, so that they have the environment axis.
        zero = jnp.zeros(raw.shape[:1], jnp.int32)
        zero_float = zero.astype(jnp.float32)
        state = EnvState(
            inner=_strong(inner),
            key=raw,
            steps=zero + 1,
            episode_return=zero_float,
            episode_length=zero,
            finished=EpisodeStats(zero, zero_float, zero),
        )
        no = zero.astype(bool)
        return state, Timestep(obs, obs, zero_float, no, no)

    @component("environment.step")
    def _step(self, state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
        return jax.vmap(self._step_one)(state, action)

    def _step_one(self, state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
        step = self._environment.step(state.inner, action, _draw(state.key, 2 * state.steps))
        reward = jnp.asarray(step.reward, jnp.float32)
        terminated = jnp.asarray(step.terminated, bool)
        truncated = jnp.asarray(step.truncated, bool) & ~terminated
        done = terminated | truncated
        fresh, fresh_obs = self._environment.reset(_draw(state.key, 2 * state.steps + 1))

        def new_if_done(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(done, n, o), new, old)

        total = state.episode_return + reward
        length = state.episode_length + 1
        ended = done.astype(jnp.int32)
        next_state = EnvState(
            inner=_strong(new_if_done(fresh, step.state)),
            key=state.key,
            steps=state.steps + 1,
            episode_return=jnp.where(done, 0.0, total),
            episode_length=jnp.where(done, 0, length),
            finished=EpisodeStats(
                episodes=state.finished.episodes + ended,
                return_sum=state.finished.return_sum + jnp.where(done, total, 0.0),
                length_sum=state.finished.length_sum + ended * length,
            ),
        )
        obs = new_if_done(fresh_obs, step.obs)
        return next_state, Timestep(obs, step.obs, reward, terminated, truncated)


def clear_episode_stats(state: Any) -> Any:
    """`state` with the episode statistics of every `EnvState` in it set to zero."""

    def clear(node: Any) -> Any:
        if not isinstance(node, EnvState):
            return node
        return node._replace(finished=jax.tree.map(jnp.zeros_like, node.finished))

    return jax.tree.map(clear, state, is_leaf=lambda node: isinstance(node, EnvState))


def episode_stats(state: Any) -> list[EpisodeStats]:
    """The episode statistics of every `EnvState` in `state`."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, EnvState))
    return [node.finished for node in nodes if isinstance(node, EnvState)]


def _draw(raw_key: jax.Array, counter: jax.Array | int) -> jax.Array:
    return jax.random.fold_in(jax.random.wrap_key_data(raw_key), counter)


def _strong(tree: Any) -> Any:
    """Arrays without weak types: a loop's carry must not change type after its first step."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.result_type(x)), tree)
