"""TD3 (Fujimoto et al. 2018): twin critics, delayed updates of the policy, smoothed targets."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow as ff
from equivalence.own.layers import adam, init_layers, layers
from fragflow import ops


class Learner(NamedTuple):
    params: Any
    """of the `actor`, and of both critics along a first axis, `critic`"""
    target: Any
    """slower copies of them"""
    optimiser: Any


class State(NamedTuple):
    params: Any
    target: Any
    optimiser: Any
    buffer: ops.Ring
    """of `ops.Transition`"""
    env_state: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class TD3(ff.Algorithm):
    learning_rate: float = 1e-3
    rollout_length: int = 4
    """steps in every environment per iteration"""
    updates: int = 4
    """gradient steps of the critics per iteration"""
    delay: int = 2
    """gradient steps of the critics for each of the actor's"""
    batch_size: int = 32
    buffer_size: int = 64
    """transitions to remember, over all environments"""
    random_steps: int = 32
    """environment steps at random, to begin with"""
    gamma: float = 0.99
    target_rate: float = 0.05
    exploration: float = 0.1
    """standard deviation of noise on actions, in units of the largest"""
    smoothing: float = 0.2
    """the same for what targets are told"""
    smoothing_clip: float = 0.5
    largest: float = 2.0
    """entries of actions are from minus this to this"""
    hidden: int = 8

    def init(self, env: Any, key):
        actor_key, critic_key, env_key = jax.random.split(key, 3)
        seen, acts = env.observation.size, env.action.size

        def init_critic(key):
            return init_layers(key, seen + acts, self.hidden, self.hidden, 1)

        params = {
            "actor": init_layers(actor_key, seen, self.hidden, self.hidden, acts),
            "critic": jax.vmap(init_critic)(jax.random.split(critic_key)),
        }
        optimiser = {part: optax.adam(self.learning_rate).init(params[part]) for part in params}
        env_state, t = env.reset(env_key)
        action = jnp.zeros((env.num_envs, acts))
        example = ops.Transition(t.obs, action, t.reward, t.reward, t.obs, t.reward)
        capacity = ops.ring_capacity(self.buffer_size, env.total, self.rollout_length)
        return State(params, params, optimiser, ops.empty_ring(example, capacity), env_state, t.obs)

    def step(self, env, state, clock):
        act_key, sample_key, smooth_key = jax.random.split(clock.key, 3)
        is_random = clock.env_steps < self.random_steps

        def interact(carry, keys):
            env_state, obs = carry
            action = self.act(state.params["actor"], obs, keys, is_random)
            env_state, t = env.step(env_state, action)
            return (env_state, t.obs), ops.steps_of(obs, action, t)

        keys = env.keys(act_key, self.rollout_length)
        (env_state, obs), steps = lax.scan(interact, (state.env_state, state.obs), keys)
        buffer = self.add(state.buffer, steps)
        keys = env.keys(sample_key, self.updates)
        batches = self.sample(buffer, keys, env.per_env(self.batch_size))

        def learn(learner, inputs):
            batch, keys, number = inputs
            goal = self.goal(learner.target, batch, keys)
            critic_loss, grads = ff.all_mean(
                self.critic_gradient(learner.params["critic"], batch, goal)
            )
            learner = self.update_critics(learner, grads)
            is_due = number % self.delay == 0
            actor_loss, grads = ff.all_mean(self.actor_gradient(learner.params, batch, is_due))
            learner = self.update_actor(learner, grads, is_due)
            return learner, {"critic_loss": critic_loss, "actor_loss": actor_loss}

        numbers = clock.iteration * self.updates + jnp.arange(1, self.updates + 1)
        learner, losses = lax.scan(
            learn,
            Learner(state.params, state.target, state.optimiser),
            (batches, env.keys(smooth_key, self.updates), numbers),
        )
        return State(*learner, buffer, env_state, obs), jax.tree.map(jnp.mean, losses)

    @ff.component("actor")
    def act(self, actor, obs, keys, is_random):
        """An action per environment: the actor's with noise, or any."""

        def explore(action, key):
            noise_key, random_key = jax.random.split(key)
            noise = self.exploration * jax.random.normal(noise_key, action.shape)
            anything = jax.random.uniform(random_key, action.shape, minval=-1.0)
            return jnp.where(is_random, self.largest * anything, self._disturbed(action, noise))

        return jax.vmap(explore)(self._action(actor, obs), keys)

    @ff.component("buffer.add")
    def add(self, buffer, steps):
        return ops.add_steps(buffer, ops.n_step(steps, 1, self.gamma))

    @ff.component("buffer.sample")
    def sample(self, buffer, keys, number):
        """Batches of `number` transitions of every environment, one for every row of `keys`."""
        return ops.take(buffer, ops.sample_uniformly(buffer, keys, number))

    @ff.component("learner.goal")
    def goal(self, target, batch, keys):
        """What the critics should say: the lesser opinion of what follows, near the best action."""
        noise = jax.vmap(lambda key: jax.random.normal(key, batch.action.shape[1:]))(keys)
        noise = jnp.clip(self.smoothing * noise, -self.smoothing_clip, self.smoothing_clip)
        action = self._disturbed(self._action(target["actor"], batch.next_obs), noise)
        value = jnp.min(self._values(target["critic"], batch.next_obs, action), axis=0)
        return batch.reward + batch.discount * value

    @ff.component("learner.critic")
    def critic_gradient(self, critic, batch, goal):
        def loss(critic):
            errors = self._values(critic, batch.obs, batch.action) - goal
            return jnp.mean(batch.weight * jnp.sum(jnp.square(errors), axis=0))

        return jax.value_and_grad(loss)(critic)

    @ff.component("learner.update.critic")
    def update_critics(self, learner, grads):
        return self._descend(learner, "critic", grads)

    @ff.component("learner.actor")
    def actor_gradient(self, params, batch, is_due):
        """Uphill for the first critic; nothing where it is not due."""

        def loss(actor):
            value = self._values(params["critic"], batch.obs, self._action(actor, batch.obs))[0]
            return -jnp.mean(batch.weight * value)

        def nothing(actor):
            return jnp.float32(0.0), jax.tree.map(jnp.zeros_like, actor)

        return lax.cond(is_due, jax.value_and_grad(loss), nothing, params["actor"])

    @ff.component("learner.update.actor")
    def update_actor(self, learner, grads, is_due):
        """One step of the actor and of all targets, where it is due."""

        def move(learner):
            learner = self._descend(learner, "actor", grads)
            return learner._replace(
                target=ops.polyak(learner.target, learner.params, self.target_rate)
            )

        return lax.cond(is_due, move, lambda learner: learner, learner)

    def policy(self, params, obs, memory, key, explore=False):
        return self._action(params["actor"], obs), memory

    def _descend(self, learner, part, grads):
        now, memory = learner.params[part], learner.optimiser[part]
        now, memory = adam(self.learning_rate, now, memory, grads)
        return learner._replace(
            params=learner.params | {part: now}, optimiser=learner.optimiser | {part: memory}
        )

    def _action(self, actor, obs):
        return self.largest * jnp.tanh(layers(actor, obs))

    def _disturbed(self, action, noise):
        return jnp.clip(action + self.largest * noise, -self.largest, self.largest)

    def _values(self, critic, obs, action):
        """Both opinions, `[2, ...]`."""
        return jax.vmap(layers, (0, None, None))(critic, obs, action)[..., 0]
