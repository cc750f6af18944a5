"""Deep Q-learning (Mnih et al. 2015) and what was found to improve it."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, Int32, Key, Shaped

import fragflow.api as ff
from fragflow import ops
from fragflow.errors import ConfigError


class Learner(NamedTuple):
    """The networks and the optimiser's state, which a gradient step changes."""

    params: Any
    target: Any
    """the slower network that says what actions will be worth"""
    optimiser: Any


class Buffer(NamedTuple):
    """The experience, and the priorities to draw it by."""

    ring: ops.Ring
    """of `ops.Transition`"""
    priorities: ops.Priorities | None
    latest: ops.Steps | None
    """`[n_step - 1, N, ...]`, steps whose successors have not been seen yet"""


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    target: Any
    optimiser: Any
    buffer: Buffer
    env_state: ff.EnvState
    obs: jax.Array


class Batches(NamedTuple):
    """The `updates` batches that an iteration learns from, `[U, N, K, ...]`."""

    transition: ops.Transition
    places: Int32[Array, "U N K"]
    """their positions in the buffer"""


@dataclass(frozen=True)
class DQN(ff.Algorithm):
    """DQN for a choice among actions: double, dueling, n-step and prioritised where asked for.

    The actor makes `rollout_length` steps in every environment, at random with probability
    epsilon. They go into the buffer, and the learner makes `updates` gradient steps, each on a
    batch to which every environment contributes equally. The batches of an iteration are drawn
    together, before the first of them is learned from (as in Horgan et al. 2018).
    """

    default_num_envs: ClassVar[int] = 16

    learning_rate: float = 1e-3
    """step size of Adam at the start"""
    anneal: bool = True
    """lower the learning rate linearly, to zero at the end of training"""
    rollout_length: int = 8
    """steps in every environment per iteration"""
    updates: int = 16
    """gradient steps per iteration"""
    batch_size: int = 128
    """transitions per gradient step; a multiple of the number of environments"""
    buffer_size: int = 65_536
    """least number of transitions to remember, over all environments"""
    learning_starts: int = 2_048
    """random environment steps before the first gradient step"""
    gamma: float = 0.99
    """discount per step"""
    epsilon: float = 0.05
    """probability of a random action in the end; at first it is 1"""
    exploration: float = 0.2
    """share of training in which epsilon goes down to its final value"""
    double: bool = True
    """let the learning network choose the next action, not the target (van Hasselt et al. 2016)"""
    dueling: bool = False
    """separate the value of a state from the advantages of actions (Wang et al. 2016)"""
    n_step: int = 5
    """rewards to sum up before the target network is asked (Sutton 1988; Hessel et al. 2018)"""
    prioritised: bool = False
    """draw transitions by how surprising they were (Schaul et al. 2016)"""
    priority_exponent: float = 0.6
    """power of the error by which transitions are drawn: 0 draws uniformly, 1 in proportion"""
    importance: float = 0.4
    """correction of the bias of prioritised draws at first: 0 none, 1 full, as it is at the end"""
    target_period: int = 200
    """gradient steps between moves of the target network"""
    target_rate: float = 1.0
    """fraction of the way to the learning network that the target moves; 1 copies it"""
    max_grad_norm: float = 10.0
    """gradients with a larger global norm are scaled down to it"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers"""
    network: ops.QNetwork | None = None
    """your own network; instead of `hidden` and `dueling`"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=(
                "rollout_length",
                "updates",
                "batch_size",
                "buffer_size",
                "n_step",
                "target_period",
            ),
            above_0=("learning_rate", "max_grad_norm", "target_rate"),
            from_0=("learning_starts", "priority_exponent"),
            from_0_to_1=("gamma", "epsilon", "exploration", "importance", "target_rate"),
            sizes=("hidden",),
        )
        if not self.hidden:
            raise ConfigError("hidden is empty: expected one or more sizes of at least 1")

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        env.require_one_agent("DQN")
        if not isinstance(env.action, ff.Discrete):
            raise ConfigError(f"DQN is for a choice among actions, but actions are {env.action}")
        env.per_env(self.batch_size, "batch_size")
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, timestep = env.reset(env_key)
        optimiser = self._optimiser.init(params)
        buffer = self._empty_buffer(env, timestep)
        return State(params, params, optimiser, buffer, env_state, timestep.obs)

    def _empty_buffer(self, env: ff.Environments, timestep: ff.Timestep) -> Buffer:
        capacity = ops.ring_capacity(self.buffer_size, env.total, self.rollout_length)
        zero = jnp.zeros_like(timestep.reward)
        action = zero.astype(jnp.int32)
        steps = ops.steps_of(timestep.obs, action, timestep)
        return Buffer(
            ops.empty_ring(
                ops.Transition(timestep.obs, action, zero, zero, timestep.obs, zero), capacity
            ),
            ops.no_priorities(env.num_envs, capacity) if self.prioritised else None,
            ops.no_steps(steps, self.n_step - 1) if self.n_step > 1 else None,
        )

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, sample_key = jax.random.split(clock.key)
        starting = clock.env_steps < self.learning_starts
        rate = self.learning_rate * (1.0 - clock.progress if self.anneal else 1.0)
        rate = jnp.where(starting, 0.0, rate)
        decay = clock.progress / max(self.exploration, 1e-8)
        epsilon = jnp.maximum(1.0 - (1.0 - self.epsilon) * decay, self.epsilon)
        epsilon = jnp.where(starting, 1.0, epsilon)

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action = self.act(state.params, obs, keys, epsilon)
            env_state, t = env.step(env_state, action)
            return (env_state, t.obs), ops.steps_of(obs, action, t)

        (env_state, obs), steps = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        buffer = self.add(state.buffer, steps)
        correction = self.importance + (1.0 - self.importance) * clock.progress
        number = env.per_env(self.batch_size)
        batches = self.sample(buffer, env.keys(sample_key, self.updates), number, correction)

        def learn(learner: Learner, batch: tuple[ops.Transition, jax.Array]):
            transition, number = batch
            grads, error, info = self.gradient(learner.params, learner.target, transition)
            learner = self.update(learner, ff.all_mean(grads), number, rate)
            return learner, (error, info)

        numbers = clock.iteration * self.updates + jnp.arange(self.updates, dtype=jnp.int32)
        learner, (error, info) = lax.scan(
            learn,
            Learner(state.params, state.target, state.optimiser),
            (batches.transition, numbers),
        )
        buffer = self.reprioritise(buffer, batches.places, error) if self.prioritised else buffer
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"epsilon": epsilon}
        return State(*learner, buffer, env_state, obs), metrics

    @ff.component("actor")
    def act(
        self,
        params: Any,
        obs: Shaped[Array, "N ..."],
        keys: Key[Array, " N"],
        epsilon: Float[Array, ""],
    ) -> Int32[Array, " N"]:
        """An action per environment: the best one, or with probability `epsilon` any."""
        values = self._network.values(params, obs)
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        choices = values.shape[-1]
        anything = jnp.minimum((uniform[:, 0] * choices).astype(jnp.int32), choices - 1)
        best = jnp.argmax(values, axis=-1).astype(jnp.int32)
        return jnp.where(uniform[:, 1] < epsilon, anything, best)

    @ff.component("buffer.add")
    def add(self, buffer: Buffer, steps: ops.Steps) -> Buffer:
        """Remembers steps, over the oldest ones."""
        if buffer.latest is not None:
            steps = ops.join_steps(buffer.latest, steps)
        transition = ops.n_step(steps, self.n_step, self.gamma)
        priorities, latest = buffer.priorities, buffer.latest
        if priorities is not None:
            priorities = ops.add_priorities(priorities, buffer.ring, transition.weight)
        if latest is not None:
            latest = jax.tree.map(lambda x: x[1 - self.n_step :], steps)
        return Buffer(ops.add_steps(buffer.ring, transition), priorities, latest)

    @ff.component("buffer.sample")
    def sample(
        self, buffer: Buffer, keys: Key[Array, "U N"], number: int, correction: Float[Array, ""]
    ) -> Batches:
        """Batches of `number` transitions of every environment, one for every row of `keys`."""
        ring = buffer.ring
        if buffer.priorities is None:
            places = ops.sample_uniformly(ring, keys, number)
            return Batches(ops.take(ring, places), places)
        drawn = ops.sample_by_priority(buffer.priorities, ring, keys, number, correction)
        transition = ops.take(ring, drawn.places)
        return Batches(transition._replace(weight=drawn.weight), drawn.places)

    @ff.component("buffer.reprioritise")
    def reprioritise(
        self, buffer: Buffer, places: Int32[Array, "U N K"], error: Float[Array, "U N K"]
    ) -> Buffer:
        """Remembers how surprising transitions were."""
        assert buffer.priorities is not None
        priorities = ops.set_priorities(buffer.priorities, places, error, self.priority_exponent)
        return buffer._replace(priorities=priorities)

    @ff.component("learner.gradient")
    def gradient(
        self, params: Any, target: Any, transition: ops.Transition
    ) -> tuple[Any, jax.Array, ff.Metrics]:
        """Gradients of the loss over the environments at hand, and the errors `[N, K]`."""
        shape = transition.reward.shape
        # One batch axis: XLA differentiates matrix products of three axes twice as slowly.
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transition)
        goal = flat.reward + flat.discount * self._next_value(params, target, flat.next_obs)

        def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, ff.Metrics]]:
            values = self._network.values(params, flat.obs)
            value = _chosen(values, flat.action)
            error = goal - value
            loss = jnp.mean(flat.weight * ops.huber(error))
            return loss, (error, {"loss": loss, "value": jnp.mean(value)})

        grads, (error, info) = jax.grad(loss, has_aux=True)(params)
        return grads, error.reshape(shape), info

    def _next_value(self, params: Any, target: Any, obs: jax.Array) -> jax.Array:
        """The target network's value of the best action."""
        values = self._network.values(target, obs)
        if not self.double:
            return jnp.max(values, axis=-1)
        return _chosen(values, jnp.argmax(self._network.values(params, obs), axis=-1))

    @ff.component("learner.update")
    def update(
        self, learner: Learner, grads: Any, number: Int32[Array, ""], rate: Float[Array, ""]
    ) -> Learner:
        """One step of Adam and of the target network; none where the learning rate is zero.

        `grads` are means over all environments already: neither clipping nor Adam is linear.
        """
        before = ops.Learner(learner.params, learner.optimiser)
        (params, optimiser), _ = ops.descend(
            self._optimiser, before, grads, rate, self.max_grad_norm
        )
        move = jnp.where(number % self.target_period == 0, self.target_rate, 0.0)
        after = Learner(params, ops.polyak(learner.target, params, move), optimiser)
        return jax.tree.map(lambda old, new: jnp.where(rate > 0, new, old), learner, after)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        best = jnp.argmax(self._network.values(params, obs), axis=-1).astype(jnp.int32)
        if not explore:
            return best, memory
        choices = self._network.values(params, obs).shape[-1]
        chance_key, choice_key = jax.random.split(key)
        anything = jax.random.randint(choice_key, best.shape, 0, choices)
        return jnp.where(jax.random.bernoulli(chance_key, self.epsilon), anything, best), memory

    @property
    def _network(self) -> ops.QNetwork:
        if self.network is None:
            return ops.MLPQNetwork(self.hidden, self.dueling)
        return ops.GivenQNetwork(self.network)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=1e-5)


def _chosen(values: jax.Array, action: jax.Array) -> jax.Array:
    """The entry of `values` `[..., A]` that `action` `[...]` names."""
    chosen = jax.nn.one_hot(action, values.shape[-1], dtype=values.dtype)
    return jnp.sum(values * chosen, axis=-1)
