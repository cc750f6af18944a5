"""Tries the promise: compares one iteration in one piece and one in parts, from the same state.

Both are computed in double precision, so that another order of sums is 1e-16 and anything above
1e-9 is a mistake. Few environments are enough: whether replicas compute what the whole does depends
on operations, not on sizes, which the replica check has settled.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import component_of, inner_jaxprs, is_key, loops, raw_key, wrapped_key
from fragflow.api.environment_batch import EnvState
from fragflow.errors import ReplicaError
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, Fragment, Loop, Op, Program, walk
from fragflow.graph.probe.double_precision import (
    DoubleContext,
    compiled,
    compiled_together,
    evaluate,
    in_double,
    wide,
)
from fragflow.graph.probe.first_difference import culprit
from fragflow.graph.probe.play_graph import Actor, Held, Stage, first_values, play, stage_of
from fragflow.graph.probe.relation_to_whole import TOLERANCE, distance, joined
from fragflow.graph.probe.stand_in_environment import stand_in
from fragflow.graph.tracing.build_program import build
from fragflow.graph.tracing.trace import Tracer, env_steps_per_iteration, tracer

Environments = Literal["real", "stand-in", "cheaper"]
"""player of environments that are JAX programs; on the host it is always a stand-in"""

MAX_REPLICAS = 3
ROWS = (3, 5, 7)
"""environments of a replica: numbers that other lengths of a program seldom have as a divisor"""
FEW = 16
"""up to this many environments are tried as they are: at a run's own sizes nothing is missed"""
LARGE = 600
"""environments with more equations than this cost more than the rest of a program"""
FIRST = 3
"""number of states that follow one another from the first"""
LATE = 1000
"""the iteration of states in general position: by then, warm-up phases are over"""
DISTURBED = (0.1, 0.1, 0.3, 0.3, 1.0, 1.0)
"""amounts by which numbers of further states are moved, relative to themselves"""
SECONDS = 3.0
"""time after which no further states are tried; there are always four"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The numbers of a trial that found no difference."""

    states: int
    leaves: int
    worst: float
    """the largest relative difference of any leaf"""

    def __str__(self) -> str:
        worst = f"{self.worst:.0e}" if self.worst else "0"
        return f"{self.states} states, {self.leaves} leaves, worst {worst}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A graph at the sizes at which it is tried."""

    fdg: FDG
    source: Tracer
    program: Program
    actors: tuple[Actor, ...]
    """the graph's fragments"""
    first: Sequence[Any] | None = None
    """leaves of a first state of at least as many environments"""
    environments: Environments = "cheaper"

    @property
    def num_envs(self) -> int:
        return self.program.num_envs

    def setting(self) -> DoubleContext:
        plays_jax = self.environments == "stand-in" or (
            self.environments == "cheaper" and is_large(self.source)
        )
        return DoubleContext(answer=stand_in(self.source.environment, plays_jax))

    def parts(self) -> Stage:
        return stage_of(self.program, self.actors, self.setting())

    def whole(self) -> Stage:
        """The undivided program as a graph of one fragment."""
        extent = self.program.extent
        one = Actor(name="whole", loop=self.program.loop, replicas=1, extent=extent)
        return stage_of(self.program, [one], self.setting())


def is_divided(fdg: FDG) -> bool:
    """True if there is anything to try: replicas that have a part of something."""
    return any(f.replicas > 1 for f in fdg.fragments.values())


def probe(
    fdg: FDG,
    source: Tracer,
    *,
    first: Sequence[Any] | None = None,
    open_all: bool = False,
    environments: Environments = "cheaper",
) -> Verdict:
    """Tries `fdg`; ReplicaError if its replicas do not compute what the undivided program does.

    `source` is what was cut, `first` the leaves of the first state, if they have been made;
    `open_all` if it was cut for canonical blocks.
    """
    # The programs that run are tried: they are traced before there are wider types.
    trial = replace(arranged(fdg, source, open_all), environments=environments)
    if first is not None and _has_enough(first, trial):
        trial = replace(trial, first=first)
    else:
        trial.source.init_at(trial.source.extent)
    with in_double():
        return _tried(trial)


def _has_enough(first: Sequence[Any], trial: Trial) -> bool:
    """True if a first state has as many environments as are tried, or more."""
    avals = [v.aval for v in trial.source.at(trial.source.extent).closed.jaxpr.invars]
    return all(
        have >= needed
        for x, aval in zip(first, avals, strict=False)
        for have, needed in zip(np.shape(x), aval.shape, strict=False)
    )


def arranged(fdg: FDG, source: Tracer, open_all: bool = False) -> Trial:
    """The graph with few environments; as it is if it has few, or cannot do with fewer."""
    for most, rows in _sizes(fdg):
        replicas = _fewer(fdg, most)
        total = max(replicas[f.name] for f in fdg.fragments.values() if f.over != "agents") * rows
        try:
            small = tracer(source.algorithm, source.environment, total)
            actors = tuple(_actor(f, replicas[f.name], total) for f in fdg.fragments.values())
            program = _built(fdg, small, actors, open_all)
        except Exception:  # of the algorithm, which may not be made for so few
            continue
        if _structure(program) == _structure(fdg.program):
            return Trial(fdg=fdg, source=small, program=program, actors=actors)
    actors = tuple(_actor(f, f.replicas, fdg.program.num_envs) for f in fdg.fragments.values())
    return Trial(fdg=fdg, source=source, program=fdg.program, actors=actors)


def _sizes(fdg: FDG) -> Iterator[tuple[int, int]]:
    """Pairs of a limit on replicas and a number of environments each; the sharpest come first."""
    if any(f.num_envs == 1 for f in fdg.fragments.values() if f.name in fdg.unproven):
        yield MAX_REPLICAS, 1  # the check has not looked at these programs
        return
    if fdg.program.num_envs <= FEW:
        return
    lengths = {length for length in _lengths(fdg.program) if length > 1}
    rows = sorted(ROWS, key=lambda n: sum(length % n == 0 for length in lengths))
    for count in rows:
        yield MAX_REPLICAS, count
    yield 2, 4  # batches are divided by powers of two more often than by others


def _lengths(program: Program) -> set[int]:
    """Lengths of loops and axes."""
    loops = {n.length or 1 for n in walk((program.loop,)) if isinstance(n, Loop)}
    return loops | {n for a in program.avals[program.extent].values() for n in a.shape}


def _fewer(fdg: FDG, most: int) -> dict[str, int]:
    """By fragment, as few replicas as leave the graph the same. Agents cannot be made fewer."""
    counts = sorted(
        {f.replicas for f in fdg.fragments.values() if f.over != "agents" and f.replicas > 1}
    )
    fewer = {1: 1}
    for count in counts:
        smaller = max(fewer.values())
        fewer[count] = min(count, most if len(counts) == 1 else 2) if smaller == 1 else 2 * smaller
    return {
        name: f.replicas if f.over == "agents" else fewer[f.replicas]
        for name, f in fdg.fragments.items()
    }


def _actor(fragment: Fragment, replicas: int, total: int) -> Actor:
    is_sliced = fragment.over != "agents"
    return Actor(
        name=fragment.name,
        loop=fragment.loop,
        replicas=replicas,
        extent=Extent(total // replicas) if is_sliced else Extent(total, parts=replicas),
        is_sliced=is_sliced,
    )


def _built(fdg: FDG, source: Tracer, actors: Sequence[Actor], open_all: bool) -> Program:
    holders = {c: name for name, f in fdg.fragments.items() for c in f.components}
    extents = dict.fromkeys([source.extent, *(actor.extent for actor in actors)])
    traces = [source.at(extent) for extent in extents]
    return build(traces, source.extent, holders.__getitem__, open_all=open_all)


def _structure(program: Program) -> list[tuple[Any, ...]]:
    """The structure that must be equal at all sizes: facts about one program then hold for all."""
    return [
        (n.path, n.eqn.primitive.name, n.inputs, n.outputs)
        if isinstance(n, Op)
        else (type(n).__name__, n.path if isinstance(n, Loop) else "")
        for n in walk((program.loop,))
    ]


def is_large(source: Tracer) -> bool:
    """True if environments in JAX have so many equations that a stand-in plays them."""
    return sum(1 for _ in of_environments(source)) > LARGE


def of_environments(source: Tracer) -> Iterator[Any]:
    """All equations of environments."""

    def within(jaxpr: Any, is_inside: bool) -> Iterator[Any]:
        for eqn in jaxpr.eqns:
            inside = is_inside or (component_of(eqn) or "").startswith("environment.")
            if inside:
                yield eqn
            for inner in inner_jaxprs(eqn):
                yield from within(inner, inside)

    return within(source.at(source.extent).closed.jaxpr, False)


def _tried(trial: Trial) -> Verdict:
    worst, leaves = 0.0, 0
    programs = Programs(trial)
    states, began = 0, time.perf_counter()
    for state, index in programs.states():
        if states > FIRST and time.perf_counter() - began > SECONDS:
            break
        whole = programs.whole(state, index)
        parts = programs.parts(state, index)
        leaves = len(whole)
        for leaf, a, b in pairs(trial, whole, parts):
            found = compared(a, b)
            if found > TOLERANCE:
                both = trial.whole(), trial.parts()
                line = culprit(*both, trial.fdg, programs.given(state, index), leaf.made_as)
                raise _difference(trial, leaf.label, a, b, line, states)
            worst = max(worst, found)
        states += 1
    return Verdict(states=states, leaves=leaves, worst=worst)


class Programs:
    """The undivided iteration and the one in parts, each compiled once."""

    def __init__(self, trial: Trial):
        self._trial = trial
        self._trace = trial.source.at(trial.source.extent)
        steps = env_steps_per_iteration(self._trace, trial.num_envs)
        self._loops = any(map(loops, of_environments(trial.source)))
        self._late = max(3, min(LATE, 2**30 // max(steps, 1)))
        setting = trial.setting()
        self._sources = {
            "env_ids": np.arange(trial.num_envs, dtype=np.int32),
            "run_key": np.asarray(jax.random.key_data(jax.random.key(0))),
            "steps_per_iteration": np.asarray(steps, np.int32),
            "total_iterations": np.asarray(2 * self._late, np.int32),
        }
        closed = self._trace.closed

        def begin(sources: Mapping[str, Any]) -> list[Any]:
            arguments = [sources["run_key"], sources["env_ids"]]
            init = trial.source.init_at(trial.source.extent)
            return evaluate(init, arguments, replace(setting, ids=sources["env_ids"]))

        def whole(state: Sequence[Any], index: Any, sources: Mapping[str, Any]) -> list[Any]:
            arguments = [*state, index, *(sources[name] for name in trial.program.sources)]
            return evaluate(closed, arguments, replace(setting, ids=sources["env_ids"]))

        def parts(state: Sequence[Any], index: Any, sources: Mapping[str, Any]) -> Any:
            stage = trial.parts()
            values = first_values(stage, self._named(state), index, sources)
            play(stage, values)
            return results(stage, values)

        state = compiled(begin)(self._sources) if trial.first is None else self._given()
        self._first = list(state)
        self._whole, self._parts = compiled_together(
            [whole, parts], self._first, np.int32(0), self._sources
        )

    def states(self) -> Iterator[tuple[list[Any], Any]]:
        """States to begin from, with their iterations: the first, the next two, and moved ones."""
        state = self._first
        for index in range(FIRST):
            yield state, np.int32(index)
            state = self.whole(state, np.int32(index))[: len(state)]
        rng = np.random.default_rng(0)
        for late, scale in enumerate(DISTURBED, self._late):
            # Environments stay where they are the first time, and then change their neighbours.
            order = rng.permutation(self._trial.num_envs) if late > self._late else None
            state = self._disturbed(state, rng, scale, order)
            yield state, np.int32(late)
            state = self.whole(state, np.int32(late))[: len(state)]

    def _given(self) -> list[Any]:
        """The first state that a run has made, cut to the first environments."""
        avals = [v.aval for v in self._trace.closed.jaxpr.invars]
        leaves: list[Any] = []
        for x, aval in zip(self._trial.first or (), avals, strict=False):
            leaf = wrapped_key(x, aval) if is_key(aval) and not is_key(x) else jnp.asarray(x)
            leaves.append(wide(leaf[tuple(slice(0, n) for n in aval.shape)]))
        return leaves

    def whole(self, state: Sequence[Any], index: Any) -> list[Any]:
        """All leaves of the next state, then of the metrics."""
        return self._whole(list(state), index, self._sources)

    def parts(self, state: Sequence[Any], index: Any) -> Mapping[str, tuple[list[Any], list[Any]]]:
        """By fragment, its replicas' values of the leaves that it keeps: state, then metrics."""
        return self._parts(list(state), index, self._sources)

    def given(self, state: Sequence[Any], index: Any) -> tuple[Any, ...]:
        """The values that both begin with, by name."""
        return self._named(state), index, self._sources

    def _named(self, state: Sequence[Any]) -> dict[str, Any]:
        carries = self._trial.program.loop.carries
        return {c.inside: wide(x) for c, x in zip(carries, state, strict=True)}

    def _disturbed(
        self, state: Sequence[Any], rng: np.random.Generator, scale: float, order: Any
    ) -> list[Any]:
        """A state in general position: a zero would hide all that it is multiplied with.

        Environments keep their state the first time, since it may have laws of its own. Later they
        are given to other replicas, and their states moved too, unless they have loops that might
        then not end. Arrays without negative numbers stay so.
        """
        tree = jax.tree.unflatten(self._trace.state_structure, list(range(len(state))))
        nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, EnvState))
        own = {k for node in nodes if isinstance(node, EnvState) for k in jax.tree.leaves(node)}
        leaves: list[Any] = []
        for k, (x, axis) in enumerate(zip(state, self._axes(), strict=True)):
            leaf = x if order is None or axis is None else jnp.take(x, order, axis)
            is_kept = k in own and (order is None or self._loops)
            if not is_kept and not is_key(leaf) and leaf.dtype == jnp.float64:
                leaf = jittered(np.asarray(leaf), rng, scale)
            leaves.append(leaf)
        return leaves

    def _axes(self) -> list[int | None]:
        """By leaf of the state, the axis with an entry for each environment, or None."""
        program, sliced = self._trial.program, [a for a in self._trial.actors if a.is_sliced]
        part = min((a.extent for a in sliced), key=lambda e: e.envs, default=program.extent)
        axes: list[int | None] = []
        for carry in program.loop.carries:
            shapes = [program.avals[e][carry.inside].shape for e in (program.extent, part)]
            sized = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
            is_rows = len(sized) == 1 and shapes[0][sized[0]] == self._trial.num_envs
            axes.append(sized[0] if is_rows else None)
        return axes


def jittered(x: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """`x`, each number moved by about `scale` of itself; without negative ones it stays so."""
    added = 0.1 * scale * rng.standard_normal(x.shape)
    if x.size and np.min(x) >= 0:
        added = np.abs(added)
    elif scale >= 1:
        x = x * rng.choice((-1.0, 1.0))
    return x * (1 + scale * rng.uniform(-1, 1, x.shape)) + added


def results(stage: Stage, values: Any) -> dict[str, tuple[list[Any], list[Any]]]:
    """By fragment, the state and the metrics it has after an iteration, replicas first."""
    return {
        name: (
            [_out(values[name][c.next], actor) for c in actor.loop.carries],
            [_out(values[name][s.element], actor) for s in actor.loop.stacks],
        )
        for name, actor in stage.actors.items()
    }


def _out(held: Held, actor: Actor) -> Any:
    return held.apart(actor.replicas) if actor.replicas > 1 else held.array[None]


class Leaf(NamedTuple):
    """A leaf that is compared."""

    label: str
    made_as: tuple[str, str]
    """the fragment that made it, and its name there"""


def pairs(
    trial: Trial, whole: Sequence[Any], parts: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]
) -> Iterator[tuple[Leaf, np.ndarray, np.ndarray]]:
    """The leaves to compare: each with its whole, and all that a fragment's replicas have of it."""
    loop = trial.program.loop
    labels = trial.program.labels
    state = {c.inside: k for k, c in enumerate(loop.carries)}
    metrics = {s.outside: len(state) + k for k, s in enumerate(loop.stacks)}
    for actor in trial.actors:
        carries, stacks = parts[actor.name]
        for c, held in zip(actor.loop.carries, carries, strict=True):
            leaf = Leaf(f"the state's {labels[c.inside]}", (actor.name, c.next))
            yield leaf, plain(whole[state[c.inside]]), plain(held)
        for s, held in zip(actor.loop.stacks, stacks, strict=True):
            leaf = Leaf(f"the metric {labels[s.outside]}", (actor.name, s.element))
            yield leaf, plain(whole[metrics[s.outside]]), plain(held)


def plain(x: Any) -> np.ndarray:
    """`x` as plain numbers, also if it holds keys."""
    return np.asarray(raw_key(x) if is_key(x) else x)


def compared(whole: np.ndarray, parts: np.ndarray) -> float:
    """The distance of the parts from the whole, of which each has a slice, or all."""
    sized = [i for i, (a, b) in enumerate(zip(whole.shape, parts.shape[1:], strict=True)) if a != b]
    if not sized:
        return max(distance(whole, part) for part in parts)
    together = joined(parts, sized[0]) if len(sized) == 1 else None
    if together is None or together.shape != whole.shape:
        return math.inf
    return distance(whole, together)


def _difference(
    trial: Trial,
    label: str,
    whole: np.ndarray,
    parts: np.ndarray,
    line: str | None,
    state: int,
) -> ReplicaError:
    a, b = _worst_entry(whole, parts)
    counts = "/".join(str(actor.replicas) for actor in trial.actors)
    when = "a state in general position" if state >= FIRST else f"iteration {state}"
    blame = (
        f" The first operation whose parts do not make up the whole is {line}."
        if line is not None
        else ""
    )
    return ReplicaError(
        f"{label} is {b} with replicas and {a} without (tried with {trial.num_envs} environments "
        f"and {counts} replicas, from {when}).{blame} Under replicas only per-environment work, "
        "and reductions with ff.all_..., are allowed."
    )


def _worst_entry(whole: np.ndarray, parts: np.ndarray) -> tuple[str, str]:
    """Both values at the entry where they differ most."""
    sized = [i for i, (a, b) in enumerate(zip(whole.shape, parts.shape[1:], strict=True)) if a != b]
    together = [joined(parts, sized[0])] if len(sized) == 1 else list(parts)
    for other in together:
        if other.shape != whole.shape:
            return f"of shape {list(whole.shape)}", f"of shape {list(other.shape)}"
        if distance(whole, other) > TOLERANCE:
            gap = np.nan_to_num(np.abs(whole.astype(np.float64) - other), nan=np.inf)
            where = np.unravel_index(np.argmax(gap), whole.shape)
            return f"{whole[where]:.7g}", f"{other[where]:.7g}"
    return "equal", "equal"
