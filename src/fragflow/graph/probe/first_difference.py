"""Finds the operation to blame where replicas differ: the first that is not what was claimed.

This runs only when something differs, so it may take its time: both programs are played again, with
the results of all equations kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fragflow._jax import is_key, plain_aval, raw_key, source_line
from fragflow.graph.ir import FDG, Op, Value, walk
from fragflow.graph.probe.double_precision import compiled
from fragflow.graph.probe.play_graph import Seen, Stage, first_values, play
from fragflow.graph.probe.relation_to_whole import holds, relation

Look = Literal["first steps", "all steps"]
"""The steps of loops to compare. An error in a first step soon spreads to all later ones, so first
steps are looked at first."""


@dataclass(frozen=True, slots=True)
class _Both:
    """An equation's results in the whole, and in each replica."""

    seen: Seen
    whole: Sequence[np.ndarray]
    parts: Sequence[np.ndarray]

    def results(self, look: Look) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of results, whole and parts; within loops of all steps, or of the first."""
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for variable, a, b in zip(self.seen.eqn.outvars, self.whole, self.parts, strict=True):
            loops = a.ndim - len(plain_aval(variable.aval).shape)
            first = (0,) * (loops if look == "first steps" else 0)
            pairs.append((a[first], b[(slice(None), *first)]))
        return pairs

    def is_related(self, look: Look) -> bool:
        return all(relation(a, b) is not None for a, b in self.results(look))

    def is_reduced(self) -> bool:
        """True if no result is a part of a sum, or of a maximum."""
        found = [relation(a, b) for a, b in self.results("all steps")]
        return all(kind in ("equal", "slices") for kind in found)


def culprit(
    whole: Stage,
    parts: Stage,
    fdg: FDG,
    given: tuple[Any, ...],
    differs: tuple[str, Value],
) -> str | None:
    """`primitive at file:line` of the user's code; None if no operation by itself is to blame.

    `given` are the state, the iteration and the sources; `differs` is a fragment, and a value that
    it has made.
    """
    undivided: dict[str, list[list[np.ndarray]]] = {}
    for seen, values in _played(whole, given):
        undivided.setdefault(seen.path, []).append([x[0] for x in values])
    divided: dict[tuple[str, str], list[tuple[Seen, list[np.ndarray]]]] = {}
    for seen, values in _played(parts, given):
        divided.setdefault((seen.actor, seen.path), []).append((seen, values))
    made: Made = {}
    for (actor, path), found in divided.items():
        operation = found[-1][0]
        if len(undivided.get(path, [])) != len(found):
            return _described(operation, operation)
        pairs = zip(found, undivided[path], strict=True)
        made[actor, path] = [_Both(seen, a, b) for (seen, b), a in pairs]
    ops = {n.path: n for n in walk((fdg.program.loop,)) if isinstance(n, Op)}
    looks: tuple[Look, ...] = ("first steps", "all steps")
    for look in looks:
        for (actor, path), equations in made.items():
            if not _is_as_claimed(fdg, actor, ops[path].outputs, equations[-1].results(look)):
                inner = next((e.seen for e in equations if not e.is_related(look)), None)
                if inner is None or inner.eqn.primitive.name == "scan":
                    inner = next((e.seen for e in equations if not e.is_related("all steps")), None)
                return _described(inner or equations[-1].seen, equations[-1].seen)
    return _unreduced(made, ops, *differs)


Made = dict[tuple[str, str], list[_Both]]
"""by fragment and path of an operation, its equations; the operation itself is the last"""


def _unreduced(made: Made, ops: Mapping[str, Op], actor: str, value: Value) -> str | None:
    """The operation that was not reduced: where all are as claimed, a claim was wrong."""
    makers = {output: op for op in ops.values() for output in op.outputs if output is not None}
    operation = None
    wanted = [value]
    while wanted:
        op = makers.get(wanted.pop())
        equations = made.get((actor, op.path)) if op is not None else None
        if op is not None and equations and not equations[-1].is_reduced():
            operation = equations
            wanted = [v for v in op.inputs if v is not None]
    if operation is None:
        return None
    inner = next(e.seen for e in operation if not e.is_reduced())
    return _described(inner, operation[-1].seen)


def _is_as_claimed(
    fdg: FDG,
    actor: str,
    names: Sequence[Value | None],
    results: Sequence[tuple[np.ndarray, np.ndarray]],
) -> bool:
    kinds = fdg.kinds[actor]
    return all(
        name is None or holds(kinds.get(name), a, b)
        for name, (a, b) in zip(names, results, strict=True)
    )


def _described(seen: Seen, operation: Seen) -> str:
    """An equation with its line; inside a library's function, with the line of the user's call."""
    around = source_line(operation.eqn)
    lines = [source_line(eqn) for eqn in (seen.eqn, *reversed(seen.calls))]
    line = next((line for line in lines if line not in ("", around)), around)
    return f"{seen.eqn.primitive.name} at {line}" if line else seen.eqn.primitive.name


def _played(stage: Stage, given: tuple[Any, ...]) -> list[tuple[Seen, list[np.ndarray]]]:
    """Every equation, in order, with its results, replicas first."""
    kept: list[Seen] = []

    def run(*given: Any) -> Any:
        seen: list[Seen] = []
        play(stage, first_values(stage, *given), seen)
        kept[:] = seen
        return [[held.apart(stage.actors[s.actor].replicas) for held in s.values] for s in seen]

    return [
        (seen, [np.asarray(raw_key(x) if is_key(x) else x) for x in arrays])
        for arrays, seen in zip(compiled(run)(*given), kept, strict=True)
    ]
