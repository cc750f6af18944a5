"""Independent PPO: every agent learns by itself, with the network of its team."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow.api as ff
from fragflow import ops
from fragflow.errors import ConfigError

ADAM = optax.scale_by_adam(eps=1e-5)
MIN_SQUARED_RETURN = 1e-2
"""So that the first reward after a long time without any does not look enormous to the critic."""


class Learner(NamedTuple):
    """A team's networks, and the optimiser's state."""

    params: Any
    """`actor` and `critic`"""
    optimiser: Any


class Team(NamedTuple):
    """The state of a team's learner."""

    learner: Learner
    squared_return: jax.Array
    """running average; its root is the unit in which the critic counts"""


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """`actor` and `critic`, each a tuple with one entry per team; `team` of each agent, `[A]`"""
    optimiser: tuple[Any, ...]
    """one entry per team"""
    squared_return: tuple[jax.Array, ...]
    """one entry per team"""
    env_state: ff.EnvState
    obs: jax.Array


class Rollout(NamedTuple):
    """Steps of a rollout, `[T, N, A, ...]`: time first, then environments, agents (of a team)."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    next_obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array | None
    """False for agents that had ended before"""


class Batch(NamedTuple):
    """The data that the gradient is computed from, `[T, N, A, ...]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    weight: jax.Array
    """0 for agents that had ended before, else 1"""


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
    """share that the running size of returns, the critic's unit, keeps per iteration"""
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
        )
        if self.rollout_length % self.minibatches:
            raise ConfigError(
                f"minibatches = {self.minibatches} does not divide rollout_length = "
                f"{self.rollout_length}: a minibatch takes whole time steps"
            )

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        if env.num_agents is None:
            raise ConfigError(
                "IPPO needs a multi-agent environment, but this one has a single agent: use PPO"
            )
        env_key, *keys = jax.random.split(key, 1 + len(env.teams))
        teams = [self._network.init(k, env.observation, env.action) for k in keys]
        networks = ops.per_part(teams)
        params = networks | {"team": ops.team_numbers(env.teams)}
        env_state, timestep = env.reset(env_key)
        optimiser = tuple(ADAM.init(team) for team in teams)
        squared_return = (jnp.float32(1.0),) * len(teams)
        return State(params, optimiser, squared_return, env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        networks = {part: state.params[part] for part in ("actor", "critic")}

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, bounded, log_prob = self.act(
                networks["actor"], obs, keys, env.teams, env.action
            )
            env_state, t = env.step(env_state, bounded)
            happened = Rollout(
                obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated, t.mask
            )
            return (env_state, t.obs), happened

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        learned, metrics = [], {}
        for k, members in enumerate(ops.team_slices(env.teams)):
            learner = Learner(ops.per_team(networks)[k], state.optimiser[k])
            team, info = self.learn(
                k,
                Team(learner, state.squared_return[k]),
                ops.members(rollout, members, 2),
                jax.random.fold_in(shuffle_key, k),
                clock,
                env.total * env.total_teams[k],
            )
            learned.append(team)
            metrics |= {name if k == 0 else f"team{k}_{name}": x for name, x in info.items()}
        params = ops.per_part([team.learner.params for team in learned])
        state = State(
            params | {"team": state.params["team"]},
            tuple(team.learner.optimiser for team in learned),
            tuple(team.squared_return for team in learned),
            env_state,
            obs,
        )
        return state, metrics

    def learn(
        self, k: int, team: Team, rollout: Rollout, key: jax.Array, clock: ff.Clock, agents: int
    ) -> tuple[Team, ff.Metrics]:
        """PPO, for one team: of what the others do it sees what its agents see.

        `agents` are the team's in all environments.
        """
        parts: Any = (self.value, self.advantages, self.gradient, self.update, self.track)
        value, advantages, gradient, update, track = (
            ff.component(f"learner.{part.__name__}.team{k}")(part) for part in parts
        )
        values = value(team.learner.params["critic"], rollout.obs, rollout.next_obs, agents)
        batch, squared = advantages(rollout, values, team.squared_return)

        def minibatch(learner: Learner, rows: jax.Array) -> tuple[Learner, Any]:
            grads, info = gradient(learner.params, batch, rows, agents)
            learner, norm = update(learner, ff.all_mean(grads), 1.0 - clock.progress)
            return learner, (info, norm)

        rows = ops.time_minibatches(key, self.rollout_length, self.epochs, self.minibatches)
        learner, (info, norm) = lax.scan(minibatch, team.learner, rows)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        return Team(learner, track(team.squared_return, squared, clock.iteration)), metrics

    @ff.component("actor")
    def act(
        self,
        actors: Any,
        obs: jax.Array,
        keys: jax.Array,
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
        bounded = jnp.clip(action, *space.bounds) if isinstance(space, ff.Box) else action
        return action, bounded, log_prob

    def value(
        self, critic: Any, obs: jax.Array, next_obs: jax.Array, agents: int
    ) -> tuple[jax.Array, jax.Array]:
        """Each agent's value before and after each step, `[T, N, A]`."""

        def of_block(block: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
            return [self._network.value(critic, observed) for observed in block]

        shape = obs.shape[:3]
        now, later = ops.map_blocks(of_block, (obs, next_obs), agents)
        return now.reshape(shape), later.reshape(shape)

    def advantages(
        self, rollout: Rollout, values: tuple[jax.Array, jax.Array], squared_return: jax.Array
    ) -> tuple[Batch, jax.Array]:
        """The batch to learn from, and the mean squared return."""
        now, later = values
        done = rollout.terminated | rollout.truncated
        advantage = ops.gae(
            reward=rollout.reward / jnp.sqrt(squared_return),
            value=now,
            next_value=later,
            terminated=rollout.terminated if self.past_limits else done,
            done=done,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        target = advantage + now
        weight = jnp.ones_like(now) if rollout.mask is None else rollout.mask.astype(now.dtype)
        standard = ops.standardise(advantage, weight)
        batch = Batch(rollout.obs, rollout.action, rollout.log_prob, standard, target, weight)
        return batch, squared_return * ops.moments(target, weight)[1]

    def track(self, average: jax.Array, latest: jax.Array, iteration: jax.Array) -> jax.Array:
        """The running average, which at first is the plain mean of all iterations so far."""
        weight = jnp.maximum(1.0 / (1.0 + iteration), 1.0 - self.return_memory)
        return jnp.maximum(average + weight * (latest - average), MIN_SQUARED_RETURN)

    def gradient(
        self, params: Any, batch: Batch, rows: jax.Array, agents: int
    ) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss at the time steps `rows`, over the environments at hand."""

        def of_block(block: jax.Array) -> tuple[Any, ff.Metrics]:
            def samples(x: jax.Array) -> jax.Array:
                # One batch axis: XLA differentiates products of more twice as slowly.
                return x.at[block].get(mode="promise_in_bounds").reshape(-1, *x.shape[3:])

            return jax.grad(self._loss, has_aux=True)(params, jax.tree.map(samples, batch))

        per_block = ops.map_blocks(of_block, rows, agents)
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), per_block)

    def _loss(self, params: Any, batch: Batch) -> tuple[jax.Array, ff.Metrics]:
        distribution = self._network.policy(params["actor"], batch.obs)
        return ops.ppo_loss(
            distribution,
            self._network.value(params["critic"], batch.obs),
            action=batch.action,
            log_prob=batch.log_prob,
            advantage=batch.advantage,
            target=batch.target,
            weight=batch.weight,
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )

    def update(
        self, learner: Learner, grads: Any, remaining: jax.Array
    ) -> tuple[Learner, jax.Array]:
        """One step of Adam, and the norm of the gradients: means over all environments."""
        rate = self.learning_rate * remaining if self.anneal else self.learning_rate
        params, optimiser, norm = ops.descend(
            ADAM, *learner, grads, rate=rate, max_norm=self.max_grad_norm
        )
        return Learner(params, optimiser), norm

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        keys = jax.random.split(key, obs.shape[0])

        def as_team(actor: Any) -> jax.Array:
            distribution = self._network.policy(actor, obs)
            return distribution.sample(keys) if explore else distribution.mode()

        return ops.own_team(params["team"], [as_team(actor) for actor in params["actor"]]), memory

    @property
    def _network(self) -> ops.MLPActorCritic:
        return ops.MLPActorCritic(self.hidden)
