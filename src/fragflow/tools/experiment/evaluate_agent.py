"""Evaluation of an agent: the returns of whole episodes, by default without exploration."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow.api import HostEnvironment
from fragflow.api.environment import teams_of
from fragflow.errors import ConfigError
from fragflow.ops import within_bounds
from fragflow.runtime.host_environments.pool import HostPlayer

MAX_STEPS = 10_000
"""Steps after which an episode is cut off if it has not ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One entry per episode."""

    returns: np.ndarray
    lengths: np.ndarray
    ended: np.ndarray
    """False where the episode was cut off"""

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns, dtype=np.float64))


def evaluator_for(algorithm: Any, environment: Any, **settings: Any) -> "Evaluator | HostEvaluator":
    """The evaluator for this kind of environment."""
    is_on_host = isinstance(environment, HostEnvironment)
    return (HostEvaluator if is_on_host else Evaluator)(algorithm, environment, **settings)


class _Episodes(NamedTuple):
    """Every environment's first episode, as far as it has gone."""

    step: jax.Array
    state: Any
    obs: Any
    memory: Any
    total: jax.Array
    length: jax.Array
    done: jax.Array


class Evaluator:
    """Plays `episodes` episodes at once; compiled once, for any parameters."""

    def __init__(
        self,
        algorithm: Any,
        environment: Any,
        *,
        episodes: int = 100,
        max_steps: int = MAX_STEPS,
        explore: bool = False,
    ):
        if episodes < 1:
            raise ConfigError(f"episodes is {episodes}: expected at least 1")
        self._algorithm = algorithm
        self._environment = environment
        self._episodes = episodes
        self._max_steps = max_steps
        self._explore = explore
        self._play = jax.jit(self._play_all)

    def __call__(self, params: Any, seed: int = 0) -> Evaluation:
        returns, lengths, ended = self._play(params, jax.random.key(seed))
        return Evaluation(
            returns=np.asarray(returns), lengths=np.asarray(lengths), ended=np.asarray(ended)
        )

    def _play_all(self, params: Any, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        reset_key, play_key = jax.random.split(key)
        state, obs = jax.vmap(self._environment.reset)(jax.random.split(reset_key, self._episodes))
        zero = jnp.zeros(self._episodes)
        start = _Episodes(
            step=jnp.int32(0),
            state=state,
            obs=obs,
            memory=None,
            total=zero,
            length=zero.astype(jnp.int32),
            done=zero.astype(bool),
        )

        def advance(e: _Episodes) -> _Episodes:
            return self._step(params, play_key, e)

        # The first step shows what the agent remembers: a loop's carry keeps its structure.
        end = lax.while_loop(
            lambda e: ~jnp.all(e.done) & (e.step < self._max_steps),
            advance,
            _strong(advance(start)),
        )
        return end.total, end.length, end.done

    def _step(self, params: Any, key: jax.Array, e: _Episodes) -> _Episodes:
        act_keys, step_keys = jax.random.split(jax.random.fold_in(key, e.step), (2, self._episodes))

        def act(obs: Any, memory: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            return self._algorithm.policy(params, obs, memory, key, explore=self._explore)

        action, memory = jax.vmap(act)(e.obs, e.memory, act_keys)
        action = within_bounds(self._environment.action, action)
        step = jax.vmap(self._environment.step)(e.state, action, step_keys)
        return _strong(
            _Episodes(
                step=e.step + 1,
                state=step.state,
                obs=step.obs,
                memory=memory,
                total=e.total + jnp.where(e.done, 0.0, _first_team(self._environment, step.reward)),
                length=e.length + ~e.done,
                done=e.done | _all_agents(step.terminated.astype(bool) | step.truncated),
            )
        )


class HostEvaluator:
    """Plays `episodes` episodes at once in environments on the host."""

    def __init__(
        self,
        algorithm: Any,
        environment: HostEnvironment,
        *,
        episodes: int = 100,
        max_steps: int = MAX_STEPS,
        explore: bool = False,
    ):
        if episodes < 1:
            raise ConfigError(f"episodes is {episodes}: expected at least 1")
        self._environment = environment
        self._episodes = episodes
        self._max_steps = max_steps

        def act(params: Any, obs: Any, memory: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            def one(obs: Any, memory: Any, key: jax.Array) -> tuple[jax.Array, Any]:
                action, memory = algorithm.policy(params, obs, memory, key, explore=explore)
                return within_bounds(environment.action, action), memory

            return jax.vmap(one)(obs, memory, jax.random.split(key, episodes))

        self._act = jax.jit(act)

    def __call__(self, params: Any, seed: int = 0) -> Evaluation:
        key = jax.random.key(seed)
        player = HostPlayer(self._environment, self._episodes)
        total = np.zeros(self._episodes)
        length = np.zeros(self._episodes, np.int64)
        done = np.zeros(self._episodes, bool)
        memory = None
        try:
            # Not the seeds of training, which come from other keys.
            first = 1_000_003 * (seed + 1)
            obs = player.reset([(first + k) % 2**31 for k in range(self._episodes)])
            for step in range(self._max_steps):
                action, memory = self._act(params, obs, memory, jax.random.fold_in(key, step))
                answer = player.step(np.asarray(action))
                obs = answer.obs
                total += np.where(done, 0.0, _first_team(self._environment, answer.reward))
                length += ~done
                done |= _all_agents(answer.terminated | answer.truncated)
                if done.all():
                    break
        finally:
            player.close()
        return Evaluation(returns=total, lengths=length, ended=done)


def _first_team(environment: Any, reward: Any) -> Any:
    """The reward that counts per episode: with several agents, the mean of the first team's."""
    return reward if reward.ndim == 1 else reward[:, : teams_of(environment)[0]].mean(1)


def _all_agents(ended: Any) -> Any:
    """True where an episode is over: all of its agents have ended."""
    return ended if ended.ndim == 1 else ended.all(1)


def _strong(tree: Any) -> Any:
    """Arrays without weak types, which a loop's carry must not change."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), tree)
