"""The environments as an algorithm sees them: one batch, of which a fragment may hold a part."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax_typed import is_sequence, keystr, leaves_with_path, wrap_key_data
from fragflow.api.component import marked
from fragflow.api.environment import (
    Environment,
    Step,
    Timestep,
    num_agents_of,
    teams_of,
    total_teams_of,
)
from fragflow.api.host import Host, HostEnvironment
from fragflow.api.rows import row_map
from fragflow.api.sendable_state import with_keys, without_keys
from fragflow.api.spaces import Box, Discrete, MultiDiscrete, Space
from fragflow.error_owner import called, defined_at
from fragflow.errors import ConfigError, TraceError

AnyEnvironment: TypeAlias = Environment | HostEnvironment


class EpisodeStats(NamedTuple):
    """Per environment, over the episodes that ended since the statistics were last cleared."""

    episodes: jax.Array
    return_sum: jax.Array
    length_sum: jax.Array


class EnvState(NamedTuple):
    """State of a batch of environments; every leaf has the environment axis first.

    It has few leaves, since each adds to the cost of a step across fragments.
    """

    inner: Any
    random: jax.Array
    """`[N, 3]`: raw key data, fixed per environment, and the number of draws made from it"""
    record: jax.Array
    """`[N, 5]`: return and length of the running episode, then `EpisodeStats`.

    With several agents, the return is the mean of the first team's."""

    @property
    def finished(self) -> EpisodeStats:
        return EpisodeStats(*(self.record[:, k] for k in (2, 3, 4)))


class Environments:
    """`num_envs` environments of one kind, identified by their global indices `ids`."""

    def __init__(
        self,
        environment: AnyEnvironment | Host,
        ids: jax.Array,
        total: int,
        on_step: Callable[[], None] | None = None,
    ):
        """`on_step` is called whenever Python runs a step, which is once where it is traced."""
        if isinstance(environment, HostEnvironment):
            environment = Host(environment)
        self._environment = environment
        self._spaces = environment.environment if isinstance(environment, Host) else environment
        for name in ("observation", "action"):
            space = getattr(self._spaces, name, None)
            if not isinstance(space, Box | Discrete | MultiDiscrete):
                raise ConfigError(
                    f"environment {_name_of(self._spaces)!r}: its {name} is {space!r}, expected a "
                    "space such as fragflow.Box(shape=(2,)) or fragflow.Discrete(4)"
                )
        self._on_step = on_step
        self._ids = ids
        self._total = total

    @property
    def num_envs(self) -> int:
        """The number of environments that are here. For shapes only."""
        return self._ids.shape[0]

    @property
    def total(self) -> int:
        """The number of environments in all, wherever they are."""
        return self._total

    @property
    def num_agents(self) -> int | None:
        """Agents of each environment that are here; None for one without an axis of its own.

        For shapes only.
        """
        return num_agents_of(self._spaces)

    def require_one_agent(self, algorithm: str) -> None:
        """Refuses several agents, for algorithms that are made for one.

        Args:
            algorithm: its name, for the error.

        Raises:
            ConfigError: environments have an axis of agents.
        """
        if self.num_agents is not None:
            raise ConfigError(
                f"{algorithm} is for one agent, but there are {self.num_agents} in each "
                "environment: use IPPO or MAPPO"
            )

    def require_agents(self, algorithm: str) -> int:
        """The number of agents; refuses an environment of one, which has no axis for them."""
        if self.num_agents is None:
            raise ConfigError(
                f"{algorithm} needs a multi-agent environment, but this one has a single agent: "
                "use PPO"
            )
        return self.num_agents

    @property
    def teams(self) -> tuple[int, ...]:
        """Agents of each team that are here; agents are in the order of teams. For shapes only."""
        return teams_of(self._spaces)

    @property
    def total_teams(self) -> tuple[int, ...]:
        """Agents in each team, wherever they are."""
        return total_teams_of(self._spaces)

    @property
    def observation(self) -> Space:
        return self._spaces.observation

    @property
    def action(self) -> Space:
        return self._spaces.action

    def keys(self, key: jax.Array, *shape: int) -> jax.Array:
        """One key per environment, `[*shape, num_envs]`: the only source of per-environment noise.

        An environment's key depends on its global index, not on which fragment holds it.

        Args:
            key: one random key, the same for all environments.
            *shape: axes of keys that each environment gets, like the number of steps.
        """
        per_env = jax.vmap(jax.random.fold_in, (None, 0))
        if not shape:
            return per_env(key, self._ids)
        rows = jax.random.split(key, shape)
        for _ in shape:
            per_env = jax.vmap(per_env, (0, None))
        return per_env(rows, self._ids)

    def per_env(self, total: int, name: str = "a count") -> int:
        """A global count (batch size, capacity) per environment.

        Args:
            total: the count over all environments.
            name: of the count, for the error.

        Raises:
            ConfigError: it is no multiple of the number of environments.
        """
        if total % self._total:
            raise ConfigError(
                f"{name} of {total} cannot be divided among {self._total} environments: "
                f"use a multiple of {self._total}"
            )
        return total // self._total

    def reset(self, key: jax.Array) -> tuple[EnvState, Timestep]:
        """Starts an episode in every environment.

        Args:
            key: one random key, from which every environment gets its own.

        Returns:
            The state to pass to `step`, and a time step whose `obs` is the first observation.
        """
        return self._reset(self.keys(key))

    def step(self, state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
        """One step of every environment; an episode that ends is followed by a new one.

        Args:
            state: what `reset` or the last step returned.
            action: an action for every environment, `[num_envs, ...]`.

        Returns:
            The next state, and what happened.
        """
        if self._on_step is not None:
            self._on_step()
        return self._step(state, action)

    def map(self, function: Callable[..., Any], *rows: Any) -> Any:
        """`jax.vmap(function)(*rows)`: for each environment by itself, whatever is inside.

        What `function` uses beside its arguments must be the same for all environments. The replica
        check does not look inside, and so allows operations that it refuses elsewhere.

        Args:
            function: of one environment's rows; it is written without the environment axis.
            *rows: arrays, or trees of them, with the environment axis first.

        Returns:
            The function's results, with the environment axis first.

        Raises:
            TraceError: an array has no row for each environment.
        """
        for leaf in jax.tree.leaves(rows):
            if not jnp.shape(leaf) or jnp.shape(leaf)[0] != self.num_envs:
                raise TraceError(
                    f"env.map takes arrays with the environment axis first, expected "
                    f"[{self.num_envs}, ...], got shape {list(jnp.shape(leaf))}"
                    f"{defined_at(function)}"
                )
        return row_map(function, [jax.tree.map(jnp.asarray, row) for row in rows])

    @marked("environment.reset")
    def _reset(self, keys: jax.Array) -> tuple[EnvState, Timestep]:
        environment = self._environment
        raw = jax.random.key_data(keys)
        if isinstance(environment, Host):
            inner, obs = jnp.zeros(raw.shape[:1], jnp.int32), environment.reset(raw)
        else:

            def reset_one(key: jax.Array) -> tuple[Any, Any]:
                return self._reset_one(environment, key)

            inner, obs = jax.vmap(reset_one)(raw)
        # Zeros and ones are made from the keys' rows, so that they have the environment axis.
        agents = () if self.num_agents is None else (self.num_agents,)
        zero = jnp.zeros((*raw.shape[:1], *agents), jnp.float32)
        one = jnp.ones((*raw.shape[:1], 1), jnp.uint32)
        state = EnvState(
            inner=_strong(inner),
            random=jnp.concatenate([raw, one], 1),
            record=jnp.zeros((*raw.shape[:1], 5), jnp.float32),
        )
        no = zero.astype(bool)
        return state, Timestep(obs, obs, zero, no, no)

    @marked("environment.step")
    def _step(self, state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
        environment = self._environment
        if isinstance(environment, Host) and environment.is_compiled:
            inner, step = environment.compiled_step(state.inner, action)
            one = jnp.ones_like(step.reward)
            counts = one if step.mask is None else step.mask.astype(jnp.float32)
            record = jax.vmap(_recorded)(state.record, step.reward, step.done, counts)
            return state._replace(inner=inner, record=record), step
        if isinstance(environment, Host):
            inner, record, step = environment.step(state.inner, state.record, action)
            return state._replace(inner=inner, record=record), step

        def step_one(state: EnvState, action: jax.Array) -> tuple[EnvState, Timestep]:
            return self._step_one(environment, state, action)

        return jax.vmap(step_one)(state, action)

    def _reset_one(self, environment: Environment, key: jax.Array) -> tuple[Any, Any]:
        inner, obs = self._begin(environment, _draw(key, 0))
        self._check_shape("reset gives observations", obs, environment.observation.shape)
        return without_keys(inner), obs

    def _begin(self, environment: Environment, key: jax.Array) -> tuple[Any, Any]:
        """A new episode of one environment: (state, obs)."""
        begun: Any = called(f"{environment.name}'s reset", environment.reset, key)
        if not is_pair(begun):
            self._refuse(f"reset returned {type(begun).__name__}, expected (state, obs)")
        return begun

    def _refuse(self, what: str) -> NoReturn:
        method = getattr(self._environment, what.partition(" ")[0])
        raise ConfigError(f"environment {self._environment.name!r}: {what}{defined_at(method)}")

    def _check_shape(self, what: str, given: Any, of_one: tuple[int, ...]) -> None:
        """Refuses shapes other than those declared: else an algorithm fails, far from the cause."""
        expected = (*(() if self.num_agents is None else (self.num_agents,)), *of_one)
        if not _is_array(given):
            self._refuse(f"{what} of type {type(given).__name__}, expected an array")
        if jnp.shape(given) != expected:
            self._refuse(f"{what} of shape {list(jnp.shape(given))}, expected {list(expected)}")

    def _check_state(self, new: Any, old: Any) -> None:
        """Refuses a step that changes the state's types: else a loop fails, far from the cause."""
        if jax.tree.structure(new) != jax.tree.structure(old):
            self._refuse(
                f"step gives a state of structure {jax.tree.structure(new)}, reset one of "
                f"{jax.tree.structure(old)}"
            )
        for (path, after), before in zip(leaves_with_path(new), jax.tree.leaves(old), strict=True):
            if not _becomes(after, before):
                where = keystr(path, simple=True, separator=".")
                self._refuse(
                    f"step makes {f'{where} of ' * bool(where)}the state {_type_of(after)}, but "
                    f"reset makes it {_type_of(before)}"
                )

    def _step_one(
        self, environment: Environment, state: EnvState, action: jax.Array
    ) -> tuple[EnvState, Timestep]:
        key, draws = state.random[:2], state.random[2]
        drawn = _draw(key, 2 * draws)
        inner = with_keys(state.inner)
        step = called(f"{environment.name}'s step", environment.step, inner, action, drawn)
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._refuse(
                f"step returned {type(step).__name__}, expected fragflow.Step(state, obs, reward, "
                "terminated, truncated)"
            )
        self._check_shape("step gives observations", step.obs, environment.observation.shape)
        self._check_shape("step gives rewards", step.reward, ())
        for name in ("terminated", "truncated"):
            if jnp.shape(getattr(step, name)) != ():  # also of several agents: one end for all
                self._check_shape(f"step gives {name}", getattr(step, name), ())
        reward = jnp.asarray(step.reward, jnp.float32)
        terminated = jnp.asarray(step.terminated, bool)
        truncated = jnp.asarray(step.truncated, bool) & ~terminated
        done = jnp.all(terminated | truncated)
        fresh, fresh_obs = self._begin(environment, _draw(key, 2 * draws + 1))
        self._check_state(step.state, fresh)

        def new_if_done(new: Any, old: Any) -> Any:
            def one(new_leaf: Any, old_leaf: Any) -> jax.Array:
                return jnp.where(done, new_leaf, old_leaf)

            return jax.tree.map(one, new, old)

        next_state = EnvState(
            inner=without_keys(_strong(new_if_done(fresh, step.state))),
            random=state.random + jnp.array([0, 0, 1], jnp.uint32),
            record=_recorded(state.record, jnp.mean(reward.reshape(-1)[: self.teams[0]]), done),
        )
        obs = new_if_done(fresh_obs, step.obs)
        return next_state, Timestep(obs, step.obs, reward, terminated, truncated, step.mask)


def is_pair(answer: Any) -> TypeGuard[tuple[Any, Any]]:
    """True for a tuple of two, as environments and algorithms return."""
    return is_sequence(answer) and isinstance(answer, tuple) and len(answer) == 2


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float)


def _becomes(after: Any, before: Any) -> bool:
    """True if `after` has the type of `before` when put in its place, as numbers and scalars do."""
    if not _is_array(after) or not _is_array(before):
        return False
    if jnp.shape(after) not in ((), jnp.shape(before)):
        return False
    same = getattr(after, "dtype", None) == getattr(before, "dtype", None)
    return same or jnp.result_type(after, before) == jnp.result_type(before)


def _type_of(value: Any) -> str:
    if not _is_array(value):
        return type(value).__name__
    return f"{jnp.result_type(value)}{list(jnp.shape(value))}"


def _recorded(
    record: jax.Array, reward: jax.Array, done: jax.Array, counts: jax.Array | float = 1.0
) -> jax.Array:
    """One environment's record after a step, which `counts` as 1 or 0 steps."""
    total, length = record[0] + reward, record[1] + counts
    running = jnp.where(done, 0.0, jnp.stack([total, length]))
    finished = jnp.where(done, jnp.stack([jnp.ones_like(total), total, length]), 0.0)
    return jnp.concatenate([running, record[2:] + finished])


def clear_episode_stats(state: Any) -> Any:
    """`state` with the episode statistics of every `EnvState` in it set to zero."""

    def clear(node: Any) -> Any:
        if not isinstance(node, EnvState):
            return node
        is_running = jnp.array([True, True, False, False, False])
        return node._replace(record=jnp.where(is_running, node.record, 0.0))

    return jax.tree.map(clear, state, is_leaf=lambda node: isinstance(node, EnvState))


def episode_stats(state: Any) -> list[EpisodeStats]:
    """The episode statistics of every `EnvState` in `state`."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, EnvState))
    return [node.finished for node in nodes if isinstance(node, EnvState)]


def _name_of(environment: Any) -> str:
    return getattr(environment, "name", type(environment).__name__)


def _draw(raw_key: jax.Array, counter: jax.Array | int) -> jax.Array:
    return jax.random.fold_in(wrap_key_data(raw_key), counter)


def _strong(tree: Any) -> Any:
    """Arrays without weak types: a loop's carry must not change type after its first step."""

    def strong(leaf: Any) -> jax.Array:
        return jax.lax.convert_element_type(leaf, jnp.result_type(leaf))

    return jax.tree.map(strong, tree)
