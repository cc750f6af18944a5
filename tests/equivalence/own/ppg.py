"""Phasic policy gradient (Cobbe et al. 2021): values are learnt apart, then distilled."""

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
    """the policy's `trunk`, its heads `actor` and `guess` (of values), and a separate `critic`"""
    optimiser: Any
    """for each phase its own"""


class State(NamedTuple):
    params: Any
    optimiser: Any
    env_state: ff.EnvState
    obs: jax.Array


class Batch(NamedTuple):
    """What the policy phase learns from, `[T, N, ...]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array


@dataclass(frozen=True)
class PPG(ff.Algorithm):
    """One iteration is a policy phase of several rollouts, and an auxiliary phase."""

    learning_rate: float = 1e-3
    rollouts: int = 2
    """of the policy phase"""
    rollout_length: int = 4
    """steps in every environment per rollout"""
    minibatches: int = 2
    """gradient steps per pass over a rollout"""
    policy_epochs: int = 1
    auxiliary_epochs: int = 2
    auxiliary_minibatches: int = 2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    clone_coef: float = 1.0
    """what it costs to change the policy in the auxiliary phase"""
    hidden: int = 8

    def init(self, env: Any, key):
        *keys, env_key = jax.random.split(key, 5)
        params = {
            "trunk": init_layers(keys[0], env.observation.size, self.hidden, self.hidden),
            "actor": init_layers(keys[1], self.hidden, env.action.n),
            "guess": init_layers(keys[2], self.hidden, 1),
            "critic": init_layers(keys[3], env.observation.size, self.hidden, self.hidden, 1),
        }
        optimiser = {
            phase: optax.adam(self.learning_rate).init(params) for phase in ("policy", "auxiliary")
        }
        env_state, t = env.reset(env_key)
        return State(params, optimiser, env_state, t.obs)

    def step(self, env, state, clock):
        policy_key, auxiliary_key = jax.random.split(clock.key)

        def policy_phase(carry, key):
            learner, env_state, obs = carry
            act_key, shuffle_key = jax.random.split(key)

            def interact(carry, keys):
                env_state, obs = carry
                action, log_prob = self.act(learner.params, obs, keys)
                env_state, t = env.step(env_state, action)
                return (env_state, t.obs), (obs, action, log_prob, t)

            keys = env.keys(act_key, self.rollout_length)
            (env_state, obs), rollout = lax.scan(interact, (env_state, obs), keys)
            batch = self.estimate(learner.params["critic"], *rollout)

            def improve(learner, rows):
                grads, losses = ff.all_mean(self.policy_gradient(learner.params, batch, rows))
                return self.update(learner, grads), losses

            rows = ops.time_minibatches(
                shuffle_key, self.rollout_length, self.policy_epochs, self.minibatches
            )
            learner, losses = lax.scan(improve, learner, rows)
            return (learner, env_state, obs), (batch.obs, batch.target, losses)

        (learner, env_state, obs), (seen, target, policy_losses) = lax.scan(
            policy_phase,
            (Learner(state.params, state.optimiser), state.env_state, state.obs),
            jax.random.split(policy_key, self.rollouts),
        )
        memories = self.remember(learner.params, seen, target)

        def distil(learner, rows):
            grads, losses = ff.all_mean(self.auxiliary_gradient(learner.params, memories, rows))
            return self.update_auxiliary(learner, grads), losses

        rows = ops.time_minibatches(
            auxiliary_key,
            self.rollouts * self.rollout_length,
            self.auxiliary_epochs,
            self.auxiliary_minibatches,
        )
        learner, auxiliary_losses = lax.scan(distil, learner, rows)
        metrics = jax.tree.map(jnp.mean, policy_losses | auxiliary_losses)
        return State(*learner, env_state, obs), metrics

    @ff.component("actor")
    def act(self, params, obs, keys):
        policy = self._policy(params, obs)
        action = policy.sample(keys)
        return action, policy.log_prob(action)

    @ff.component("learner.estimate")
    def estimate(self, critic, obs, action, log_prob, t):
        value, next_value = (layers(critic, x)[..., 0] for x in (obs, t.next_obs))
        advantage = ops.gae(
            reward=t.reward, value=value, next_value=next_value, terminated=t.terminated,
            done=t.done, gamma=self.gamma, gae_lambda=self.gae_lambda,
        )  # fmt: skip
        return Batch(obs, action, log_prob, ops.standardise(advantage), advantage + value)

    @ff.component("learner.policy")
    def policy_gradient(self, params, batch, rows):
        """Of the clipped objective and the critic's error, which share no parameters."""
        batch = jax.tree.map(lambda x: x[rows], batch)

        def loss(params):
            policy = self._policy(params, batch.obs)
            ratio = jnp.exp(policy.log_prob(batch.action) - batch.log_prob)
            policy_loss = jnp.mean(ops.clipped_surrogate(ratio, batch.advantage, self.clip))
            entropy = jnp.mean(policy.entropy())
            value = layers(params["critic"], batch.obs)[..., 0]
            value_loss = jnp.mean(ops.value_loss(value, batch.target))
            total = policy_loss - self.entropy_coef * entropy + value_loss
            return total, {"policy_loss": policy_loss, "entropy": entropy}

        return jax.grad(loss, has_aux=True)(params)

    @ff.component("learner.update.policy")
    def update(self, learner, grads):
        return self._descend(learner, "policy", grads)

    @ff.component("learner.remember")
    def remember(self, params, seen, target):
        """What the auxiliary phase learns from: all rollouts as one, and what the policy is now."""
        seen, target = ops.merged(seen, 0, 2), ops.merged(target, 0, 2)
        return seen, target, self._policy(params, seen).log_probs

    @ff.component("learner.auxiliary")
    def auxiliary_gradient(self, params, memories, rows):
        """Both towers learn values; what the policy does is not to change."""
        seen, target, old = jax.tree.map(lambda x: x[rows], memories)

        def loss(params):
            guess = layers(params["guess"], self._features(params, seen))[..., 0]
            value = layers(params["critic"], seen)[..., 0]
            guess_loss = jnp.mean(ops.value_loss(guess, target))
            value_loss = jnp.mean(ops.value_loss(value, target))
            new = self._policy(params, seen).log_probs
            divergence = jnp.mean(jnp.sum(jnp.exp(old) * (old - new), axis=-1))
            total = guess_loss + self.clone_coef * divergence + value_loss
            return total, {"guess_loss": guess_loss, "kl": divergence, "value_loss": value_loss}

        return jax.grad(loss, has_aux=True)(params)

    @ff.component("learner.update.auxiliary")
    def update_auxiliary(self, learner, grads):
        return self._descend(learner, "auxiliary", grads)

    def policy(self, params, obs, memory, key, explore=False):
        policy = self._policy(params, obs)
        return policy.sample(key) if explore else policy.mode(), memory

    def _descend(self, learner, phase, grads):
        memory = learner.optimiser[phase]
        params, memory = adam(self.learning_rate, learner.params, memory, grads)
        return Learner(params, learner.optimiser | {phase: memory})

    def _features(self, params, obs):
        return jnp.tanh(layers(params["trunk"], obs))

    def _policy(self, params, obs):
        return ops.Categorical(layers(params["actor"], self._features(params, obs)))
