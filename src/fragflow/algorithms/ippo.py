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
SMALLEST_SQUARED_RETURN = 1e-2
"""So that the first reward after a long time without any does not look enormous to the critic."""


class Learner(NamedTuple):
    """What the optimisers change: a tuple with one entry per team."""

    params: Any
    optimiser: Any


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """`actor` and `critic`, each a tuple with one entry per team; `team` of each agent, `[A]`"""
    optimiser: Any
    squared_return: jax.Array
    """`[teams]`, running averages; their roots are the units in which critics count"""
    env_state: ff.EnvState
    obs: jax.Array


class Rollout(NamedTuple):
    """What happened, `[T, N, A, ...]`: time first, then environments, then agents."""

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
    """What the gradient is computed from, `[T, N, A, ...]`."""

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

    The agents of a team share an actor and a critic; teams share nothing. To a team's networks its
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
    clip: float = 0.2
    """how far the probability of an action may move from the old policy's before it stops paying"""
    entropy_coef: float = 0.01
    """weight of the entropy, which keeps the policy exploring"""
    value_coef: float = 0.5
    """weight of the value function's loss"""
    return_memory: float = 0.95
    """per iteration, how much the running size of returns keeps; it is the critic's unit"""
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
            raise ConfigError("IPPO is for several agents, and here is one: use PPO")
        env_key, *keys = jax.random.split(key, 1 + len(env.teams))
        teams = [self._network.init(k, env.observation, env.action) for k in keys]
        networks = ops.per_part(teams)
        params = networks | {"team": ops.by_agent(jnp.arange(len(teams)), env.teams)}
        env_state, timestep = env.reset(env_key)
        optimiser = tuple(ADAM.init(team) for team in ops.per_team(networks))
        return State(params, optimiser, jnp.ones(len(env.teams)), env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        teams = env.teams
        networks = {part: state.params[part] for part in ("actor", "critic")}

        def interact(carry: tuple[ff.EnvState, jax.Array], keys: jax.Array):
            env_state, obs = carry
            action, bounded, log_prob = self.act(networks["actor"], obs, keys, teams, env.action)
            env_state, t = env.step(env_state, bounded)
            happened = Rollout(
                obs, action, log_prob, t.next_obs, t.reward, t.terminated, t.truncated, t.mask
            )
            return (env_state, t.obs), happened

        (env_state, obs), rollout = lax.scan(
            interact, (state.env_state, state.obs), env.keys(act_key, self.rollout_length)
        )
        values = self.values(networks["critic"], rollout.obs, rollout.next_obs, teams)
        batch, squared = self.advantages(rollout, values, state.squared_return, teams)

        def minibatch(learner: Learner, rows: jax.Array) -> tuple[Learner, Any]:
            grads, info = self.gradient(learner.params, batch, rows, teams)
            learner, norm = self.update(learner, ff.all_mean(grads), 1.0 - clock.progress)
            return learner, (info, norm)

        rows = ops.time_minibatches(shuffle_key, self.rollout_length, self.epochs, self.minibatches)
        learner, (info, norm) = lax.scan(minibatch, Learner(networks, state.optimiser), rows)
        metrics = ff.all_mean(jax.tree.map(jnp.mean, info)) | {"grad_norm": jnp.mean(norm)}
        squared_return = self.track(state.squared_return, squared, clock.iteration)
        params = learner.params | {"team": state.params["team"]}
        return State(params, learner.optimiser, squared_return, env_state, obs), metrics

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

    @ff.component("learner.value")
    def values(
        self, critics: Any, obs: jax.Array, next_obs: jax.Array, teams: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """What each agent's critic expects before and after each step, `[T, N, A]`."""

        def of_block(block: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
            return [
                ops.each_team(self._network.value, teams, 2, critics, observed)
                for observed in block
            ]

        shape = obs.shape[:3]
        now, later = ops.map_blocks(of_block, (obs, next_obs), shape[1] * shape[2])
        return now.reshape(shape), later.reshape(shape)

    @ff.component("learner.advantages")
    def advantages(
        self,
        rollout: Rollout,
        values: tuple[jax.Array, jax.Array],
        squared_return: jax.Array,
        teams: tuple[int, ...],
    ) -> tuple[Batch, jax.Array]:
        """What is learnt from, and the mean squared return of each team."""
        now, later = values
        unit = ops.by_agent(jnp.sqrt(squared_return), teams)
        advantage = ops.gae(
            reward=rollout.reward / unit,
            value=now,
            next_value=later,
            terminated=rollout.terminated,
            done=rollout.terminated | rollout.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        target = advantage + now
        weight = jnp.ones_like(now) if rollout.mask is None else rollout.mask.astype(now.dtype)
        parts = [(advantage[:, :, team], target[:, :, team]) for team in ops.team_slices(teams)]
        squared = jnp.stack([ff.all_mean(jnp.mean(jnp.square(part))) for _, part in parts])
        standard = jnp.concatenate([ops.standardise(part) for part, _ in parts], 2)
        batch = Batch(rollout.obs, rollout.action, rollout.log_prob, standard, target, weight)
        return batch, squared * squared_return

    @ff.component("learner.track")
    def track(self, average: jax.Array, latest: jax.Array, iteration: jax.Array) -> jax.Array:
        """The running average, which at first is the plain mean of all iterations so far."""
        weight = jnp.maximum(1.0 / (1.0 + iteration), 1.0 - self.return_memory)
        return jnp.maximum(average + weight * (latest - average), SMALLEST_SQUARED_RETURN)

    @ff.component("learner.gradient")
    def gradient(
        self, params: Any, batch: Batch, rows: jax.Array, teams: tuple[int, ...]
    ) -> tuple[Any, ff.Metrics]:
        """Gradients of all teams' losses at the time steps `rows`, over environments at hand."""

        def loss(params: Any, block: jax.Array) -> tuple[jax.Array, ff.Metrics]:
            chosen = jax.tree.map(lambda x: x.at[block].get(mode="promise_in_bounds"), batch)
            parts = [
                self._loss(team, jax.tree.map(_samples, ops.members(chosen, where, 2)))
                for team, where in zip(ops.per_team(params), ops.team_slices(teams), strict=True)
            ]
            # No team's loss depends on another's parameters: the sum keeps them apart.
            info = jax.tree.map(lambda *xs: sum(xs) / len(xs), *(info for _, info in parts))
            return jnp.sum(jnp.stack([loss for loss, _ in parts])), info

        def of_block(block: jax.Array) -> tuple[Any, ff.Metrics]:
            return jax.grad(loss, has_aux=True)(params, block)

        samples = batch.target.shape[1] * batch.target.shape[2]
        per_block = ops.map_blocks(of_block, rows, num_envs=samples)
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), per_block)

    def _loss(self, params: Any, batch: Batch) -> tuple[jax.Array, ff.Metrics]:
        """One team's, over samples `[B, ...]`."""
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

    @ff.component("learner.update")
    def update(
        self, learner: Learner, grads: Any, remaining: jax.Array
    ) -> tuple[Learner, jax.Array]:
        """One step of Adam for each team, and the mean of their gradients' norms."""
        rate = self.learning_rate * remaining if self.anneal else self.learning_rate
        params, optimiser, norm = ops.descend_teams(
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


def _samples(x: jax.Array) -> jax.Array:
    """`[T, N, A, ...]` with one batch axis: XLA differentiates products of more twice as slowly."""
    return x.reshape(-1, *x.shape[3:])
