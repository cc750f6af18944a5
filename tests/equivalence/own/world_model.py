"""Behaviour learnt in a learnt model of the world: a small Dreamer (Hafner et al. 2020, 2021)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow as ff
from equivalence.own import latent_model as lm
from equivalence.own.layers import adam, init_layers, layers
from fragflow import ops


class Happened(NamedTuple):
    """A step; any axes first."""

    first: jax.Array
    """whether `obs` begins an episode"""
    obs: jax.Array
    action: jax.Array
    """as ones and zeros"""
    reward: jax.Array
    terminated: jax.Array


class State(NamedTuple):
    params: Any
    """of the `model`, the `actor` and the `critic`"""
    optimiser: Any
    buffer: ops.Ring
    """of `Happened`: an entry is a whole rollout of an environment"""
    env_state: ff.EnvState
    obs: jax.Array
    first: jax.Array
    belief: tuple[lm.Latent, jax.Array]
    """before `obs`: the latent, and the action since"""


@dataclass(frozen=True)
class Dreamer(ff.Algorithm):
    learning_rate: float = 1e-3
    rollout_length: int = 4
    remembered: int = 2
    """rollouts to remember, of every environment"""
    updates: int = 2
    """gradient steps per iteration: of the model, then of actor and critic"""
    batch: int = 2
    """rollouts of every environment per gradient step"""
    horizon: int = 3
    """steps to imagine"""
    gamma: float = 0.99
    return_lambda: float = 0.95
    entropy_coef: float = 0.01
    free_nats: float = 0.1
    hidden: int = 8
    codes: int = 4

    def init(self, env: Any, key):
        model_key, actor_key, critic_key, env_key = jax.random.split(key, 4)
        seen, acts, size = env.observation.size, env.action.n, self.hidden + self.codes
        params = {
            "model": lm.init_model(model_key, seen, acts, self.hidden, self.codes),
            "actor": init_layers(actor_key, size, self.hidden, acts),
            "critic": init_layers(critic_key, size, self.hidden, 1),
        }
        optimiser = {part: optax.adam(self.learning_rate).init(params[part]) for part in params}
        env_state, t = env.reset(env_key)
        action = jnp.zeros((env.num_envs, acts))
        step = Happened(t.done, t.obs, action, t.reward, t.terminated)
        entry = jax.tree.map(lambda x: jnp.stack([x] * self.rollout_length, 1), step)
        buffer = ops.empty_ring(entry, self.remembered)
        belief = (self._unaware(env.num_envs), action)
        return State(params, optimiser, buffer, env_state, t.obs, jnp.ones_like(t.done), belief)

    def step(self, env, state, clock):
        act_key, sample_key, model_key, dream_key = jax.random.split(clock.key, 4)

        def interact(carry, keys):
            env_state, obs, first, belief = carry
            latent, action, number = self.act(state.params, belief, first, obs, keys)
            env_state, t = env.step(env_state, number)
            happened = Happened(first, obs, action, t.reward, t.terminated)
            return (env_state, t.obs, t.done, (latent, action)), happened

        start = (state.env_state, state.obs, state.first, state.belief)
        end, happened = lax.scan(interact, start, env.keys(act_key, self.rollout_length))
        buffer = self.add(state.buffer, happened)
        batches = self.sample(buffer, env.keys(sample_key, self.updates))

        def learn(learner, inputs):
            batch, model_keys, dream_keys = inputs
            grads, (latents, info) = self.model_gradient(learner[0]["model"], batch, model_keys)
            learner = self.update_model(learner, ff.all_mean(grads))
            grads, dream_info = self.behaviour_gradient(learner[0], latents, dream_keys)
            learner = self.update_behaviour(learner, ff.all_mean(grads))
            return learner, ff.all_mean(info | dream_info)

        inputs = (batches, *(env.keys(key, self.updates) for key in (model_key, dream_key)))
        learner, info = lax.scan(learn, (state.params, state.optimiser), inputs)
        return State(*learner, buffer, *end), jax.tree.map(jnp.mean, info)

    @ff.component("actor")
    def act(self, params, belief, first, obs, keys):
        """The latent after `obs`, and an action: as ones and zeros, and as a number."""
        keys = jax.vmap(jax.random.split)(keys)
        noise = jax.vmap(lambda key: jax.random.normal(key, (self.codes,)))(keys[:, 0])
        latent, _ = lm.observe(params["model"], belief, first, obs, noise)
        policy = ops.Categorical(layers(params["actor"], *latent))
        number = policy.sample(keys[:, 1])
        return latent, jax.nn.one_hot(number, policy.logits.shape[-1]), number

    @ff.component("buffer.add")
    def add(self, buffer, happened):
        return ops.add_steps(buffer, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1)[None], happened))

    @ff.component("buffer.sample")
    def sample(self, buffer, keys):
        """Rollouts with time first, `[L, N, K, ...]`, for every row of `keys`."""
        rollouts = ops.take(buffer, ops.sample_uniformly(buffer, keys, self.batch))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 3, 1), rollouts)

    @ff.component("learner.model")
    def model_gradient(self, model, batch, keys):
        """Of what the model does not foresee; also the latents on the way, `[L, N, K, ...]`."""
        length, num_envs, number = batch.reward.shape
        shape = (length, number, self.codes)
        noise = jax.vmap(lambda key: jax.random.normal(key, shape), out_axes=1)(keys)

        def loss(model):
            def follow(belief, inputs):
                happened, noise = inputs
                latent, new = lm.observe(model, belief, happened.first, happened.obs, noise)
                return (latent, happened.action), (latent, new)

            start = (self._unaware(num_envs, number), jnp.zeros_like(batch.action[0]))
            _, (latents, new) = lax.scan(follow, start, (batch, noise))
            reward, ends = lm.outcome(model, latents, batch.action)
            obs_loss = jnp.sum(ops.value_loss(layers(model["obs"], *latents), batch.obs), axis=-1)
            end_loss = optax.sigmoid_binary_cross_entropy(ends, batch.terminated.astype(ends.dtype))
            losses = {
                "obs_loss": jnp.mean(obs_loss),
                "reward_loss": jnp.mean(ops.value_loss(reward, batch.reward)),
                "end_loss": jnp.mean(end_loss),
                "kl": jnp.mean(jnp.maximum(new, self.free_nats)),
            }
            return sum(losses.values()), (latents, losses)

        return jax.grad(loss, has_aux=True)(model)

    @ff.component("learner.behaviour")
    def behaviour_gradient(self, params, latents, keys):
        """Of what the actor gets in its dreams, and of what the critic makes of them."""
        shape = (self.horizon, latents.code.shape[0], *latents.code.shape[2:])
        noise = jax.vmap(lambda key: jax.random.normal(key, shape), out_axes=2)(keys)
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
        uniform = jax.vmap(lambda key: jax.random.uniform(key, shape[:-1]), out_axes=2)(keys)

        def loss(trained):
            def dream(latent, inputs):
                noise, uniform = inputs
                policy = ops.Categorical(layers(trained["actor"], *latent))
                action = lm.chosen(policy, uniform)
                reward, ends = lm.outcome(params["model"], latent, action)
                after = lm.imagine(params["model"], latent, action, noise)
                discount = self.gamma * jax.nn.sigmoid(-ends)
                return after, (latent, after, reward, discount, policy.entropy())

            _, dreams = lax.scan(dream, latents, (noise, uniform))
            before, after, reward, discount, entropy = dreams
            next_value = layers(params["critic"], *after)[..., 0]
            returns = lm.lambda_returns(reward, discount, next_value, self.return_lambda)
            reached = jnp.cumprod(jnp.concatenate([jnp.ones_like(reward[:1]), discount[:-1]]), 0)
            reached, target = lax.stop_gradient((reached, returns))
            value = layers(trained["critic"], *lax.stop_gradient(before))[..., 0]
            actor_loss = -jnp.mean(reached * (returns + self.entropy_coef * entropy))
            critic_loss = jnp.mean(reached * ops.value_loss(value, target))
            return actor_loss + critic_loss, {"actor_loss": actor_loss, "critic_loss": critic_loss}

        return jax.grad(loss, has_aux=True)({part: params[part] for part in ("actor", "critic")})

    @ff.component("learner.update.model")
    def update_model(self, learner, grads):
        return self._descend(learner, {"model": grads})

    @ff.component("learner.update.behaviour")
    def update_behaviour(self, learner, grads):
        return self._descend(learner, grads)

    def _descend(self, learner, grads):
        params, optimiser = learner
        for part, grad in grads.items():
            new, memory = adam(self.learning_rate, params[part], optimiser[part], grad)
            params, optimiser = params | {part: new}, optimiser | {part: memory}
        return params, optimiser

    def _unaware(self, *axes):
        return lm.Latent(jnp.zeros((*axes, self.hidden)), jnp.zeros((*axes, self.codes)))
