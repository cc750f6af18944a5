"""Traces one iteration of the training loop, for each extent that a fragment may have."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Jaxpr,
    component_of,
    dead_code_removed,
    inner_jaxprs,
    is_key,
    num_turns,
)
from fragflow._jax_typed import eval_shape, keystr, leaves_with_path, make_jaxpr, wrap_key_data
from fragflow.api.algorithm import Algorithm, Clock
from fragflow.api.environment import num_agents_of, teams_of
from fragflow.api.environment_batch import (
    AnyEnvironment,
    Environments,
    EpisodeStats,
    clear_episode_stats,
    episode_stats,
    is_pair,
)
from fragflow.api.host import Host
from fragflow.error_owner import called, defined_at, judged
from fragflow.errors import TraceError
from fragflow.graph.fragment_extent import Extent, as_traced
from fragflow.graph.ir import EpisodeStat

SOURCES = ("env_ids", "run_key", "steps_per_iteration", "total_iterations")
ITERATION = "iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One iteration of the training loop, for what a fragment holds."""

    extent: Extent
    closed: ClosedJaxpr
    state_labels: tuple[str, ...]
    is_weight: tuple[bool, ...]
    """for each leaf of the state, True if the trained agent acts with it"""
    metric_labels: tuple[str, ...]
    episodes: tuple[EpisodeStat, ...]
    """outputs that follow the metrics"""
    state_structure: Any
    metric_structure: Any


def init_function(
    algorithm: Algorithm, environment: AnyEnvironment | Host, total: int
) -> Callable[[jax.Array, jax.Array], Any]:
    """`(run key, env ids) -> first state`, with strong types."""

    def init(run_key: jax.Array, env_ids: jax.Array) -> Any:
        key = jax.random.fold_in(wrap_key_data(run_key), 0)
        name, env = type(algorithm).__name__, Environments(environment, env_ids, total)
        state = called(f"{name}.init", algorithm.init, env, key)
        _refuse_no_arrays(algorithm.init, f"{name}.init returned a state", state)
        return jax.tree.map(_strong, state)

    return init


def iteration_function(
    algorithm: Algorithm,
    environment: AnyEnvironment | Host,
    total: int,
    on_step: Callable[[], None] | None = None,
) -> Callable[..., tuple[Any, Any]]:
    """`(state, iteration, *sources) -> (state, (metrics, episodes))`."""

    def iteration(
        state: Any,
        index: jax.Array,
        env_ids: jax.Array,
        run_key: jax.Array,
        steps_per_iteration: jax.Array,
        total_iterations: jax.Array,
    ) -> tuple[Any, Any]:
        # Key 0 made the first state, so iteration i draws from key i + 1.
        key = jax.random.fold_in(wrap_key_data(run_key), index + 1)
        progress = index.astype(jnp.float32) / total_iterations.astype(jnp.float32)
        clock = Clock(key, index, index * steps_per_iteration, progress)
        env = Environments(environment, env_ids, total, on_step)
        name, before = f"{type(algorithm).__name__}.step", clear_episode_stats(state)
        answer = called(name, algorithm.step, env, before, clock)
        state, metrics = _state_and_metrics(algorithm, answer)
        return jax.tree.map(_strong, state), (metrics, episode_stats(state))

    return iteration


def _state_and_metrics(algorithm: Algorithm, answer: Any) -> tuple[Any, Any]:
    """The state and the metrics that `step` returned; TraceError if it returned something else."""
    name = f"{type(algorithm).__name__}.step"
    if is_pair(answer) and isinstance(answer[1], Mapping):
        _refuse_no_arrays(algorithm.step, f"{name} returned a state", answer[0])
        _refuse_no_arrays(algorithm.step, f"{name} returned metrics", answer[1])
        return answer
    of_pair = [type(x).__name__ for x in answer] if is_pair(answer) else []
    what = f"({', '.join(of_pair)})" if of_pair else type(answer).__name__
    raise TraceError(
        f"{name} returned {what}: expected the next state and a dict of metrics, (state, {{}}) if "
        f"there are none{defined_at(algorithm.step)}"
    )


def _refuse_no_arrays(function: Callable[..., Any], what: str, tree: Any) -> None:
    """Refuses leaves that are neither arrays nor numbers, and random keys, which cannot be kept."""
    for label, leaf in zip(leaf_labels(tree), jax.tree.leaves(tree), strict=True):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TraceError(
                f"{what} whose {label} is of type {type(leaf).__name__}: expected arrays and "
                f"numbers{defined_at(function)}"
            )
        if is_key(jax.typeof(leaf)):
            raise TraceError(
                f"{what} whose {label} is a random key: draw from clock.key and env.keys, or keep "
                f"jax.random.key_data of it{defined_at(function)}"
            )


def source_avals(num_envs: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Types of the sources of a fragment with `num_envs` environments."""
    scalar = jax.ShapeDtypeStruct((), np.int32)
    return (
        jax.ShapeDtypeStruct((num_envs,), np.int32),
        jax.ShapeDtypeStruct((2,), np.uint32),
        scalar,
        scalar,
    )


def trace(
    algorithm: Algorithm, environment: AnyEnvironment | Host, total: int, extent: Extent
) -> Trace:
    """Traces one iteration as seen by a fragment of this extent."""
    sources = source_avals(extent.envs)
    environment = as_traced(environment, extent)
    init = init_function(algorithm, environment, total)
    state = eval_shape(init, sources[1], sources[0])
    if not hasattr(state, "params"):
        raise TraceError(
            f"{type(algorithm).__name__}.init returned {type(state).__name__}, which has no field "
            "'params': return a state with one (a NamedTuple or a dataclass pytree)"
            f"{defined_at(algorithm.init)}"
        )
    index = jax.ShapeDtypeStruct((), np.int32)
    iteration = iteration_function(algorithm, environment, total)
    closed, shapes = make_jaxpr(iteration, return_shape=True)(state, index, *sources)
    new_state, outputs = shapes
    metrics, episodes = outputs
    labels = leaf_labels(state)
    _check_state(algorithm, state, new_state, labels)
    return Trace(
        extent=extent,
        closed=dead_code_removed(closed),
        state_labels=labels,
        is_weight=_are_weights(algorithm, state),
        metric_labels=leaf_labels(metrics),
        episodes=tuple(episode_labels(episodes)),
        state_structure=jax.tree.structure(state),
        metric_structure=jax.tree.structure(outputs),
    )


def trace_init(
    algorithm: Algorithm, environment: AnyEnvironment | Host, total: int, extent: Extent
) -> ClosedJaxpr:
    """Traces the making of the first state."""
    ids, key = source_avals(extent.envs)[:2]
    init = init_function(algorithm, as_traced(environment, extent), total)
    return make_jaxpr(init)(key, ids)


def components_in(trace: Trace) -> frozenset[str]:
    """The components that one iteration calls."""
    return frozenset[str]().union(*(components_of(eqn) for eqn in trace.closed.jaxpr.eqns))


def env_steps_per_iteration(trace: Trace, total: int) -> int:
    """The number of environment steps that one iteration makes, over all environments."""

    def count(jaxpr: Jaxpr) -> int:
        steps = 0
        for eqn in jaxpr.eqns:
            if component_of(eqn) == "environment.step":
                steps += 1
            elif component_of(eqn) is None:
                inner = sum(count(j) for j in inner_jaxprs(eqn))
                steps += inner * (num_turns(eqn) or 1)
        return steps

    return count(trace.closed.jaxpr) * total


def components_of(eqn: Eqn) -> frozenset[str]:
    """The components called in an equation, at any depth."""
    name = component_of(eqn)
    if name is not None:
        return frozenset({name})
    return frozenset[str]().union(
        *(components_of(inner) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)
    )


def leaf_labels(tree: Any) -> tuple[str, ...]:
    """A readable, unique name for every leaf."""
    paths = [path for path, _ in leaves_with_path(tree)]
    labels = [keystr(path, simple=True, separator=".") for path in paths]
    # Keys may have dots of their own: {"a.b": x} beside {"a": {"b": y}}.
    counts = Counter(labels)
    return tuple(
        label if counts[label] == 1 else keystr(path)
        for label, path in zip(labels, paths, strict=True)
    )


def _are_weights(algorithm: Algorithm, state: Any) -> tuple[bool, ...]:
    leaves, structure = jax.tree.flatten(state)
    # Each leaf an object of its own, so that it is known again.
    apart = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    name = f"{type(algorithm).__name__}.weights"
    weights = called(name, algorithm.weights, structure.unflatten(apart))
    taken = {id(leaf) for leaf in jax.tree.leaves(weights)}
    if not taken <= {id(leaf) for leaf in apart}:
        raise TraceError(
            f"{name} returned something that is not in the state: expected a part of it, unchanged"
            f"{defined_at(algorithm.weights)}"
        )
    return tuple(id(leaf) in taken for leaf in apart)


def episode_labels(episodes: Sequence[EpisodeStats]) -> Iterator[EpisodeStat]:
    """The statistic that each leaf is, in order."""
    for k, stats in enumerate(episodes):
        for name in stats._fields:
            yield EpisodeStat(k, name)


def _strong(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x if not getattr(x, "weak_type", False) else jax.lax.convert_element_type(x, x.dtype)


def _check_state(algorithm: Algorithm, old: Any, new: Any, labels: Sequence[str]) -> None:
    name = type(algorithm).__name__
    if jax.tree.structure(old) != jax.tree.structure(new):
        raise TraceError(
            f"{name}.step returns a state of another structure than {name}.init: "
            f"{jax.tree.structure(new)}, expected {jax.tree.structure(old)}"
            f"{defined_at(algorithm.step)}"
        )
    for label, before, after in zip(
        labels, jax.tree.leaves(old), jax.tree.leaves(new), strict=True
    ):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise TraceError(
                f"{name}.step changes the state's {label} from {before.dtype}{list(before.shape)} "
                f"to {after.dtype}{list(after.shape)}: a training loop keeps its types"
                f"{defined_at(algorithm.step)}"
            )


class Tracer:
    """Traces the training loop that is cut, once for each extent that is asked for."""

    def __init__(
        self,
        algorithm: Algorithm,
        environment: AnyEnvironment | Host,
        num_envs: int,
        total: int | None = None,
    ):
        """`total` is the number of environments in all: more, if it is one worker's program."""
        self.algorithm = algorithm
        self.environment = environment
        self.num_envs = num_envs
        """environments in the program that is cut"""
        self.total = total or num_envs
        self._traces: dict[Extent, Trace] = {}
        self._inits: dict[Extent, ClosedJaxpr] = {}

    @property
    def extent(self) -> Extent:
        return Extent(self.num_envs)

    @property
    def teams(self) -> tuple[int, ...]:
        """Agents in each team; empty for one agent without an axis of its own."""
        environment = self.environment
        spaces = environment.environment if isinstance(environment, Host) else environment
        return () if num_agents_of(spaces) is None else teams_of(spaces)

    def at(self, extent: Extent) -> Trace:
        if extent not in self._traces:
            try:
                made = trace(self.algorithm, self.environment, self.total, extent)
            except Exception as error:
                if self.extent not in self._traces:
                    raise
                where = f"for {extent.envs} of {self.num_envs} environments: use env.num_envs"
                raise judged(error, is_running=False, where=where) from error
            self._check_leaves(made)
            self._traces[extent] = made
        return self._traces[extent]

    def _check_leaves(self, made: Trace) -> None:
        """Refuses a state or metrics whose leaves are others for another number of environments."""
        first = next(iter(self._traces.values()), made)
        for function, here, there in (
            (self.algorithm.init, made.state_labels, first.state_labels),
            (self.algorithm.step, made.metric_labels, first.metric_labels),
        ):
            if here != there:
                raise TraceError(
                    f"{type(self.algorithm).__name__}.{function.__name__} returned {len(here)} "
                    f"arrays for {made.extent.envs} environments, and {len(there)} for "
                    f"{first.extent.envs}: keep one array with a row for each environment, not an "
                    f"array for each{defined_at(function)}"
                )

    def init_at(self, extent: Extent) -> ClosedJaxpr:
        if extent not in self._inits:
            self._inits[extent] = trace_init(self.algorithm, self.environment, self.total, extent)
        return self._inits[extent]


def tracer(
    algorithm: Algorithm,
    environment: AnyEnvironment | Host,
    num_envs: int,
    total: int | None = None,
) -> Tracer:
    """Prepares tracing; the first trace is made when one is asked for."""
    return Tracer(algorithm, environment, num_envs, total)
