"""Proximal policy optimisation (Schulman et al. 2017).

Where its defaults differ from the textbook, a flag gives the textbook:

- returns are scaled by their running size (never: `scale_returns=False`);
- advantages are standardised per iteration (per minibatch: `advantages_per_minibatch=True`; not at
  all, as in the paper: `normalise_advantages=False`);
- a minibatch is all environments at the same random time steps (each at its own:
  `shuffle_each_env=True`). Samples are never drawn across environments: a replica holds some only;
- the critic's output is not clipped, as in the paper (as in its code: `clip_value=True`).

Like the authors' code it anneals the learning rate and clips the gradient's norm. Other than theirs
it bootstraps where a time limit cut an episode.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, Int32, Key, Shaped

import fragflow.api as ff
from fragflow import ops


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """`actor` and `critic`"""
    optimiser: Any
    return_scale: ops.ReturnScale
    obs_stats: ops.Statistics | None
    """of all observations so far, if they are normalised"""
    env_state: ff.EnvState
    obs: jax.Array


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
    """relative change of an action's probability beyond which a further change does not pay"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    clip_value: bool = False
    """also clip the change of the critic's output (by `clip`)"""
    scale_returns: bool = True
    """scale rewards so that returns are of size one; else the critic counts in rewards"""
    return_memory: float = 0.95
    """share that the running size of returns keeps per iteration"""
    normalise_observations: bool = False
    """scale observations to mean zero and variance one, by statistics of all seen before"""
    normalise_advantages: bool = True
    """scale the advantages of each iteration to mean zero and variance one"""
    advantages_per_minibatch: bool = False
    """scale the advantages of each minibatch so, instead of those of the whole iteration"""
    shuffle_each_env: bool = False
    """draw a minibatch's time steps for each environment by itself, else the same for all"""
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
            divides=(("minibatches", "rollout_length"),),
        )

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        env.require_one_agent("PPO")
        is_scaled = self.normalise_observations
        obs_stats = ops.Statistics.of_nothing(env.observation) if is_scaled else None
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, t = env.reset(env_key)
        optimiser, scale = self._optimiser.init(params), ops.ReturnScale.of_nothing()
        return State(params, optimiser, scale, obs_stats, env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        params, scale, obs_stats = state.params, state.return_scale, state.obs_stats

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, env_action, log_prob = self.act(
                params["actor"], obs_stats, obs, keys, env.action
            )
            env_state, t = env.step(env_state, env_action)
            return (env_state, t.obs), ops.transition(obs, action, t, log_prob)

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        network_obs, value, next_value = self.values(params["critic"], obs_stats, rollout)
        advantage, target, mean_square = self.advantages(rollout, value, next_value, scale)
        batch = ops.PPOBatch(
            network_obs, rollout.action, rollout.log_prob, advantage, target, rollout.mask, value
        )

        def minibatch(
            learner: ops.Learner, time_idx: Int32[Array, "B *N"]
        ) -> tuple[ops.Learner, Any]:
            grads, info = self.gradient(learner.params, batch, time_idx)
            learner, norm = self.update(learner, ff.all_mean(grads), clock.progress)
            return learner, (info, norm)

        sizes = (self.rollout_length, self.epochs, self.minibatches)
        time_idx = ops.time_minibatches(shuffle_key, *sizes)
        if self.shuffle_each_env:
            time_idx = ops.env_minibatches(env.keys(shuffle_key, self.epochs), *sizes)
        learner, (info, norm) = lax.scan(minibatch, ops.Learner(params, state.optimiser), time_idx)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        if self.scale_returns:
            scale = self.track(scale, mean_square, clock.iteration)
        if obs_stats is not None:
            obs_stats = self.observe(obs_stats, rollout.obs, self.rollout_length * env.total)
        return State(*learner, scale, obs_stats, env_state, obs), metrics

    @ff.component("actor")
    def act(
        self,
        actor: Any,
        obs_stats: Any,
        obs: Shaped[Array, "N ..."],
        keys: Key[Array, " N"],
        space: ff.Space,
    ):
        """An action per environment, the same within the bounds of `space`, its log-probability."""
        distribution = self._network.policy(actor, ops.normalise(obs_stats, obs))
        return ops.act(distribution, keys, space)

    @ff.component("learner.value")
    def values(self, critic: Any, obs_stats: Any, rollout: ops.Rollout):
        """Observations as networks see them, and the critic's values before and after each step."""
        obs, next_obs = (ops.normalise(obs_stats, x) for x in (rollout.obs, rollout.next_obs))
        value, next_value = ops.map_over_time(
            lambda block: [self._network.value(critic, x) for x in block],
            (obs, next_obs),
            row_samples=obs.shape[1],
        )
        return obs, value, next_value

    @ff.component("learner.advantages")
    def advantages(
        self,
        rollout: ops.Rollout,
        value: Float[Array, "T N"],
        next_value: Float[Array, "T N"],
        scale: ops.ReturnScale,
    ):
        """Advantages `[T, N]`, targets for the critic, and the mean square of returns."""
        advantage = ops.gae(
            reward=rollout.reward / scale.size,
            value=value,
            next_value=next_value,
            terminated=rollout.terminated,
            done=rollout.done,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        target = advantage + value
        if self.normalise_advantages and not self.advantages_per_minibatch:
            advantage = ops.standardise(advantage, rollout.mask)
        return advantage, target, scale.mean_square(target, rollout.mask)

    @ff.component("learner.track")
    def track(
        self, scale: ops.ReturnScale, mean_square: Float[Array, ""], iteration: Int32[Array, ""]
    ):
        """The scale of returns, for the next iteration."""
        return scale.moved(mean_square, iteration, self.return_memory)

    @ff.component("learner.observe")
    def observe(
        self, obs_stats: ops.Statistics, obs: Float[Array, "T N ..."], total: int
    ) -> ops.Statistics:
        """Statistics of observations, for the next iteration."""
        return ops.include(obs_stats, obs, total)

    @ff.component("learner.gradient")
    def gradient(self, params: Any, batch: ops.PPOBatch, time_idx: Int32[Array, "B *N"]):
        """Gradients of the loss at the time steps `time_idx`, over the environments at hand."""
        if self.normalise_advantages and self.advantages_per_minibatch:
            standard = ops.standardise(batch.advantage, batch.mask, time_idx)
            batch = batch._replace(advantage=standard)
        num_envs = batch.action.shape[1]
        return ops.grad_over_time(self._loss, params, batch, time_idx, row_samples=num_envs)

    def _loss(self, params: Any, batch: ops.PPOBatch) -> tuple[Float[Array, ""], ff.Metrics]:
        return ops.ppo_loss(
            self._network.policy(params["actor"], batch.obs),
            self._network.value(params["critic"], batch.obs),
            batch,
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            clip_value=self.clip_value,
        )

    @ff.component("learner.update")
    def update(self, learner: ops.Learner, grads: Any, progress: Float[Array, ""]):
        """One step of Adam, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * (1.0 - progress) if self.anneal else self.learning_rate
        return ops.descend(self._optimiser, learner, grads, rate, self.max_grad_norm)

    def weights(self, state: State) -> Any:
        return state.params | ({} if state.obs_stats is None else {"obs_stats": state.obs_stats})

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        obs = ops.normalise(params.get("obs_stats"), obs)
        return ops.choose(self._network.policy(params["actor"], obs), key, explore), memory

    @property
    def _network(self) -> ops.ActorCriticNetwork:
        return ops.actor_critic(self.network, self.hidden)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=1e-5)
