"""Plays one iteration of a cut program: all replicas of all fragments, as one traced function.

The graph is played, not the runtime. The replicas of a fragment are an axis with a name
over which `all_mean` and its like reduce; fragments take their turns as messages allow; values that
cross are joined and cut as their collectives say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fragflow._jax import Eqn, contains_all_reduce
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Constant, Loop, Node, Op, Parcel, Program, Receive, Send, Value, walk
from fragflow.graph.probe.double_precision import DoubleContext, Taps, equation, literal, wide

AXIS = "probed replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A fragment as it is played."""

    name: str
    loop: Loop
    replicas: int
    extent: Extent
    """the extent of a replica"""
    is_sliced: bool = True
    """its replicas have some of the environments each; else each replica has all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The fragments that are played, and the equations that they play, for all sizes."""

    actors: Mapping[str, Actor]
    eqns: Mapping[str, Mapping[Extent, Eqn]]
    """by the operation's path"""
    constants: Mapping[Value, Mapping[Extent, Any]]
    whole: Mapping[Value, Any]
    """types of values in the undivided program"""
    avals: Mapping[Extent, Mapping[Value, Any]]
    setting: DoubleContext


@dataclass(frozen=True, slots=True)
class Held:
    """A value as the replicas of a fragment have it."""

    array: Any
    is_apart: bool
    """replicas come one after the other along a first axis; else all have the same"""

    def parts(self, count: int) -> list[Any]:
        return [self.array[r] if self.is_apart else self.array for r in range(count)]

    def apart(self, count: int) -> Any:
        array = self.array
        return array if self.is_apart else jnp.broadcast_to(array, (count, *array.shape))


@dataclass(frozen=True, slots=True)
class Seen:
    """An equation's results, within an operation of a fragment."""

    actor: str
    path: str
    eqn: Eqn
    calls: tuple[Eqn, ...]
    """around it, within the operation"""
    values: list[Held]


Values = dict[str, dict[Value, Held]]
"""by fragment"""


def stage_of(program: Program, actors: Sequence[Actor], setting: DoubleContext) -> Stage:
    """The stage for `program`, with its equations at all sizes it was traced for."""
    nodes = [*program.constants, *walk((program.loop,))]
    return Stage(
        actors={actor.name: actor for actor in actors},
        eqns={n.path: n.eqns for n in nodes if isinstance(n, Op)},
        constants={n.output: n.arrays for n in nodes if isinstance(n, Constant)},
        whole=program.avals[program.extent],
        avals=program.avals,
        setting=setting,
    )


def first_values(
    stage: Stage, state: Mapping[Value, Any], index: Any, sources: Mapping[Value, Any]
) -> Values:
    """The values that fragments begin an iteration with, cut from a whole state."""
    values: Values = {}
    for name, actor in stage.actors.items():
        mine = {value: Held(array, False) for value, array in sources.items()}
        if actor.is_sliced:
            mine["env_ids"] = _cut(sources["env_ids"], 0, actor.replicas)
        mine[actor.loop.counter or ""] = Held(index, False)
        for carry in actor.loop.carries:
            axis = _sized_axis(stage, carry.inside, actor.extent)
            mine[carry.inside] = _cut(state[carry.inside], axis, actor.replicas)
        values[name] = mine
    return values


def _sized_axis(stage: Stage, value: Value, extent: Extent) -> int | None:
    shapes = stage.whole[value].shape, stage.avals[extent][value].shape
    sized = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
    return sized[0] if sized else None


def _cut(array: Any, axis: int | None, count: int) -> Held:
    """`array` for replicas that have equal parts of it, or all of it."""
    if axis is None or count == 1:
        return Held(array, False)
    return Held(jnp.stack(jnp.split(array, count, axis)), True)


def play(stage: Stage, values: Values, seen: list[Seen] | None = None) -> None:
    """Extends `values` by all that one iteration makes, and `seen`, if given, by every equation."""
    for name, actor in stage.actors.items():
        values[name] |= {
            output: Held(_constant(arrays[actor.extent]), False)
            for output, arrays in stage.constants.items()
            if actor.extent in arrays
        }
    _Play(stage=stage, values=values, seen=seen).block(
        {name: actor.loop.body for name, actor in stage.actors.items()}
    )


def _constant(array: Any) -> Any:
    return wide(array if hasattr(array, "dtype") else jnp.asarray(array))


@dataclass(slots=True, kw_only=True)
class _Play:
    stage: Stage
    values: Values
    seen: list[Seen] | None
    mail: dict[str, Mapping[Value, Held]] = field(default_factory=dict)

    def block(self, parts: Mapping[str, Sequence[Node]]) -> None:
        """Plays fragments' nodes, each fragment's in order; a fragment waits for its messages."""
        waiting = {name: list(nodes) for name, nodes in parts.items()}
        while any(waiting.values()):
            before = sum(map(len, waiting.values()))
            for name, nodes in waiting.items():
                while nodes and self._step(name, nodes[0], waiting):
                    nodes.pop(0)
            assert sum(map(len, waiting.values())) < before, "fragments wait for one another"

    def _step(self, name: str, node: Node, waiting: Mapping[str, list[Node]]) -> bool:
        """Plays the next node of a fragment; False if it has to wait."""
        mine = self.values[name]
        match node:
            case Op():
                results = self._apply(name, node)
                mine |= {v: r for v, r in zip(node.outputs, results, strict=True) if v is not None}
            case Constant():
                pass
            case Send():
                sent = node.transfer.parcels
                self.mail[node.transfer.name] = {p.value: mine[p.value] for p in sent}
            case Receive():
                message = self.mail.get(node.transfer.name)
                if message is None:
                    return False
                ends = self.stage.actors[node.transfer.source], self.stage.actors[name]
                for parcel in node.transfer.parcels:
                    mine[parcel.value] = _delivered(
                        parcel, message[parcel.value], ends, node.transfer.crossed
                    )
            case Loop():
                return self._loop(node.path, waiting, name)
            case _:
                raise AssertionError(f"{type(node).__name__} in a fragment")
        return True

    def _apply(self, name: str, op: Op) -> list[Held]:
        actor, mine = self.stage.actors[name], self.values[name]
        eqn = self.stage.eqns[op.path][actor.extent]
        held = [
            Held(literal(variable), False) if value is None else mine[value]
            for value, variable in zip(op.inputs, eqn.invars, strict=True)
        ]
        reduces = actor.replicas > 1 and contains_all_reduce(eqn)
        ids = mine["env_ids"]
        is_apart = reduces or any(h.is_apart for h in held)
        setting = replace(self.stage.setting, axis=AXIS if reduces else None)
        inside: Taps = []

        def function(ids: Any, *args: Any) -> Any:
            taps: Taps | None = None if self.seen is None else []
            results = equation(eqn, args, replace(setting, ids=ids), taps)
            inside[:] = taps or ()
            return results, [tap.results for tap in taps or ()]

        if is_apart:
            axes = [0 if h.is_apart else None for h in (ids, *held)]
            function = jax.vmap(function, axes, axis_name=AXIS, axis_size=actor.replicas)
        results, taps = function(ids.array, *(h.array for h in held))
        if self.seen is not None:
            self.seen.extend(
                Seen(name, op.path, tap.eqn, tap.calls, [Held(v, is_apart) for v in made])
                for tap, made in zip(inside, taps, strict=True)
            )
        return [Held(r, is_apart) for r in results]

    def _loop(self, path: str, waiting: Mapping[str, list[Node]], name: str) -> bool:
        """Plays a loop that several fragments share, once all have come to it; False before."""
        shared = {
            other: node
            for other, nodes in waiting.items()
            for node in nodes
            if isinstance(node, Loop) and node.path == path
        }
        if any(waiting[other][0] is not loop for other, loop in shared.items()):
            return False
        self._scan(shared)
        for other in shared:
            if other != name:
                waiting[other].pop(0)
        return True

    def _scan(self, loops: Mapping[str, Loop]) -> None:
        counts = {name: self.stage.actors[name].replicas for name in loops}
        kept: list[tuple[str, Value, bool]] = []
        seen: list[Seen] = []

        def body(carry: Any, xs: Any) -> Any:
            inner = _Play(
                stage=self.stage,
                values={name: dict(values) for name, values in self.values.items()},
                seen=None if self.seen is None else [],
            )
            for name, loop in loops.items():
                is_apart = counts[name] > 1
                for c, array in zip(loop.carries, carry[name], strict=True):
                    inner.values[name][c.inside] = Held(array, is_apart)
                for s, array in zip(loop.slices, xs[name], strict=True):
                    inner.values[name][s.inside] = Held(
                        array, self.values[name][s.outside].is_apart
                    )
            inner.block({name: loop.body for name, loop in loops.items()})
            made: list[Any] = []
            kept[:] = []
            for name, loop in loops.items():
                for stack in loop.stacks:
                    held = inner.values[name][stack.element]
                    made.append(held.array)
                    kept.append((name, stack.outside, held.is_apart))
            seen[:] = inner.seen or []
            after = {
                name: [_carried(inner.values[name][c.next], counts[name]) for c in loop.carries]
                for name, loop in loops.items()
            }
            return after, (made, [[h.array for h in s.values] for s in seen])

        one = next(iter(loops.values()))
        first = {
            name: [_carried(self.values[name][c.init], counts[name]) for c in loop.carries]
            for name, loop in loops.items()
        }
        slices = {
            name: [_steps_first(self.values[name][s.outside]) for s in loop.slices]
            for name, loop in loops.items()
        }
        last, (made, tapped) = lax.scan(body, first, slices, length=one.length, reverse=one.reverse)
        for name, loop in loops.items():
            for c, array in zip(loop.carries, last[name], strict=True):
                self.values[name][c.final] = Held(array, counts[name] > 1)
        for (name, outside, is_apart), array in zip(kept, made, strict=True):
            self.values[name][outside] = _replicas_first(array, is_apart)
        if self.seen is not None:
            for entry, arrays in zip(seen, tapped, strict=True):
                rows = [
                    _replicas_first(jnp.flip(array, 0) if one.reverse else array, held.is_apart)
                    for array, held in zip(arrays, entry.values, strict=True)
                ]
                self.seen.append(replace(entry, values=rows))


def _carried(held: Held, count: int) -> Any:
    """A loop's carry, which is apart at every step or at none."""
    return held.apart(count) if count > 1 else held.array


def _steps_first(held: Held) -> Any:
    return jnp.swapaxes(held.array, 0, 1) if held.is_apart else held.array


def _replicas_first(array: Any, is_apart: bool) -> Held:
    return Held(jnp.swapaxes(array, 0, 1) if is_apart else array, is_apart)


def _delivered(parcel: Parcel, held: Held, ends: tuple[Actor, Actor], crossed: bool) -> Held:
    """A value of a message as its receivers have it."""
    sources, targets = ends[0].replicas, ends[1].replicas
    if sources == targets and not crossed:
        return held
    receivers = targets if crossed else max(targets // sources, 1)
    senders = sources if crossed else max(sources // targets, 1)
    parts = held.parts(sources)
    if parcel.cut is not None:
        pieces = [jnp.split(part, receivers, parcel.cut) for part in parts]
    else:
        pieces = [[part] * receivers for part in parts]
    received: list[Any] = []
    for target in range(targets):
        first = 0 if crossed else target * senders if senders > 1 else target // receivers
        got = [pieces[s][target % receivers] for s in range(first, first + senders)]
        received.append(_joined(parcel, got))
    return Held(received[0], False) if targets == 1 else Held(jnp.stack(received), True)


def _joined(parcel: Parcel, parts: Sequence[Any]) -> Any:
    match parcel.collective:
        case _ if parcel.join is not None:
            return jnp.concatenate(parts, parcel.join)
        case "reduce-mean":
            return sum(parts[1:], parts[0]) / len(parts)
        case "reduce-sum":
            return sum(parts[1:], parts[0])
        case "reduce-max":
            return jnp.max(jnp.stack(parts), 0)
        case _:
            return parts[0]
