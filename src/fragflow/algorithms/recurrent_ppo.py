"""Proximal policy optimisation (Schulman et al. 2017) with memory, from chunks of time."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Key, Shaped

import fragflow.api as ff
from fragflow import ops


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    optimiser: Any
    return_scale: ops.ReturnScale
    env_state: ff.EnvState
    obs: jax.Array
    first: jax.Array
    """`[N]`: whether `obs` is the first of an episode, so that memory of earlier ones is void"""
    actor_memory: jax.Array
    """`[N, units]`, before `obs`"""
    critic_memory: jax.Array


class Chunks(NamedTuple):
    """The data of the gradient, `[C, L, N, ...]`: chunks of time, their steps, environments."""

    batch: ops.PPOBatch
    first: jax.Array
    """True where an observation is the first of an episode"""
    actor_memory: jax.Array
    """before each chunk, `[C, N, units]`"""
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
    """share that the running size of returns keeps per iteration"""
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

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        env.require_one_agent("RecurrentPPO")
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, t = env.reset(env_key)
        memory = jnp.zeros((env.num_envs, self.units))
        optimiser = self._optimiser.init(params)
        scale = ops.ReturnScale.of_nothing()
        return State(params, optimiser, scale, env_state, t.obs, ~t.done, memory, memory)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)

        def interact(carry: Any, keys: jax.Array) -> tuple[Any, tuple[ops.Rollout, jax.Array]]:
            env_state, obs, first, memory = carry
            memory, action, env_action, log_prob = self.act(
                state.params["actor"], memory, first, obs, keys, env.action
            )
            env_state, t = env.step(env_state, env_action)
            begins = t.done if t.mask is None else t.done | ~t.mask
            steps = (ops.transition(obs, action, t, log_prob), first)
            return (env_state, t.obs, begins, memory), steps

        start = (state.env_state, state.obs, state.first, state.actor_memory)
        keys = env.keys(act_key, self._chunks, self.chunk_length)
        end, actor_memory, (rollout, first) = ops.scan_chunks(interact, start, keys)
        value, next_value, critic_memory, last_memory = self.values(
            state.params["critic"], state.critic_memory, first, rollout
        )
        advantage, target, mean_square = self.advantages(
            rollout, value, next_value, state.return_scale
        )
        batch = ops.PPOBatch(
            rollout.obs, rollout.action, rollout.log_prob, advantage, target, rollout.mask
        )
        chunks = Chunks(batch, first, actor_memory, critic_memory)

        def minibatch(
            learner: ops.Learner, chunk_idx: Int32[Array, " B"]
        ) -> tuple[ops.Learner, Any]:
            grads, info = self.gradient(learner.params, chunks, chunk_idx)
            learner, norm = self.update(learner, ff.all_mean(grads), clock.progress)
            return learner, (info, norm)

        chunk_idx = ops.time_minibatches(shuffle_key, self._chunks, self.epochs, self.minibatches)
        learner = ops.Learner(state.params, state.optimiser)
        learner, (info, norm) = lax.scan(minibatch, learner, chunk_idx)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        scale = self.track(state.return_scale, mean_square, clock.iteration)
        env_state, obs, first, memory = end
        return State(*learner, scale, env_state, obs, first, memory, last_memory), metrics

    @ff.component("actor")
    def act(
        self,
        actor: Any,
        memory: Float[Array, "N units"],
        first: Bool[Array, " N"],
        obs: Shaped[Array, "N ..."],
        keys: Key[Array, " N"],
        space: ff.Space,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Memory, an action per environment, the same within bounds, its log-probability."""
        memory = self._network.observe(actor, ops.forget(memory, first), obs)
        distribution = self._network.policy(actor, memory)
        return memory, *ops.act(distribution, keys, space)

    @ff.component("learner.value")
    def values(self, critic: Any, memory: jax.Array, first: jax.Array, rollout: ops.Rollout):
        """The critic's values before and after each step, its memories before chunks, the last."""
        seen = (first, rollout.obs, rollout.next_obs)
        values, memories = ops.values_over_chunks(self._network, critic, memory, *seen)
        return *values, memories[:-1], memories[-1]

    @ff.component("learner.advantages")
    def advantages(
        self,
        rollout: ops.Rollout,
        value: Float[Array, "C L N"],
        next_value: Float[Array, "C L N"],
        scale: ops.ReturnScale,
    ):
        """Advantages `[C, L, N]`, targets for the critic, and the mean square of returns."""
        advantage = ops.gae(
            reward=ops.merged(rollout.reward, 0, 2) / scale.size,
            value=ops.merged(value, 0, 2),
            next_value=ops.merged(next_value, 0, 2),
            terminated=ops.merged(rollout.terminated, 0, 2),
            done=ops.merged(rollout.done, 0, 2),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        ).reshape(value.shape)
        target = advantage + value
        standard = ops.standardise(advantage, rollout.mask)
        return standard, target, scale.mean_square(target, rollout.mask)

    @ff.component("learner.track")
    def track(
        self, scale: ops.ReturnScale, mean_square: Float[Array, ""], iteration: Int32[Array, ""]
    ):
        """The scale of returns, for the next iteration."""
        return scale.moved(mean_square, iteration, self.return_memory)

    @ff.component("learner.gradient")
    def gradient(self, params: Any, chunks: Chunks, chunk_idx: Int32[Array, " B"]):
        """Gradients of the loss at some chunks of time, over the environments at hand."""
        return jax.grad(self._loss, has_aux=True)(params, ops.take_time(chunks, chunk_idx))

    def _loss(self, params: Any, chunks: Chunks) -> tuple[Float[Array, ""], ff.Metrics]:
        # Time first, then chunks and environments as one batch axis.
        batch, first = jax.tree.map(ops.chunks_as_batch, chunks[:2])
        actor_memory, critic_memory = (
            self._network.observe_all(params[part], ops.merged(memory, 0, 2), first, batch.obs)
            for part, memory in zip(("actor", "critic"), chunks[2:], strict=True)
        )
        return ops.ppo_loss(
            self._network.policy(params["actor"], actor_memory),
            self._network.value(params["critic"], critic_memory),
            batch,
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )

    @ff.component("learner.update")
    def update(self, learner: ops.Learner, grads: Any, progress: Float[Array, ""]):
        """One step of Adam, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * (1.0 - progress) if self.anneal else self.learning_rate
        return ops.descend(self._optimiser, learner, grads, rate, self.max_grad_norm)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        memory = jnp.zeros(self.units) if memory is None else memory
        memory = self._network.observe(params["actor"], memory, obs)
        distribution = self._network.policy(params["actor"], memory)
        return ops.choose(distribution, key, explore), memory

    @property
    def _chunks(self) -> int:
        return self.rollout_length // self.chunk_length

    @property
    def _network(self) -> ops.GRUActorCritic:
        return ops.GRUActorCritic(self.units, self.hidden)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=1e-5)
