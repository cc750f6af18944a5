"""A small game for many agents, and an algorithm for it whose parts tests can replace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import fragflow.api as ff
from fragflow import ops


@dataclass(frozen=True)
class Crowd:
    """Agents of one or two teams walk on a line and want to be where all are on average."""

    teams: tuple[int, ...] = (8,)
    name: str = "Crowd"

    @property
    def observation(self) -> ff.Space:
        return ff.Box(shape=(2,))

    @property
    def action(self) -> ff.Space:
        return ff.Box(shape=(1,))

    @property
    def num_agents(self) -> int:
        return sum(self.teams)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        position = jax.random.normal(key, (self.num_agents,))
        return position, self._seen(position)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> ff.Step:
        noise = 0.1 * jax.random.normal(key, (self.num_agents,))
        position = state + 0.1 * action[:, 0] + noise
        reward = -jnp.square(position - position.mean())
        no = jnp.zeros(self.num_agents, bool)
        return ff.Step(position, self._seen(position), reward, no, no)

    def _seen(self, position: jax.Array) -> jax.Array:
        return jnp.stack([position, jnp.ones_like(position)], -1)


class State(NamedTuple):
    params: Any
    env: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class Shared(ff.Algorithm):
    """A policy gradient for linear Gaussian policies, one for each team."""

    rollout_length: int = 4
    centre: Callable[[jax.Array], jax.Array] = lambda x: x - ff.all_mean(jnp.mean(x))
    reduce: Callable[[Any], Any] = ff.all_mean
    select: Callable[[Any, slice], Any] = lambda tree, team: ops.members(tree, team, 2)

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(tuple(jnp.zeros((2,)) for _ in env.teams), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        carry, rollout = self.roll_out(env, state, clock)
        params = tuple(
            self.learn(w, *self.select(rollout, team))
            for w, team in zip(state.params, ops.team_slices(env.teams), strict=True)
        )
        return State(params, *carry), {}

    def roll_out(self, env: ff.Environments, state: State, clock: ff.Clock) -> Any:
        def interact(carry: Any, keys: jax.Array) -> Any:
            action = self.act(state.params, carry[1], keys, env.teams)
            env_state, t = env.step(carry[0], action)
            return (env_state, t.obs), (carry[1], action[..., 0], t.reward)

        keys = env.keys(clock.key, self.rollout_length)
        return lax.scan(interact, (state.env, state.obs), keys)

    @ff.component("actor")
    def act(self, params: Any, obs: jax.Array, keys: jax.Array, teams: tuple[int, ...]) -> Any:
        def of_team(w: jax.Array, obs: jax.Array, keys: jax.Array) -> jax.Array:
            noise = jax.vmap(jax.vmap(jax.random.normal))(keys)
            return (obs @ w + noise)[..., None]

        return ops.each_team(of_team, teams, 1, params, obs, ops.agent_keys(keys, sum(teams)))

    @ff.component("learner.update")
    def learn(self, w: jax.Array, obs: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        weight = self.centre(reward)
        noise = action - obs @ w
        return w + 0.1 * self.reduce(jnp.mean((weight * noise)[..., None] * obs, (0, 1, 2)))


@dataclass(frozen=True)
class Apart(Shared):
    """Every agent has parameters of its own: state with the agents' axis."""

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        agents = sum(env.teams)
        each = jax.vmap(lambda k: 0.1 * jax.random.normal(k, (2,)))(jax.random.split(key, agents))
        return State(each, env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        carry, rollout = self.roll_out(env, state, clock)
        return State(self.learn(state.params, *rollout), *carry), {}

    @ff.component("actor")
    def act(self, params: Any, obs: jax.Array, keys: jax.Array, teams: tuple[int, ...]) -> Any:
        noise = jax.vmap(jax.vmap(jax.random.normal))(ops.agent_keys(keys, sum(teams)))
        return (jnp.sum(obs * params, -1) + noise)[..., None]

    @ff.component("learner.update")
    def learn(self, w: jax.Array, obs: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        noise = action - jnp.sum(obs * w, -1)
        return w + 0.1 * jnp.mean((reward * noise)[..., None] * obs, (0, 1))


@dataclass(frozen=True)
class Served(Shared):
    """Gradients here, updates there."""

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        carry, rollout = self.roll_out(env, state, clock)
        params = tuple(
            self.update(w, ff.all_mean(self.gradient(w, *self.select(rollout, team))))
            for w, team in zip(state.params, ops.team_slices(env.teams), strict=True)
        )
        return State(params, *carry), {}

    @ff.component("learner.gradient")
    def gradient(self, w: jax.Array, obs: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        return jnp.mean((reward * (action - obs @ w))[..., None] * obs, (0, 1, 2))

    @ff.component("learner.update")
    def update(self, w: jax.Array, gradient: jax.Array) -> jax.Array:
        return w + 0.1 * gradient
