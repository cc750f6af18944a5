"""Proximal policy optimisation (Schulman et al. 2017) with memory, from chunks of time."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow.api as ff
from fragflow import ops

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
    first: jax.Array
    """`[N]`: whether `obs` is the first of an episode, so that memory of earlier ones is void"""
    actor_memory: jax.Array
    """`[N, units]`, before `obs`"""
    critic_memory: jax.Array


class Rollout(NamedTuple):
    """Steps of a rollout, `[C, L, N, ...]`: chunks of time, steps of a chunk, environments."""

    obs: jax.Array
    first: jax.Array
    """True where `obs` is the first of an episode"""
    action: jax.Array
    log_prob: jax.Array
    next_obs: jax.Array
    """the true successor, also where an episode ended"""
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None
    """False where nothing happened"""


class Values(NamedTuple):
    """The critic's opinion, `[C, L, N]`."""

    now: jax.Array
    next: jax.Array
    """of the true successor"""
    memory: jax.Array
    """the critic's before each chunk, `[C, N, units]`"""
    last_memory: jax.Array
    """the critic's after the rollout, `[N, units]`"""


class Estimates(NamedTuple):
    """Advantages for the policy and targets for the critic, `[C, L, N]`."""

    advantage: jax.Array
    target: jax.Array
    squared_return: jax.Array
    """the mean over the rollout"""


class Batch(NamedTuple):
    """The data of the gradient: `[C, L, N, ...]`, and the memories before each chunk."""

    rollout: Rollout
    advantage: jax.Array
    target: jax.Array
    actor_memory: jax.Array
    """`[C, N, units]`"""
    critic_memory: jax.Array


@dataclass(frozen=True)
class RecurrentPPO(ff.Algorithm):
    """PPO that remembers, for environments that do not show everything at once.

    As PPO, but actor and critic each have a memory, a GRU. A rollout is cut into chunks of time; a
    minibatch is all environments at some chunks. Within a chunk gradients flow through time, from
    the memory that was stored at its start. Memory is forgotten where an episode begins.
    """

    default_num_envs: ClassVar[int] = 16

    learning_rate: float = 1e-3
    """step size of Adam at the start"""
    anneal: bool = True
    """lower the learning rate linearly, to zero at the end of training"""
    rollout_length: int = 128
    """steps in every environment per iteration"""
    chunk_length: int = 16
    """steps through which gradients flow back; must divide the rollout length"""
    epochs: int = 4
    """passes over the collected steps per iteration"""
    minibatches: int = 4
    """gradient steps per pass; must divide the number of chunks"""
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
    return_memory: float = 0.95
    """share that the running size of returns, the critic's unit, keeps per iteration"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it"""
    units: int = 64
    """numbers that actor and critic each remember"""
    hidden: tuple[int, ...] = (64,)
    """sizes of the hidden layers between memory and output"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=("rollout_length", "chunk_length", "epochs", "minibatches", "units"),
            above_0=("learning_rate", "clip", "max_grad_norm"),
            from_0=("entropy_coef", "value_coef"),
            from_0_to_1=("gamma", "gae_lambda", "return_memory"),
            sizes=("hidden",),
        )
        ops.check_chunks(self.rollout_length, self.chunk_length, self.minibatches)

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env.require_one_agent("RecurrentPPO")
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, t = env.reset(env_key)
        memory = jnp.zeros((env.num_envs, self.units))
        optimiser = self._optimiser.init(params)
        return State(params, optimiser, jnp.float32(1.0), env_state, t.obs, ~t.done, memory, memory)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)

        def interact(carry: Any, keys: jax.Array) -> tuple[Any, Rollout]:
            env_state, obs, first, memory = carry
            memory, action, bounded, log_prob = self.act(
                state.params["actor"], memory, first, obs, keys, env.action
            )
            env_state, t = env.step(env_state, bounded)
            happened = Rollout(
                obs,
                first,
                action,
                log_prob,
                t.next_obs,
                t.reward,
                t.terminated,
                t.truncated,
                t.mask,
            )
            begins = t.done if t.mask is None else t.done | ~t.mask
            return (env_state, t.obs, begins, memory), happened

        start = (state.env_state, state.obs, state.first, state.actor_memory)
        keys = env.keys(act_key, self._chunks, self.chunk_length)
        end, actor_memory, rollout = ops.scan_chunks(interact, start, keys)
        values = self.values(state.params["critic"], state.critic_memory, rollout)
        estimates = self.advantages(rollout, values, state.squared_return)
        batch = Batch(rollout, estimates.advantage, estimates.target, actor_memory, values.memory)

        def minibatch(learner: Learner, chunks: jax.Array) -> tuple[Learner, Any]:
            grads, info = self.gradient(learner.params, batch, chunks)
            learner, norm = self.update(learner, ff.all_mean(grads), 1.0 - clock.progress)
            return learner, (info, norm)

        chunks = ops.time_minibatches(shuffle_key, self._chunks, self.epochs, self.minibatches)
        learner = Learner(state.params, state.optimiser)
        learner, (info, norm) = lax.scan(minibatch, learner, chunks)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        squared_return = self.track(state.squared_return, estimates.squared_return, clock.iteration)
        env_state, obs, first, memory = end
        state = State(*learner, squared_return, env_state, obs, first, memory, values.last_memory)
        return state, metrics

    @ff.component("actor")
    def act(
        self,
        actor: Any,
        memory: jax.Array,
        first: jax.Array,
        obs: jax.Array,
        keys: jax.Array,
        space: ff.Space,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Memory, an action per environment, the same within bounds, its log-probability."""
        memory = self._network.observe(actor, ops.forget(memory, first), obs)
        distribution = self._network.policy(actor, memory)
        action = distribution.sample(keys)
        bounded = jnp.clip(action, *space.bounds) if isinstance(space, ff.Box) else action
        return memory, action, bounded, distribution.log_prob(action)

    @ff.component("learner.value")
    def values(self, critic: Any, memory: jax.Array, rollout: Rollout) -> Values:
        """The critic's values before and after each step, and its memories."""
        seen = (rollout.first, rollout.obs, rollout.next_obs)
        values, memories = ops.values_over_chunks(self._network, critic, memory, *seen)
        return Values(*values, memories[:-1], memories[-1])

    @ff.component("learner.advantages")
    def advantages(self, rollout: Rollout, values: Values, squared_return: jax.Array) -> Estimates:
        """The advantage of each action over what was expected, and targets for the critic."""

        def in_time(x: jax.Array) -> jax.Array:
            return x.reshape(self.rollout_length, *x.shape[2:])

        terminated, truncated = in_time(rollout.terminated), in_time(rollout.truncated)
        advantage = ops.gae(
            reward=in_time(rollout.reward) / jnp.sqrt(squared_return),
            value=in_time(values.now),
            next_value=in_time(values.next),
            terminated=terminated,
            done=terminated | truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        ).reshape(values.now.shape)
        target = advantage + values.now
        return Estimates(
            ops.standardise(advantage),
            target,
            squared_return * ff.all_mean(jnp.mean(jnp.square(target))),
        )

    @ff.component("learner.track")
    def track(self, average: jax.Array, latest: jax.Array, iteration: jax.Array) -> jax.Array:
        """The running average, which at first is the plain mean of all iterations so far."""
        weight = jnp.maximum(1.0 / (1.0 + iteration), 1.0 - self.return_memory)
        return jnp.maximum(average + weight * (latest - average), MIN_SQUARED_RETURN)

    @ff.component("learner.gradient")
    def gradient(self, params: Any, batch: Batch, chunks: jax.Array) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss at some chunks of time, over the environments at hand."""
        chosen = jax.tree.map(lambda x: x.at[chunks].get(mode="promise_in_bounds"), batch)
        return jax.grad(self._loss, has_aux=True)(params, chosen)

    def _loss(self, params: Any, batch: Batch) -> tuple[jax.Array, ff.Metrics]:
        # Time first, then chunks and environments as one batch axis.
        memories = [m.reshape(-1, self.units) for m in (batch.actor_memory, batch.critic_memory)]
        rollout, advantage, target = jax.tree.map(ops.chunks_as_batch, batch[:3])
        actor_memory, critic_memory = (
            self._network.observe_all(params[part], memory, rollout.first, rollout.obs)
            for part, memory in zip(("actor", "critic"), memories, strict=True)
        )
        distribution = self._network.policy(params["actor"], actor_memory)
        value = self._network.value(params["critic"], critic_memory)
        return ops.ppo_loss(
            distribution,
            value,
            action=rollout.action,
            log_prob=rollout.log_prob,
            advantage=advantage,
            target=target,
            weight=1.0 if rollout.mask is None else rollout.mask.astype(value.dtype),
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )

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
        memory = jnp.zeros(self.units) if memory is None else memory
        memory = self._network.observe(params["actor"], memory, obs)
        distribution = self._network.policy(params["actor"], memory)
        return distribution.sample(key) if explore else distribution.mode(), memory

    @property
    def _chunks(self) -> int:
        return self.rollout_length // self.chunk_length

    @property
    def _network(self) -> ops.GRUActorCritic:
        return ops.GRUActorCritic(self.units, self.hidden)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=1e-5)
