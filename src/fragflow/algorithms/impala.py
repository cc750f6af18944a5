"""IMPALA: actors may lag behind the learner, which corrects for it (Espeholt et al. 2018)."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, Key, Shaped

import fragflow.api as ff
from fragflow import ops


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    optimiser: Any
    env_state: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class IMPALA(ff.Algorithm):
    """IMPALA: actor-critic that corrects by V-trace for actors with older parameters.

    Actors store how likely their actions were. The learner makes one gradient step per rollout,
    with targets for its own policy. Where actors and learner are in step they have the same policy,
    and it is A2C.
    """

    default_num_envs: ClassVar[int] = 16

    learning_rate: float = 3e-3
    """step size of the optimiser at the start"""
    anneal: bool = True
    """lower the learning rate linearly, to zero at the end of training"""
    decay: float = 0.99
    """share that RMSProp's running mean of squared gradients keeps per update"""
    rollout_length: int = 16
    """steps in every environment per update"""
    gamma: float = 0.99
    """discount per step"""
    trace_lambda: float = 0.95
    """1: targets of up to `rollout_length` steps; below: trust the critic more"""
    clip_rho: float = 1.0
    """importance weights of temporal differences and gradients are at most this"""
    clip_c: float = 1.0
    """importance weights that pass differences on to earlier steps are at most this"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of actor and critic"""
    network: ops.ActorCriticNetwork | None = None
    """your own actor and critic; instead of `hidden`"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=("rollout_length",),
            above_0=("learning_rate", "clip_rho", "clip_c", "max_grad_norm"),
            from_0=("entropy_coef", "value_coef"),
            from_0_to_1=("gamma", "trace_lambda"),
            below_1=("decay",),
            sizes=("hidden",),
        )

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        env.require_one_agent("IMPALA")
        network_key, env_key = jax.random.split(key)
        params = self._network.init(network_key, env.observation, env.action)
        env_state, timestep = env.reset(env_key)
        return State(params, self._optimiser.init(params), env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, env_action, log_prob = self.act(state.params["actor"], obs, keys, env.action)
            env_state, t = env.step(env_state, env_action)
            return (env_state, t.obs), ops.transition(obs, action, t, log_prob)

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(clock.key, self.rollout_length)
        )
        grads, info = self.gradient(state.params, rollout)
        learner = ops.Learner(state.params, state.optimiser)
        learner, norm = self.update(learner, ff.all_mean(grads), clock.progress)
        return State(*learner, env_state, obs), ff.all_mean(info) | {"grad_norm": norm}

    @ff.component("actor")
    def act(self, actor: Any, obs: Shaped[Array, "N ..."], keys: Key[Array, " N"], space: ff.Space):
        """An action per environment, the same within the bounds of `space`, its log-probability."""
        return ops.act(self._network.policy(actor, obs), keys, space)

    @ff.component("learner.gradient")
    def gradient(self, params: Any, rollout: ops.Rollout) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss over a rollout of the environments at hand."""
        return jax.grad(self._loss, has_aux=True)(params, rollout)

    def _loss(self, params: Any, rollout: ops.Rollout) -> tuple[Float[Array, ""], ff.Metrics]:
        distribution = self._network.policy(params["actor"], rollout.obs)
        log_prob = distribution.log_prob(rollout.action)
        value = self._network.value(params["critic"], rollout.obs)
        next_value = self._network.value(params["critic"], rollout.next_obs)
        # Targets and advantages are taken for granted: only what they are compared with learns.
        log_ratio = lax.stop_gradient(log_prob) - rollout.log_prob
        target, advantage = ops.vtrace(
            log_ratio=log_ratio,
            reward=rollout.reward,
            value=lax.stop_gradient(value),
            next_value=lax.stop_gradient(next_value),
            terminated=rollout.terminated,
            done=rollout.done,
            gamma=self.gamma,
            trace_lambda=self.trace_lambda,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
        )
        loss, info = ops.policy_gradient_loss(
            log_prob=log_prob,
            advantage=advantage,
            value=value,
            target=target,
            entropy=distribution.entropy(),
            mask=rollout.mask,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )
        # How far the actors' policy is from the learner's; 0 where they are in step.
        far = ops.step_mean(jnp.exp(log_ratio) - 1.0 - log_ratio, rollout.mask)
        return loss, info | {"approx_kl": far}

    @ff.component("learner.update")
    def update(self, learner: ops.Learner, grads: Any, progress: Float[Array, ""]):
        """One step of RMSProp, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * (1.0 - progress) if self.anneal else self.learning_rate
        return ops.descend(self._optimiser, learner, grads, rate, self.max_grad_norm)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        return ops.choose(self._network.policy(params["actor"], obs), key, explore), memory

    @property
    def _network(self) -> ops.ActorCriticNetwork:
        return ops.actor_critic(self.network, self.hidden)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_rms(decay=self.decay, eps=1e-5)
