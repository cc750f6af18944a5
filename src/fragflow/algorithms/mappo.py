"""Multi-agent PPO: actors that see what their agent sees, critics that see what all see."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Key, Shaped

import fragflow.api as ff
from fragflow import ops
from fragflow.errors import ConfigError

ADAM = optax.scale_by_adam(eps=1e-5)


class Team(NamedTuple):
    """The state of a team's learner besides its networks."""

    optimiser: Any
    scale: ops.ValueScale
    """of returns"""
    memory: jax.Array
    """the critic's, `[N, A, units]`"""


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    params: Any
    """`actor` and `critic`, each a tuple with one entry per team; `team` of each agent, `[A]`"""
    teams: tuple[Team, ...]
    env_state: ff.EnvState
    obs: jax.Array
    first: jax.Array
    """`[N, A]`: whether `obs` are the first of an episode, so memory of earlier ones is void"""
    actor_memory: jax.Array
    """`[N, A, units]`, before `obs`"""


class Chunks(NamedTuple):
    """The data of the gradient, `[C, L, N, A, ...]`: chunks of time, steps, envs, agents."""

    batch: ops.PPOBatch
    first: jax.Array
    """True where an observation is the first of an episode"""
    joint: jax.Array
    """the observations of all agents, joined"""


class Memories(NamedTuple):
    """Memories before each chunk, `[C, N, A, units]`."""

    actor: jax.Array
    critic: jax.Array


@dataclass(frozen=True)
class MAPPO(ff.Algorithm):
    """PPO for several agents with a centralised critic (Yu et al. 2022).

    The agents of a team share an actor and a critic; teams share nothing, and each has a learner of
    its own, which a policy may place by itself (`learner-per-team`). An actor sees what its agent
    sees. A critic sees what all agents see, its own agent's view first, and counts in standard
    deviations of recent returns; it is needed for learning only. With `units`, actors and critics
    have a memory, a GRU: gradients flow through chunks of time, from the memory at their start.
    """

    default_num_envs: ClassVar[int] = 16

    learning_rate: float = 1e-3
    """step size of Adam at the start"""
    anneal: bool = True
    """lower the learning rate linearly, to zero at the end of training"""
    rollout_length: int = 128
    """steps in every environment per iteration"""
    chunk_length: int = 16
    """steps that stay together in a minibatch; must divide the rollout length"""
    epochs: int = 4
    """passes over the collected steps per iteration"""
    minibatches: int = 4
    """gradient steps per pass; must divide the number of chunks"""
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
    """share that the running statistics of returns keep per iteration"""
    max_grad_norm: float = 0.5
    """an actor's or a critic's gradients with a larger global norm are scaled down to it"""
    units: int = 0
    """numbers that actor and critic each remember; 0 for networks without memory"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers, which follow the memory if there is one"""
    before: tuple[int, ...] = (64,)
    """sizes of the layers between the observation and the memory"""
    rectified: bool = True
    """use rectified layers instead of tanh layers"""

    def __post_init__(self) -> None:
        ff.check_settings(
            self,
            at_least_1=("rollout_length", "chunk_length", "epochs", "minibatches"),
            above_0=("learning_rate", "clip", "max_grad_norm"),
            from_0=("entropy_coef", "value_coef", "units"),
            from_0_to_1=("gamma", "gae_lambda", "return_memory"),
            sizes=("hidden", "before"),
        )
        ops.check_chunks(self.rollout_length, self.chunk_length, self.minibatches)

    def init(self, env: ff.Environments, key: Key[Array, ""]) -> State:
        space = env.observation
        num_agents = env.require_agents("MAPPO")
        if not isinstance(space, ff.Box) or len(space.shape) != 1:
            raise ConfigError(f"MAPPO's critic joins vectors, but agents see {space}")
        joint = ff.Box(shape=(num_agents * space.size,))
        env_key, *keys = jax.random.split(key, 1 + len(env.teams))
        teams = [self._network.init(k, space, env.action, joint) for k in keys]
        params = ops.per_part(teams) | {"team": ops.team_numbers(env.teams)}
        env_state, t = env.reset(env_key)
        # Made from a row per environment, so that they have the environment axis.
        nothing = jnp.zeros_like(t.reward)[..., None]
        actor_memory, critic_memory = (
            jnp.repeat(nothing, self._network.memory_size(seen), -1) for seen in (space, joint)
        )
        optimisers = [{part: ADAM.init(x) for part, x in team.items()} for team in teams]
        memories = [critic_memory[:, members] for members in ops.team_slices(env.teams)]
        scale = ops.ValueScale.of_nothing()
        learners = tuple(Team(o, scale, m) for o, m in zip(optimisers, memories, strict=True))
        return State(params, learners, env_state, t.obs, ~t.done, actor_memory)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, ff.Metrics]:
        act_key, shuffle_key = jax.random.split(clock.key)
        networks = {part: state.params[part] for part in ("actor", "critic")}

        def interact(carry: Any, keys: jax.Array) -> tuple[Any, tuple[ops.Rollout, jax.Array]]:
            env_state, obs, first, memory = carry
            memory, action, env_action, log_prob = self.act(
                networks["actor"], memory, first, obs, keys, env.teams, env.action
            )
            env_state, t = env.step(env_state, env_action)
            begins = jnp.broadcast_to(jnp.all(t.done, 1, keepdims=True), t.done.shape)
            steps = (ops.transition(obs, action, t, log_prob), first)
            return (env_state, t.obs, begins, memory), steps

        start = (state.env_state, state.obs, state.first, state.actor_memory)
        keys = env.keys(act_key, self._chunks, self.chunk_length)
        end, memories, steps = ops.scan_chunks(interact, start, keys)
        learned = []
        for k, members in enumerate(ops.team_slices(env.teams)):
            team = (ops.per_team(networks)[k], state.teams[k], memories[:, :, members])
            key = jax.random.fold_in(shuffle_key, k)
            learned.append(self.learn((k, members), *team, steps, key, clock))
        params, teams, metrics = zip(*learned, strict=True)
        params = ops.per_part(params) | {"team": state.params["team"]}
        return State(params, teams, *end), ops.team_metrics(metrics)

    def learn(
        self,
        which: tuple[int, slice],
        params: Any,
        team: Team,
        memories: jax.Array,
        steps: tuple[ops.Rollout, jax.Array],
        key: jax.Array,
        clock: ff.Clock,
    ) -> tuple[Any, Team, ff.Metrics]:
        """Recurrent PPO for one team, whose critic sees what all agents see."""
        k, members = which
        parts: Any = (self.value, self.advantages, self.gradient, self.update)
        value, advantages, gradient, update = (
            ff.component(f"learner.{part.__name__}.team{k}")(part) for part in parts
        )
        everyone = steps[0]
        rollout, first = ops.members(steps, members, 3)
        seen = (first, everyone.obs, everyone.next_obs, members)
        values, critic_memories = value(params["critic"], team.memory, *seen)
        chunks, scale = advantages(
            rollout, first, everyone.obs, values, team.scale, members, clock.iteration
        )
        before = Memories(memories, critic_memories[:-1])

        def minibatch(
            learner: ops.Learner, chunk_idx: Int32[Array, " B"]
        ) -> tuple[ops.Learner, Any]:
            grads, info = gradient(learner.params, chunks, before, chunk_idx)
            learner, norms = update(learner, ff.all_mean(grads), clock.progress)
            return learner, (info, norms)

        chunk_idx = ops.time_minibatches(key, self._chunks, self.epochs, self.minibatches)
        learner, reports = lax.scan(minibatch, ops.Learner(params, team.optimiser), chunk_idx)
        info, norms = jax.tree.map(jnp.mean, reports)
        metrics = ff.all_mean(info) | {f"{part}_grad_norm": norm for part, norm in norms.items()}
        return learner.params, Team(learner.optimiser, scale, critic_memories[-1]), metrics

    @ff.component("actor")
    def act(
        self,
        actors: Any,
        memory: Float[Array, "N A units"],
        first: Bool[Array, "N A"],
        obs: Shaped[Array, "N A ..."],
        keys: Key[Array, " N"],
        teams: tuple[int, ...],
        space: ff.Space,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Memory, an action per agent `[N, A]`, the same within bounds, its log-probability."""
        memory = ops.forget(memory, first)
        memory, action, log_prob = ops.act_in_teams(self._network, actors, teams, memory, obs, keys)
        return memory, action, ops.within_bounds(space, action), log_prob

    def value(
        self,
        critic: Any,
        memory: Float[Array, "N M units"],
        first: Bool[Array, "C L N M"],
        obs: Float[Array, "C L N A D"],
        next_obs: Float[Array, "C L N A D"],
        members: slice,
    ) -> tuple[Any, Float[Array, "C+1 N M units"]]:
        """The critic's values before and after each step, and its memories between chunks."""

        def see(obs: jax.Array) -> jax.Array:
            return ops.joint_observations(obs, members)

        return ops.values_over_chunks(self._network, critic, memory, first, obs, next_obs, see)

    def advantages(
        self,
        rollout: ops.Rollout,
        first: Bool[Array, "C L N M"],
        all_obs: Float[Array, "C L N A D"],
        values: Any,
        scale: ops.ValueScale,
        members: slice,
        iteration: Int32[Array, ""],
    ) -> tuple[Chunks, ops.ValueScale]:
        """The data to learn from, and the updated scale, in which its targets are."""
        value, next_value = (scale.restored(x) for x in values)
        terminated = rollout.terminated if self.past_limits else rollout.done
        advantage = ops.gae(
            reward=ops.merged(rollout.reward, 0, 2),
            value=ops.merged(value, 0, 2),
            next_value=ops.merged(next_value, 0, 2),
            terminated=ops.merged(terminated, 0, 2),
            done=ops.merged(rollout.done, 0, 2),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        ).reshape(value.shape)
        target, standard = advantage + value, ops.standardise(advantage, rollout.mask)
        scale = scale.moved(target, rollout.mask, iteration, self.return_memory)
        seen = (rollout.obs, rollout.action, rollout.log_prob)
        batch = ops.PPOBatch(*seen, standard, scale.normalised(target), rollout.mask)
        return Chunks(batch, first, ops.joint_observations(all_obs, members)), scale

    def gradient(
        self, params: Any, chunks: Chunks, memories: Memories, chunk_idx: Int32[Array, " B"]
    ) -> tuple[Any, ff.Metrics]:
        """Gradients of the loss at some chunks of time, over the environments at hand."""
        chunks, memories = ops.take_time((chunks, memories), chunk_idx)
        # One axis of chunks, environments and agents: XLA differentiates products of more slower.
        chunks = jax.tree.map(lambda x: ops.chunks_as_batch(ops.merged(x, 2, 2)), chunks)
        memories = jax.tree.map(lambda m: ops.merged(m, 0, 3), memories)
        return jax.grad(self._loss, has_aux=True)(params, chunks, memories)

    def _loss(
        self, params: Any, chunks: Chunks, memories: Memories
    ) -> tuple[Float[Array, ""], ff.Metrics]:
        """Over sequences `[L, B, ...]`."""
        actor, critic, network = params["actor"], params["critic"], self._network
        batch, first, joint = chunks
        seen = network.observe_all(actor, memories.actor, first, batch.obs)
        all_seen = network.observe_all(critic, memories.critic, first, joint)
        batch, seen, all_seen = jax.tree.map(lambda x: ops.merged(x, 0, 2), (batch, seen, all_seen))
        return ops.ppo_loss(
            network.policy(actor, seen),
            network.value(critic, all_seen),
            batch,
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
        )

    def update(self, learner: ops.Learner, grads: Any, progress: Float[Array, ""]):
        """A step of Adam for each network, and the norms of gradients: means over environments."""
        rate = self.learning_rate * (1.0 - progress) if self.anneal else self.learning_rate
        return ops.descend_apart(ADAM, learner, grads, rate, self.max_grad_norm)

    def policy(
        self, params: Any, obs: jax.Array, memory: Any, key: jax.Array, explore: bool = False
    ) -> tuple[jax.Array, Any]:
        if memory is None:
            space = ff.Box(shape=obs.shape[1:])
            memory = jnp.zeros((obs.shape[0], self._network.memory_size(space)))
        return ops.act_as_members(self._network, params, memory, obs, key, explore)

    @property
    def _chunks(self) -> int:
        return self.rollout_length // self.chunk_length

    @property
    def _network(self) -> ops.GRUActorCritic | ops.LastSeen:
        if self.units:
            return ops.GRUActorCritic(self.units, self.hidden, self.before, self.rectified)
        return ops.LastSeen(self.hidden, self.rectified)
