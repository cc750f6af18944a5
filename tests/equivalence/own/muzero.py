"""MuZero (Schrittwieser et al. 2020): a model that is learnt to be searched, by mctx."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx as searches
import optax
from jax import lax

import fragflow as ff
from equivalence.own.latent_model import lambda_returns
from equivalence.own.layers import adam, init_layers, layers
from fragflow import ops

mctx: Any = searches
"""a type checker does not know what chex makes of its classes"""


class Happened(NamedTuple):
    """A step; any axes first."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    """zero where the episode ends"""
    visits: jax.Array
    """by the search before it: how often each action was tried"""
    value: jax.Array
    """likewise: what is to come"""


class State(NamedTuple):
    params: Any
    optimiser: Any
    buffer: ops.Ring
    """of `Happened`: an entry is a whole rollout of an environment"""
    env_state: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class MuZero(ff.Algorithm):
    learning_rate: float = 1e-3
    simulations: int = 4
    """nodes of the tree of each search"""
    rollout_length: int = 6
    unrolled: int = 3
    """steps that the model is to foresee"""
    remembered: int = 2
    """rollouts to remember, of every environment"""
    updates: int = 2
    """gradient steps per iteration"""
    batch: int = 2
    """rollouts of every environment per gradient step"""
    gamma: float = 0.99
    return_lambda: float = 0.9
    hidden: int = 8

    def init(self, env: Any, key):
        *keys, env_key = jax.random.split(key, 6)
        seen, acts, size = env.observation.size, env.action.n, self.hidden
        params = {
            "latent": init_layers(keys[0], seen, size, size),
            "next": init_layers(keys[1], size + acts, size, size),
            "reward": init_layers(keys[2], size + acts, size, 1),
            "prior": init_layers(keys[3], size, size, acts),
            "value": init_layers(keys[4], size, size, 1),
        }
        env_state, t = env.reset(env_key)
        nothing = jnp.zeros((env.num_envs, acts))
        step = Happened(t.obs, nothing[:, 0].astype(int), t.reward, t.reward, nothing, t.reward)
        entry = jax.tree.map(lambda x: jnp.stack([x] * self.rollout_length, 1), step)
        buffer = ops.empty_ring(entry, self.remembered)
        optimiser = optax.adam(self.learning_rate).init(params)
        return State(params, optimiser, buffer, env_state, t.obs)

    def step(self, env, state, clock):
        act_key, sample_key = jax.random.split(clock.key)

        def interact(carry, keys):
            env_state, obs = carry
            action, visits, value = self.act(env, state.params, obs, keys)
            env_state, t = env.step(env_state, action)
            discount = self.gamma * (1.0 - t.done)
            return (env_state, t.obs), Happened(obs, action, t.reward, discount, visits, value)

        keys = env.keys(act_key, self.rollout_length)
        end, happened = lax.scan(interact, (state.env_state, state.obs), keys)
        buffer = self.add(state.buffer, happened)
        batches = self.sample(buffer, env.keys(sample_key, self.updates))

        def learn(learner, batch):
            grads, losses = ff.all_mean(self.gradient(learner[0], batch))
            return self.update(learner, grads), losses

        learner, losses = lax.scan(learn, (state.params, state.optimiser), batches)
        return State(*learner, buffer, *end), jax.tree.map(jnp.mean, losses)

    @ff.component("actor")
    def act(self, env, params, obs, keys):
        """mctx takes one key for a batch: here each environment is a batch of one, with its key."""
        return env.map(lambda obs, key: self._search(params, obs, key), obs, keys)

    @ff.component("buffer.add")
    def add(self, buffer, happened):
        return ops.add_steps(buffer, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1)[None], happened))

    @ff.component("buffer.sample")
    def sample(self, buffer, keys):
        """Rollouts with time first, `[L, N, K, ...]`, for every row of `keys`."""
        rollouts = ops.take(buffer, ops.sample_uniformly(buffer, keys, self.batch))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 3, 1), rollouts)

    @ff.component("learner.gradient")
    def gradient(self, params, batch):
        """Of what the model does not foresee from each step on: visits, values and rewards."""
        value = lambda_returns(
            batch.reward[:-1], batch.discount[:-1], batch.value[1:], self.return_lambda
        )
        starts = self.rollout_length - self.unrolled
        seen = Happened(*(x[:-1] for x in batch))._replace(value=value)
        steps = jax.tree.map(
            lambda x: jnp.stack([x[k : k + starts] for k in range(self.unrolled)]), seen
        )

        def loss(params):
            def unroll(carry, step):
                latent, alive = carry
                prior, value = self._judged(params, latent)
                reward, latent = self._followed(params, latent, step.action)
                losses = {
                    "visits_loss": optax.softmax_cross_entropy(prior, step.visits),
                    "value_loss": ops.value_loss(value, step.value),
                    "reward_loss": ops.value_loss(reward, step.reward),
                }
                losses = jax.tree.map(lambda x: x * alive, losses)
                return (latent, alive * (step.discount > 0)), losses

            start = (self._latent(params, batch.obs[:starts]), jnp.ones_like(steps.reward[0]))
            _, losses = lax.scan(unroll, start, steps)
            losses = jax.tree.map(jnp.mean, losses)
            return sum(losses.values()), losses

        return jax.grad(loss, has_aux=True)(params)

    @ff.component("learner.update")
    def update(self, learner, grads):
        return adam(self.learning_rate, learner[0], learner[1], grads)

    def policy(self, params, obs, memory, key, explore=False):
        action, visits, _ = self._search(params, obs, key)
        return action if explore else jnp.argmax(visits), memory

    def _search(self, params, obs, key):
        """Of one environment: an action, how often each was tried, and what is to come."""
        latent = self._latent(params, obs[None])
        prior, value = self._judged(params, latent)
        root = mctx.RootFnOutput(prior_logits=prior, value=value, embedding=latent)
        found = mctx.muzero_policy(params, key, root, self._imagined, self.simulations)
        value = found.search_tree.summary().value
        return found.action[0], found.action_weights[0], value[0]

    def _imagined(self, params, key, action, latent):
        """What mctx asks for: where an action leads to."""
        reward, latent = self._followed(params, latent, action)
        discount = jnp.full_like(reward, self.gamma)
        prior, value = self._judged(params, latent)
        outcome = mctx.RecurrentFnOutput(
            reward=reward, discount=discount, prior_logits=prior, value=value
        )
        return outcome, latent

    def _latent(self, params, obs):
        return jnp.tanh(layers(params["latent"], obs))

    def _followed(self, params, latent, action):
        """The reward of an action, and the latent after it."""
        taken = jax.nn.one_hot(action, params["next"][0]["w"].shape[0] - self.hidden)
        reward = layers(params["reward"], latent, taken)[..., 0]
        return reward, jnp.tanh(layers(params["next"], latent, taken))

    def _judged(self, params, latent):
        return layers(params["prior"], latent), layers(params["value"], latent)[..., 0]
