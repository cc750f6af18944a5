"""REINFORCE with a learned baseline (Williams 1992), trained under two policies."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fragflow as ff


class State(NamedTuple):
    params: Any
    optimiser: Any
    env_state: Any
    obs: jax.Array


@dataclass(frozen=True)
class Reinforce(ff.Algorithm):
    learning_rate: float = 3e-3
    rollout_length: int = 128
    gamma: float = 0.99
    network: Any = ff.ops.MLPActorCritic((64,))  # noqa: RUF009 (it is immutable)

    def init(self, env, key):
        params = self.network.init(key, env.observation, env.action)
        env_state, t = env.reset(key)
        return State(params, optax.adam(self.learning_rate).init(params), env_state, t.obs)

    def step(self, env, state, clock):
        def interact(carry, keys):
            env_state, obs = carry
            action = self.act(state.params["actor"], obs, keys)
            env_state, t = env.step(env_state, action)
            return (env_state, t.obs), (obs, action, t)

        keys = env.keys(clock.key, self.rollout_length)
        (env_state, obs), rollout = jax.lax.scan(interact, (state.env_state, state.obs), keys)
        loss, grads = ff.all_mean(self.gradient(state.params, *rollout))
        params, optimiser = self.update(state.params, state.optimiser, grads)
        return State(params, optimiser, env_state, obs), {"loss": loss}

    @ff.component("actor")
    def act(self, actor, obs, keys):
        return self.network.policy(actor, obs).sample(keys)

    @ff.component("learner.gradient")
    def gradient(self, params, obs, action, t):
        value, next_value = (self.network.value(params["critic"], x) for x in (obs, t.next_obs))
        # With lambda = 1 the advantage is the return that followed, minus the baseline.
        advantage = ff.ops.gae(
            reward=t.reward, value=value, next_value=next_value, terminated=t.terminated,
            done=t.done, gamma=self.gamma, gae_lambda=1.0,
        )  # fmt: skip

        def loss(params):
            log_prob = self.network.policy(params["actor"], obs).log_prob(action)
            error = ff.ops.value_loss(self.network.value(params["critic"], obs), advantage + value)
            return jnp.mean(error - log_prob * advantage)

        return jax.value_and_grad(loss)(params)

    @ff.component("learner.update")
    def update(self, params, optimiser, grads):
        updates, optimiser = optax.adam(self.learning_rate).update(grads, optimiser)
        return optax.apply_updates(params, updates), optimiser

    def policy(self, params, obs, memory, key, explore=False):
        actions = self.network.policy(params["actor"], obs)
        return actions.sample(key) if explore else actions.mode(), memory


if __name__ == "__main__":
    for policy, workers in (("gpu-only", 1), ("single-learner-coarse", 2)):
        where = {"policy": policy, "workers": workers}
        result = ff.train(Reinforce(), "CartPole-v1", total_steps=262_144, **where)
        print(f"{policy}: return {result.eval_return}, parameters {result.params_sha256}")
