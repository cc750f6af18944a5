"""An evolution strategy (Salimans et al. 2017): every environment tries its own parameters."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

import fragflow as ff


class State(NamedTuple):
    params: Any
    optimiser: Any
    env_state: Any
    """episodes are reported from it; each iteration starts new ones"""


@dataclass(frozen=True)
class EvolutionStrategy(ff.Algorithm):
    learning_rate: float = 5e-2
    noise: float = 0.1
    rollout_length: int = 500
    network: Any = ff.ops.MLPActorCritic((16,))  # noqa: RUF009 (it is immutable)

    def init(self, env, key):
        params = self.network.init(key, env.observation, env.action)["actor"]
        return State(params, optax.adam(self.learning_rate).init(params), env.reset(key)[0])

    def step(self, env, state, clock):
        noise_key, reset_key = jax.random.split(clock.key)
        keys = env.keys(noise_key)

        def interact(carry, _):
            env_state, obs, alive, fitness = carry
            env_state, t = env.step(env_state, self.act(state.params, obs, keys))
            return (env_state, t.obs, alive & ~t.done, fitness + alive * t.reward), None

        env_state, t = env.reset(reset_key)
        first = (env_state, t.obs, ~t.done, t.reward)
        (env_state, _, _, fitness), _ = jax.lax.scan(interact, first, length=self.rollout_length)
        fitness, grads = ff.all_mean(self.gradient(state.params, fitness, keys))
        params, optimiser = self.update(state.params, state.optimiser, grads)
        return State(params, optimiser, env_state), {"fitness": fitness}

    def noise_from(self, keys, size):
        """`[N, size]`. A key gives the same numbers everywhere, so no noise need be sent."""
        return jax.vmap(lambda key: jax.random.normal(key, (size,)))(keys)

    @ff.component("actor")
    def act(self, params, obs, keys):
        flat, unravel = ravel_pytree(params)
        perturbed = flat + self.noise * self.noise_from(keys, flat.size)
        return jax.vmap(lambda p, obs: self.network.policy(unravel(p), obs).mode())(perturbed, obs)

    @ff.component("learner.gradient")
    def gradient(self, params, fitness, keys):
        flat, unravel = ravel_pytree(params)
        better = ff.ops.standardise(fitness)[:, None]
        grads = -jnp.mean(better * self.noise_from(keys, flat.size), axis=0)
        return jnp.mean(fitness), unravel(grads)

    @ff.component("learner.update")
    def update(self, params, optimiser, grads):
        updates, optimiser = optax.adam(self.learning_rate).update(grads, optimiser)
        return optax.apply_updates(params, updates), optimiser

    def policy(self, params, obs, memory, key, explore=False):
        del key, explore  # nothing is left to chance
        return self.network.policy(params, obs).mode(), memory


if __name__ == "__main__":
    for policy, workers in (("gpu-only", 1), ("single-learner-coarse", 2)):
        what = {"env": "CartPole-v1", "num_envs": 64, "total_steps": 2**20}
        result = ff.train(EvolutionStrategy(), **what, policy=policy, workers=workers)
        print(f"{policy}: return {result.eval_return}, parameters {result.params_sha256}")
