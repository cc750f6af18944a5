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

MIN_SQUARED_RETURN = 1e-2
"""So that the first reward after a long time without any does not look enormous to the critic."""


class Learner(NamedTuple):
    """The parameters, and the optimiser's state."""

    params: Any
    optimiser: Any


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    optimiser: Any
    squared_return: jax.Array
    """running average; its root is the unit in which the critic counts"""
    env_state: ff.EnvState
    obs: jax.Array


class Rollout(NamedTuple):
    """The steps of a rollout, `[T, N, ...]`: time first, then environments."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    next_obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None
    """False where nothing happened"""


class Values(NamedTuple):
    """The critic's opinion, `[T, N]`."""

    now: jax.Array
    next: jax.Array
    """of the true successor"""
    obs: jax.Array
    """`[T, N, ...]`, as networks see them"""


class Estimates(NamedTuple):
    """Estimates from a rollout: advantages for the policy, targets for the critic."""

    advantage: jax.Array
    """`[T, N]`"""
    target: jax.Array
    """`[T, N]`"""
    squared_return: jax.Array
    """the mean over the rollout"""


class Batch(NamedTuple):
    """The data that the gradient is computed from, `[T, N, ...]`."""

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

    The critic counts in units of the root mean square of recent returns. One learning rate then
    fits returns of any size (compare van Hasselt et al. 2016), and the critic's loss does not drown
    the policy's where gradients are clipped.
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
    """relative change of an action's probability beyond which a further change does not pay"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    clip_value: bool = False
    """also clip the change of the critic's output (by `clip`)"""
    return_memory: float = 0.95
    """share that the running size of returns, the critic's unit, keeps per iteration"""
    normalise_observations: bool = False
    """scale observations to mean zero and variance one, by statistics of all seen before"""
    normalise_advantages: bool = True
    """scale the advantages of each iteration to mean zero and variance one"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of actor and critic"""
    network: ops.ActorCriticNetwork | None = None
    """your own actor and critic; instead of `hidden`"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=("rollout_length", "epochs", "minibatches"),
            above_0=("learning_rate", "clip", "max_grad_norm"),
            from_0=("entropy_coef", "value_coef"),
            from_0_to_1=("gamma", "gae_lambda", "return_memory"),
            sizes=("hidden",),
        )
        if self.rollout_length % self.minibatches:
            raise ConfigError(
                f"minibatches = {self.minibatches} does not divide rollout_length = "
                f"{self.rollout_length}: a minibatch takes whole time steps"
            )

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env.require_one_agent("PPO")
        if self.normalise_observations and not isinstance(env.observation, ff.Box):
            raise ConfigError(
                f"normalise_observations is for numbers, but observations are {env.observation}"
            )
        network_key, env_key = jax.random.split(key)
        networks = self._network.init(network_key, env.observation, env.action)
        env_state, timestep = env.reset(env_key)
        seen = ops.Statistics.of_nothing(env.observation.shape)
        params = networks | ({"seen": seen} if self.normalise_observations else {})
        optimiser = self._optimiser.init(networks)
        return State(params, optimiser, jnp.float32(1.0), env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        networks = {name: state.params[name] for name in ("actor", "critic")}
        seen = state.params.get("seen")

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, bounded, log_prob = self.act(networks["actor"], seen, obs, keys, env.action)
            env_state, t = env.step(env_state, bounded)
            happened = Rollout(
                obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated, t.mask
            )
            return (env_state, t.obs), happened

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        values = self.values(networks["critic"], seen, rollout.obs, rollout.next_obs)
        estimates = self.advantages(rollout, values, state.squared_return)
        batch = Batch(
            values.obs,
            rollout.action,
            rollout.log_prob,
            values.now,
            estimates.advantage,
            estimates.target,
        )

        def minibatch(learner: Learner, rows: jax.Array) -> tuple[Learner, Any]:
            grads, info = self.gradient(learner.params, batch, rows)
            learner, norm = self.update(learner, ff.all_mean(grads), 1.0 - clock.progress)
            return learner, (info, norm)

        rows = ops.time_minibatches(shuffle_key, self.rollout_length, self.epochs, self.minibatches)
        learner, (info, norm) = lax.scan(minibatch, Learner(networks, state.optimiser), rows)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        squared_return = self.track(state.squared_return, estimates.squared_return, clock.iteration)
        params = learner.params
        if seen is not None:
            total = self.rollout_length * env.total
            params = params | {"seen": self.observe(seen, rollout.obs, total)}
        return State(params, learner.optimiser, squared_return, env_state, obs), metrics

    @ff.component("actor")
    def act(
        self, actor: Any, seen: Any, obs: jax.Array, keys: jax.Array, space: ff.Space
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """An action per environment, the same within the bounds of `space`, its log-probability."""
        distribution = self._network.policy(actor, _scaled(seen, obs))
        action = distribution.sample(keys)
        bounded = jnp.clip(action, *space.bounds) if isinstance(space, ff.Box) else action
        return action, bounded, distribution.log_prob(action)

    @ff.component("learner.value")
    def values(self, critic: Any, seen: Any, obs: jax.Array, next_obs: jax.Array) -> Values:
        """The critic's values before and after each step, and observations as networks see them."""
        obs, next_obs = _scaled(seen, obs), _scaled(seen, next_obs)

        def of_block(block: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
            return [self._network.value(critic, observed) for observed in block]

        time, num_envs = obs.shape[:2]
        now, later = ops.map_blocks(of_block, (obs, next_obs), num_envs)
        return Values(now.reshape(time, num_envs), later.reshape(time, num_envs), obs)

    @ff.component("learner.advantages")
    def advantages(self, rollout: Rollout, values: Values, squared_return: jax.Array) -> Estimates:
        """The advantage of each action over what was expected, and targets for the critic."""
        unit = jnp.sqrt(squared_return)
        advantage = ops.gae(
            reward=rollout.reward / unit,
            value=values.now,
            next_value=values.next,
            terminated=rollout.terminated,
            done=rollout.terminated | rollout.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        target = advantage + values.now
        if self.normalise_advantages:
            advantage = ops.standardise(advantage)
        if rollout.mask is not None:
            advantage = jnp.where(rollout.mask, advantage, 0.0)
        return Estimates(
            advantage, target, squared_return * ff.all_mean(jnp.mean(jnp.square(target)))
        )

    @ff.component("learner.track")
    def track(self, average: jax.Array, latest: jax.Array, iteration: jax.Array) -> jax.Array:
        """The running average, which at first is the plain mean of all iterations so far."""
        weight = jnp.maximum(1.0 / (1.0 + iteration), 1.0 - self.return_memory)
        return jnp.maximum(average + weight * (latest - average), MIN_SQUARED_RETURN)

    @ff.component("learner.observe")
    def observe(self, seen: ops.Statistics, obs: jax.Array, total: int) -> ops.Statistics:
        """Statistics of observations, for the next iteration."""
        return ops.include(seen, obs, total)

    @ff.component("learner.gradient")
    def gradient(self, params: Any, batch: Batch, rows: jax.Array) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss at the time steps `rows`, over the environments at hand."""

        def of_block(block: jax.Array) -> tuple[Any, ff.Metrics]:
            def samples(x: jax.Array) -> jax.Array:
                # One batch axis: XLA differentiates matrix products of three axes twice as slowly.
                return x.at[block].get(mode="promise_in_bounds").reshape(-1, *x.shape[2:])

            return jax.grad(self._loss, has_aux=True)(params, jax.tree.map(samples, batch))

        per_block = ops.map_blocks(of_block, rows, num_envs=batch.action.shape[1])
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), per_block)

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
    def update(
        self, learner: Learner, grads: Any, remaining: jax.Array
    ) -> tuple[Learner, jax.Array]:
        """One step of Adam, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * remaining if self.anneal else self.learning_rate
        params, optimiser, norm = ops.descend(
            self._optimiser, *learner, grads, rate=rate, max_norm=self.max_grad_norm
        )
        return Learner(params, optimiser), norm

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        distribution = self._network.policy(params["actor"], _scaled(params.get("seen"), obs))
        return distribution.sample(key) if explore else distribution.mode(), memory

    @property
    def _network(self) -> ops.ActorCriticNetwork:
        if self.network is None:
            return ops.MLPActorCritic(self.hidden)
        return ops.GivenActorCritic(self.network)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=1e-5)


def _scaled(seen: ops.Statistics | None, obs: jax.Array) -> jax.Array:
    """Observations as networks see them."""
    return obs if seen is None else ops.normalise(seen, obs)
