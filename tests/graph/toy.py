"""A small policy-gradient loop whose parts tests replace, one at a time, by wrong ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import fragflow as ff


class Drift:
    """A point that actions push around."""

    name = "drift"
    observation = ff.Box(shape=(3,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place = jax.random.normal(key, (3,))
        return place, place

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        place = 0.9 * state + 0.1 * (action.astype(jnp.float32) - 0.5)
        size = jnp.abs(place).sum()
        return ff.Step(place, place, -size, size < 0.3, size > 9.0)


class State(NamedTuple):
    params: Any
    env_state: Any
    obs: Any


def mean_gradient(grads: Any) -> Any:
    return ff.all_mean(grads)


def centred(returns: jax.Array) -> jax.Array:
    return returns - ff.all_mean(returns.mean())


def noise(env: ff.Environments, key: jax.Array) -> jax.Array:
    return jax.vmap(lambda one: jax.random.normal(one, (3,)))(env.keys(key))


def nothing(env: ff.Environments, rewards: jax.Array) -> jax.Array:
    return rewards


@dataclass(frozen=True)
class Toy(ff.Algorithm):
    length: int = 4
    reduce: Callable[[Any], Any] = mean_gradient
    centre: Callable[[jax.Array], jax.Array] = centred
    disturb: Callable[[ff.Environments, jax.Array], jax.Array] = noise
    between: Callable[[ff.Environments, jax.Array], jax.Array] = nothing
    report: Callable[[jax.Array], Any] = lambda rewards: ff.all_mean(rewards.mean())

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, timestep = env.reset(key)
        params = {"w": jax.random.normal(key, (3, 2)), "unused": jnp.ones(4)}
        return State(params, env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def interact(carry: Any, keys: jax.Array) -> tuple[Any, Any]:
            env_state, obs = carry
            action = self.act(self.acting(state.params), obs, keys)
            env_state, t = env.step(env_state, action)
            return (env_state, t.obs), (obs, action, t.reward)

        (env_state, obs), (seen, actions, rewards) = lax.scan(
            interact, (state.env_state, state.obs), env.keys(clock.key, self.length)
        )
        seen = seen + self.disturb(env, clock.key)
        rewards = self.between(env, rewards)

        w = self.learn(state.params["w"], seen, actions, rewards)
        params = self.remember(state.params, w)
        return State(params, env_state, obs), {"reward": self.report(rewards)}

    def acting(self, params: Any) -> jax.Array:
        """What the actor acts with."""
        return params["w"]

    def learn(self, w: jax.Array, seen: Any, actions: Any, rewards: Any) -> jax.Array:
        def one(w: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            grads = self.gradient(w, seen[row], actions[row], rewards[row])
            return self.update(w, self.reduce(grads)), None

        w, _ = lax.scan(one, w, jnp.arange(self.length))
        return w

    def remember(self, params: Any, w: jax.Array) -> Any:
        return params | {"w": w}

    @ff.component("actor")
    def act(self, w: jax.Array, obs: jax.Array, keys: jax.Array) -> jax.Array:
        return jax.vmap(jax.random.categorical)(keys, obs @ w)

    @ff.component("learner.gradient")
    def gradient(self, w: jax.Array, obs: Any, actions: Any, rewards: Any) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            log_prob = jax.nn.log_softmax(obs @ w)
            taken = jnp.take_along_axis(log_prob, actions[..., None], -1)[..., 0]
            return -(taken * self.centre(rewards)).mean()

        return jax.grad(loss)(w)

    @ff.component("learner.update")
    def update(self, w: jax.Array, grads: jax.Array) -> jax.Array:
        return w - 0.1 * grads / (1.0 + jnp.abs(grads))


@dataclass(frozen=True)
class OneUpdate(Toy):
    """One gradient per iteration."""

    def learn(self, w: jax.Array, seen: Any, actions: Any, rewards: Any) -> jax.Array:
        return self.update(w, self.reduce(self.gradient(w, seen, actions, rewards)))


@dataclass(frozen=True)
class Delayed(Toy):
    """Acts with old parameters by itself, which it keeps for that."""

    lag: int = 1

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        state = super().init(env, key)
        w = state.params["w"]
        old = jnp.broadcast_to(w, (self.lag, *w.shape))
        return state._replace(params=state.params | {"old": old})

    def acting(self, params: Any) -> jax.Array:
        return params["old"][0]

    def remember(self, params: Any, w: jax.Array) -> Any:
        old = jnp.concatenate([params["old"][1:], params["w"][None]])
        return params | {"w": w, "old": old}
