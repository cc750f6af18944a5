"""Proximal policy optimisation (Schulman et al. 2017)."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow.api as ff
from fragflow import ops
from fragflow.errors import ConfigError


class Learner(NamedTuple):
    """What the optimiser changes."""

    params: Any
    optimiser: Any


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    optimiser: Any
    mean_square_return: jax.Array
    """running average over iterations: its root is the unit of the critic's output"""
    env_state: ff.EnvState
    obs: jax.Array


class Rollout(NamedTuple):
    """What happened, `[T, N, ...]`: time first, then environments."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    next_obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Batch(NamedTuple):
    """What the gradient is computed from, `[T, N, ...]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


@dataclass(frozen=True)
class PPO(ff.Algorithm):
    """PPO with clipping, for discrete and continuous actions.

    The actor collects `rollout_length` steps in every environment. The learner then makes
    `epochs` passes over them in minibatches: all environments at randomly chosen time steps.
    """

    default_num_envs: ClassVar[int] = 16

    learning_rate: float = 1e-3
    """step size of Adam at the start"""
    anneal: bool = True
    """lower the learning rate linearly, to zero at the end of training"""
    rollout_length: int = 128
    """steps in every environment per iteration"""
    epochs: int = 4
    """passes over the collected steps per iteration"""
    minibatches: int = 4
    """gradient steps per pass; must divide the rollout length"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 0.95
    """between trusting the value function (0) and trusting sampled returns (1)"""
    clip: float = 0.2
    """how far the probability of an action may move from the old policy's before it stops paying"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    clip_value: bool = False
    """also clip how far the value function moves (by `clip`)"""
    normalise_advantages: bool = True
    """scale the advantages of each iteration to mean zero and variance one"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of actor and critic"""
    network: ops.ActorCriticNetwork | None = None
    """your own actor and critic; instead of `hidden`"""

    def __post_init__(self) -> None:
        for name in ("rollout_length", "epochs", "minibatches"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "clip", "max_grad_norm"):
            self._require(name, getattr(self, name) > 0, "above 0")
        for name in ("entropy_coef", "value_coef"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        for name in ("gamma", "gae_lambda"):
            self._require(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        self._require("hidden", all(size >= 1 for size in self.hidden), "sizes of at least 1")
        if self.rollout_length % self.minibatches:
            raise ConfigError(
                f"minibatches = {self.minibatches} does not divide rollout_length = "
                f"{self.rollout_length}: a minibatch takes whole time steps"
            )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"{name} = {getattr(self, name)}: expected {expected}")

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, timestep = env.reset(env_key)
        return State(params, self._optimiser.init(params), jnp.float32(1.0), env_state, timestep.obs)

    def step(
        self, env: ff.Environments, state: State, clock: ff.Clock
    ) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, bounded, log_prob = self.act(state.params["actor"], obs, keys, env.action)
            env_state, t = env.step(env_state, bounded)
            happened = Rollout(
                obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated
            )
            return (env_state, t.obs), happened

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        critic = state.params["critic"]
        values, next_values = self.values(critic, rollout.obs, rollout.next_obs)
        advantages, targets, mean_square = self.advantages(rollout, values, next_values, state.mean_square_return)
        rate = jnp.maximum(0.05, 1.0 / (clock.iteration + 1.0))
        msr = state.mean_square_return + rate * (ff.all_mean(mean_square) - state.mean_square_return)
        batch = Batch(
            rollout.obs, rollout.action, rollout.log_prob, values, advantages, targets
        )

        def minibatch(learner: Learner, rows: jax.Array) -> tuple[Learner, ff.Metrics]:
            grads, info = self.gradient(learner.params, batch, rows)
            return self.update(learner, ff.all_mean(grads), 1.0 - clock.progress), info

        rows = ops.time_minibatches(
            shuffle_key, self.rollout_length, self.epochs, self.minibatches
        )
        learner, info = lax.scan(minibatch, Learner(state.params, state.optimiser), rows)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info))
        return State(learner.params, learner.optimiser, msr, env_state, obs), metrics

    @ff.component("actor")
    def act(
        self, actor: Any, obs: jax.Array, keys: jax.Array, space: ff.Space
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """An action per environment, the same within the bounds of `space`, its log-probability."""
        distribution = self._network.policy(actor, obs)
        action = distribution.sample(keys)
        return action, _bounded(action, space), distribution.log_prob(action)

    @ff.component("learner.value")
    def values(
        self, critic: Any, obs: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Values of every observation and of its true successor."""
        return self._network.value(critic, obs), self._network.value(critic, next_obs)

    @ff.component("learner.advantages")
    def advantages(
        self, rollout: Rollout, values: jax.Array, next_values: jax.Array, msr
    ) -> tuple[jax.Array, jax.Array]:
        """How much better each action was than expected, and what the value should have been."""
        advantages = ops.gae(
            reward=rollout.reward,
            value=values * jnp.sqrt(msr),
            next_value=next_values * jnp.sqrt(msr),
            terminated=rollout.terminated,
            done=rollout.terminated | rollout.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        unit = jnp.sqrt(msr)
        targets = advantages / unit + values
        mean_square = jnp.mean(jnp.square(targets)) * msr
        if self.normalise_advantages:
            advantages = ops.standardise(advantages)
        return advantages, targets, mean_square

    @ff.component("learner.gradient")
    def gradient(self, params: Any, batch: Batch, rows: jax.Array) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss at the time steps `rows`, over the environments at hand."""

        def samples(x: jax.Array) -> jax.Array:
            # One batch axis: XLA differentiates matrix products of three axes twice as slowly.
            return x.at[rows].get(mode="promise_in_bounds").reshape(-1, *x.shape[2:])

        return jax.grad(self._loss, has_aux=True)(params, jax.tree.map(samples, batch))

    def _loss(self, params: Any, batch: Batch) -> tuple[jax.Array, ff.Metrics]:
        distribution = self._network.policy(params["actor"], batch.obs)
        log_ratio = distribution.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        policy_loss = jnp.mean(ops.clipped_surrogate(ratio, batch.advantage, self.clip))
        entropy = jnp.mean(distribution.entropy())
        value = self._network.value(params["critic"], batch.obs)
        if self.clip_value:
            losses = ops.clipped_value_loss(value, batch.value, batch.target, self.clip)
        else:
            losses = ops.value_loss(value, batch.target)
        value_loss = jnp.mean(losses)
        loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # Never negative and of low variance, unlike the mean of -log_ratio (Schulman 2020).
            "approx_kl": jnp.mean(ratio - 1.0 - log_ratio),
            "clip_fraction": jnp.mean((jnp.abs(ratio - 1.0) > self.clip).astype(jnp.float32)),
        }

    @ff.component("learner.update")
    def update(self, learner: Learner, grads: Any, remaining: jax.Array) -> Learner:
        """One step of Adam. `grads` are means over all environments: clipping is not linear."""
        updates, optimiser = self._optimiser.update(grads, learner.optimiser)
        rate = self.learning_rate * (remaining if self.anneal else 1.0)
        params = jax.tree.map(lambda p, u: p - rate * u, learner.params, updates)
        return Learner(params, optimiser)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        distribution = self._network.policy(params["actor"], obs)
        return distribution.sample(key) if explore else distribution.mode(), memory

    @property
    def _network(self) -> ops.ActorCriticNetwork:
        return self.network or ops.MLPActorCritic(self.hidden)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5)
        )


def _bounded(action: jax.Array, space: ff.Space) -> jax.Array:
    return jnp.clip(action, *space.bounds) if isinstance(space, ff.Box) else action
