"""Soft actor-critic (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications")."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jaxtyping import Bool, Float, Key

import fragflow.api as ff
from fragflow import ops
from fragflow.errors import ConfigError


class Learner(NamedTuple):
    """The networks and the optimiser's state, which a gradient step changes."""

    params: Any
    """of the `actor` and the `critic`s, and the logarithm of the `temperature`"""
    target: Any
    """slower copies of the critics, which say what comes after a step"""
    optimiser: Any


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """the learner's, and the `bounds` of actions, which a trained agent needs"""
    target: Any
    optimiser: Any
    buffer: ops.Ring
    """of `ops.Transition`"""
    env_state: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class SAC(ff.Algorithm):
    """SAC with two critics and automatic temperature, for continuous actions with bounds.

    The actor makes `rollout_length` steps in every environment. They go into the buffer, and the
    learner makes `updates` gradient steps, each on a batch to which every environment contributes
    equally. Actor, critics and temperature move at once, each by the gradient of its own loss.
    Actions are kept and learned from as numbers between -1 and 1, whatever the bounds.
    """

    default_num_envs: ClassVar[int] = 8

    learning_rate: float = 1e-3
    """step size of Adam, for actor, critics and temperature"""
    rollout_length: int = 8
    """steps in every environment per iteration"""
    updates: int = 32
    """gradient steps per iteration"""
    batch_size: int = 256
    """transitions per gradient step; a multiple of the number of environments"""
    buffer_size: int = 1_000_000
    """least number of transitions to remember, over all environments"""
    learning_starts: int = 1_000
    """random environment steps before the first gradient step"""
    gamma: float = 0.99
    """discount per step"""
    target_rate: float = 0.005
    """fraction of the way to the learning critics that the targets move per gradient step"""
    initial_temperature: float = 1.0
    """worth of a unit of entropy at first"""
    target_entropy: float | None = None
    """entropy that the temperature maintains; None: minus the number of an action's entries"""
    hidden: tuple[int, ...] = (256, 256)
    """sizes of the hidden layers of actor and critics"""
    network: ops.SoftNetwork | None = None
    """your own actor and critics; instead of `hidden`"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=("rollout_length", "updates", "batch_size", "buffer_size"),
            above_0=("learning_rate", "initial_temperature", "target_rate"),
            from_0=("learning_starts",),
            from_0_to_1=("gamma", "target_rate"),
            sizes=("hidden",),
        )

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        env.require_one_agent("SAC")
        space = _bounded(env.action)
        env.per_env(self.batch_size, "batch_size")
        network_key, env_key = jax.random.split(key)
        networks = self._network.init(network_key, env.observation, space)
        trained = networks | {"temperature": jnp.float32(np.log(self.initial_temperature))}
        env_state, timestep = env.reset(env_key)
        obs, zero = timestep.obs, jnp.zeros_like(timestep.reward)
        action = jnp.broadcast_to(zero[:, None], (*zero.shape, *space.shape))
        capacity = ops.ring_capacity(self.buffer_size, env.total, self.rollout_length)
        buffer = ops.empty_ring(ops.Transition(obs, action, zero, zero, obs, zero), capacity)
        params = trained | {"bounds": jnp.asarray(space.bounds, jnp.float32)}
        optimiser = self._optimiser.init(trained)
        return State(params, trained["critic"], optimiser, buffer, env_state, obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, sample_key, learn_key = jax.random.split(clock.key, 3)
        bounds = _bounded(env.action).bounds
        starting = clock.env_steps < self.learning_starts
        trained = {name: state.params[name] for name in ("actor", "critic", "temperature")}

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, bounded = self.act(trained["actor"], obs, keys, starting, bounds)
            env_state, t = env.step(env_state, bounded)
            return (env_state, t.obs), ops.steps_of(obs, action, t)

        (env_state, obs), steps = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        buffer = self.add(state.buffer, steps)
        number = env.per_env(self.batch_size)
        batches = self.sample(buffer, env.keys(sample_key, self.updates), number)

        def learn(learner: Learner, batch: tuple[ops.Transition, jax.Array]):
            transition, keys = batch
            grads, info = self.gradient(learner.params, learner.target, transition, keys)
            return self.update(learner, ff.all_mean(grads), starting), info

        learner, info = lax.scan(
            learn,
            Learner(trained, state.target, state.optimiser),
            (batches, env.keys(learn_key, self.updates)),
        )
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info))
        params = learner.params | {"bounds": state.params["bounds"]}
        return State(params, learner.target, learner.optimiser, buffer, env_state, obs), metrics

    @ff.component("actor")
    def act(
        self,
        actor: Any,
        obs: Float[Array, "N D"],
        keys: Key[Array, " N"],
        starting: Bool[Array, ""],
        bounds: Any,
    ) -> tuple[jax.Array, jax.Array]:
        """An action per environment, and the same within `bounds`.

        At the start any action is as likely as any other.
        """
        noise = jax.vmap(lambda key: jax.random.normal(key, bounds[0].shape))(keys)
        action, _ = self._network.policy(actor, obs).transform(noise)
        # The distribution function of the noise itself is uniform.
        action = jnp.where(starting, lax.erf(noise / np.sqrt(2.0).astype(np.float32)), action)
        return action, _within(bounds, action)

    @ff.component("buffer.add")
    def add(self, buffer: ops.Ring, steps: ops.Steps) -> ops.Ring:
        """Remembers steps, over the oldest ones."""
        return ops.add_steps(buffer, ops.n_step(steps, 1, self.gamma))

    @ff.component("buffer.sample")
    def sample(self, buffer: ops.Ring, keys: Key[Array, "U N"], number: int) -> ops.Transition:
        """Batches of `number` transitions of every environment, one for every row of `keys`."""
        return ops.take(buffer, ops.sample_uniformly(buffer, keys, number))

    @ff.component("learner.gradient")
    def gradient(
        self, params: Any, target: Any, transition: ops.Transition, keys: jax.Array
    ) -> tuple[Any, ff.Metrics]:
        """Gradients of the three losses over the environments at hand."""
        count, size = transition.action.shape[1:]
        noise = jax.vmap(lambda key: jax.random.normal(key, (count, 2, size)))(keys)
        # One batch axis: XLA differentiates matrix products of three axes twice as slowly.
        noise = noise.reshape(-1, 2, size)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transition)
        goal = self._goal(params, target, flat, noise[:, 1])

        def loss(params: Any) -> tuple[Float[Array, ""], ff.Metrics]:
            fixed = lax.stop_gradient(params)
            values = self._network.values(params["critic"], flat.obs, flat.action)
            errors = sum(ops.value_loss(value, goal) for value in values)
            critic_loss = jnp.mean(flat.weight * errors)
            # Haarnoja et al. 2018, eq. 9: the temperature and the critics are given.
            distribution = self._network.policy(params["actor"], flat.obs)
            action, log_prob = distribution.transform(noise[:, 0])
            value = _least(self._network.values(fixed["critic"], flat.obs, action))
            costs = jnp.exp(fixed["temperature"]) * log_prob - value
            actor_loss = jnp.mean(flat.weight * costs)
            # Eq. 18, for the temperature's logarithm.
            lack = lax.stop_gradient(log_prob) + self._target_entropy(size)
            temperature_loss = -params["temperature"] * jnp.mean(flat.weight * lack)
            return critic_loss + actor_loss + temperature_loss, {
                "critic_loss": critic_loss,
                "actor_loss": actor_loss,
                "entropy": -jnp.mean(log_prob),
                "value": jnp.mean(values[0]),
                "temperature": jnp.exp(params["temperature"]),
            }

        return jax.grad(loss, has_aux=True)(params)

    def _goal(self, params: Any, target: Any, flat: ops.Transition, noise: jax.Array) -> jax.Array:
        """The critics' target (eq. 5 and 3): the lesser of two values, and the entropy."""
        distribution = self._network.policy(params["actor"], flat.next_obs)
        action, log_prob = distribution.transform(noise)
        value = _least(self._network.values(target, flat.next_obs, action))
        return flat.reward + flat.discount * (value - jnp.exp(params["temperature"]) * log_prob)

    def _target_entropy(self, size: int) -> float:
        return -float(size) if self.target_entropy is None else self.target_entropy

    @ff.component("learner.update")
    def update(self, learner: Learner, grads: Any, starting: Bool[Array, ""]) -> Learner:
        """One step of Adam and of the target critics; none while the buffer is being filled.

        `grads` are means over all environments already: Adam is not linear.
        """
        before = ops.Learner(learner.params, learner.optimiser)
        (params, optimiser), _ = ops.descend(self._optimiser, before, grads, self.learning_rate)
        target = ops.polyak(learner.target, params["critic"], self.target_rate)
        after = Learner(params, target, optimiser)
        return jax.tree.map(lambda old, new: jnp.where(starting, old, new), learner, after)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        distribution = self._network.policy(params["actor"], obs)
        noise = jax.random.normal(key, distribution.mean.shape)
        action = distribution.transform(noise)[0] if explore else distribution.mode()
        return _within(params["bounds"], action), memory

    @property
    def _network(self) -> ops.SoftNetwork:
        if self.network is None:
            return ops.MLPSoftNetwork(self.hidden)
        return ops.GivenSoftNetwork(self.network)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam()


def _bounded(space: ff.Space) -> ff.Box:
    """`space` if it is a vector with bounds."""
    if not isinstance(space, ff.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"SAC is for continuous actions, Box(shape=(n,)), but actions are {space}"
        )
    if not np.isfinite(space.bounds).all():
        raise ConfigError(
            f"SAC needs bounds for actions, but they are from {space.low} to {space.high}: "
            "give the environment's action space finite ones"
        )
    return space


def _within(bounds: Any, action: jax.Array) -> jax.Array:
    """From -1 and 1 to lower and upper bounds."""
    low, high = bounds
    span = lax.broadcast_to_rank(high - low, action.ndim)
    return lax.broadcast_to_rank(low, action.ndim) + 0.5 * (action + 1.0) * span


def _least(values: tuple[jax.Array, ...]) -> jax.Array:
    """The most cautious opinion."""
    return jnp.min(jnp.stack(values), axis=0)
