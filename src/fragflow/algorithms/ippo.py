"""Independent PPO: every agent learns by itself, with the network of its team."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, Int32, Key, Shaped

import fragflow.api as ff
from fragflow import ops

ADAM = optax.scale_by_adam(eps=1e-5)


class Team(NamedTuple):
    """The state of a team's learner."""

    learner: ops.Learner
    return_scale: ops.ReturnScale


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """`actor` and `critic`, each a tuple with one entry per team; `team` of each agent, `[A]`"""
    optimiser: tuple[Any, ...]
    """one entry per team"""
    return_scale: tuple[ops.ReturnScale, ...]
    """one entry per team"""
    env_state: ff.EnvState
    obs: jax.Array


@dataclass(frozen=True)
class IPPO(ff.Algorithm):
    """PPO for many agents, each of which sees and learns by itself (de Witt et al. 2020).

    The agents of a team share an actor and a critic; teams share nothing, and each has a learner of
    its own, which a policy may place by itself (`learner-per-team`). To a team's networks its
    agents are further rows of the batch, so their number costs what rows cost. Agents that have
    ended before their episode is over are masked.
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
    past_limits: bool = False
    """count on what would come after a time limit; else the limit is an end"""
    clip: float = 0.2
    """relative change of an action's probability beyond which a further change does not pay"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    return_memory: float = 0.95
    """share that the running size of returns keeps per iteration"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it, team by team"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of actor and critic"""

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
        env.require_agents("IPPO")
        env_key, *keys = jax.random.split(key, 1 + len(env.teams))
        teams = [self._network.init(k, env.observation, env.action) for k in keys]
        networks = ops.per_part(teams)
        params = networks | {"team": ops.team_numbers(env.teams)}
        env_state, timestep = env.reset(env_key)
        optimiser = tuple(ADAM.init(team) for team in teams)
        scales = (ops.ReturnScale.of_nothing(),) * len(teams)
        return State(params, optimiser, scales, env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        networks = {part: state.params[part] for part in ("actor", "critic")}

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, env_action, log_prob = self.act(
                networks["actor"], obs, keys, env.teams, env.action
            )
            env_state, t = env.step(env_state, env_action)
            return (env_state, t.obs), ops.transition(obs, action, t, log_prob)

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        learned = []
        for k, members in enumerate(ops.team_slices(env.teams)):
            learner = ops.Learner(ops.per_team(networks)[k], state.optimiser[k])
            team = Team(learner, state.return_scale[k])
            key, agents = jax.random.fold_in(shuffle_key, k), env.total * env.total_teams[k]
            ours = ops.members(rollout, members, 2)
            learned.append(self.learn(k, team, ours, key, clock, agents))
        teams, metrics = zip(*learned, strict=True)
        learners, scales = zip(*teams, strict=True)
        params = ops.per_part([learner.params for learner in learners])
        state = State(
            params | {"team": state.params["team"]},
            tuple(learner.optimiser for learner in learners),
            scales,
            env_state,
            obs,
        )
        return state, ops.team_metrics(metrics)

    def learn(
        self, k: int, team: Team, rollout: ops.Rollout, key: jax.Array, clock: ff.Clock, agents: int
    ) -> tuple[Team, ff.Metrics]:
        """PPO, for one team: of what the others do it sees what its agents see.

        `agents` are the team's in all environments.
        """
        parts: Any = (self.value, self.advantages, self.gradient, self.update, self.track)
        value, advantages, gradient, update, track = (
            ff.component(f"learner.{part.__name__}.team{k}")(part) for part in parts
        )
        values = value(team.learner.params["critic"], rollout, agents)
        batch, mean_square = advantages(rollout, values, team.return_scale)

        def minibatch(
            learner: ops.Learner, time_idx: Int32[Array, "B *N"]
        ) -> tuple[ops.Learner, Any]:
            grads, info = gradient(learner.params, batch, time_idx, agents)
            learner, norm = update(learner, ff.all_mean(grads), clock.progress)
            return learner, (info, norm)

        time_idx = ops.time_minibatches(key, self.rollout_length, self.epochs, self.minibatches)
        learner, (info, norm) = lax.scan(minibatch, team.learner, time_idx)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        return Team(learner, track(team.return_scale, mean_square, clock.iteration)), metrics

    @ff.component("actor")
    def act(
        self,
        actors: Any,
        obs: Shaped[Array, "N A ..."],
        keys: Key[Array, " N"],
        teams: tuple[int, ...],
        space: ff.Space,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """An action per agent `[N, A]`, the same within bounds, its log-probability."""

        def of_team(actor: Any, obs: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
            distribution = self._network.policy(actor, obs)
            action = distribution.sample(keys)
            return action, distribution.log_prob(action)

        per_agent = ops.agent_keys(keys, sum(teams))
        action, log_prob = ops.each_team(of_team, teams, 1, actors, obs, per_agent)
        return action, ops.within_bounds(space, action), log_prob

    def value(self, critic: Any, rollout: ops.Rollout, agents: int) -> list[jax.Array]:
        """Each agent's value before and after each step, `[T, N, A]`."""
        return ops.map_over_time(
            lambda block: [self._network.value(critic, obs) for obs in block],
            (rollout.obs, rollout.next_obs),
            row_samples=agents,
        )

    def advantages(
        self, rollout: ops.Rollout, values: Sequence[jax.Array], scale: ops.ReturnScale
    ) -> tuple[ops.PPOBatch, jax.Array]:
        """The batch to learn from, and the mean square of returns."""
        value, next_value = values
        advantage = ops.gae(
            reward=rollout.reward / scale.size,
            value=value,
            next_value=next_value,
            terminated=rollout.terminated if self.past_limits else rollout.done,
            done=rollout.done,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        target, standard = advantage + value, ops.standardise(advantage, rollout.mask)
        seen = (rollout.obs, rollout.action, rollout.log_prob)
        batch = ops.PPOBatch(*seen, standard, target, rollout.mask)
        return batch, scale.mean_square(target, rollout.mask)

    def track(
        self, scale: ops.ReturnScale, mean_square: Float[Array, ""], iteration: Int32[Array, ""]
    ):
        """The scale of returns, for the next iteration."""
        return scale.moved(mean_square, iteration, self.return_memory)

    def gradient(
        self, params: Any, batch: ops.PPOBatch, time_idx: Int32[Array, "B *N"], agents: int
    ):
        """Gradients of the loss at the time steps `time_idx`, over the environments at hand."""
        return ops.grad_over_time(self._loss, params, batch, time_idx, agents, batch_axes=3)

    def _loss(self, params: Any, batch: ops.PPOBatch) -> tuple[Float[Array, ""], ff.Metrics]:
        return ops.ppo_loss(
            self._network.policy(params["actor"], batch.obs),
            self._network.value(params["critic"], batch.obs),
            batch,
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )

    def update(self, learner: ops.Learner, grads: Any, progress: Float[Array, ""]):
        """One step of Adam, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * (1.0 - progress) if self.anneal else self.learning_rate
        return ops.descend(ADAM, learner, grads, rate, self.max_grad_norm)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        keys = jax.random.split(key, obs.shape[0])

        def as_team(actor: Any) -> jax.Array:
            return ops.choose(self._network.policy(actor, obs), keys, explore)

        return ops.own_team(params["team"], [as_team(actor) for actor in params["actor"]]), memory

    @property
    def _network(self) -> ops.MLPActorCritic:
        return ops.MLPActorCritic(self.hidden)
