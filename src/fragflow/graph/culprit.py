"""Which operation is to blame where replicas differ: the first that is not what was claimed of it.

Only asked when something differs, so it may take its time: both programs are played again, with the
results of all equations kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragflow._jax import Eqn, is_key, raw_key, source_line
from fragflow.graph.double import compiled
from fragflow.graph.ir import FDG, Op, Value, walk
from fragflow.graph.play import Seen, Stage, Values, play
from fragflow.graph.relation import holds, relation

Found = tuple[Eqn, list[np.ndarray]]


def culprit(whole: Stage, parts: Stage, fdg: FDG, first: Callable[[Stage], Values]) -> str | None:
    """`primitive at file:line` of the user; None if no operation by itself is to blame."""
    undivided: dict[str, list[Found]] = {}
    for seen, values in _played(whole, first):
        undivided.setdefault(seen.path, []).append((seen.eqn, [x[0] for x in values]))
    outputs = {n.path: n.outputs for n in walk((fdg.program.loop,)) if isinstance(n, Op)}
    together: dict[tuple[str, str], list[Found]] = {}
    for seen, values in _played(parts, first):
        together.setdefault((seen.actor, seen.path), []).append((seen.eqn, values))
    for (actor, path), found in together.items():
        expected = undivided.get(path, [])
        if len(expected) != len(found):
            return _described(found[-1][0], found[-1][0])
        if not _is_as_claimed(fdg, actor, outputs[path], expected[-1][1], found[-1][1]):
            call = found[-1][0]
            return _described(_first_unrelated(expected, found) or call, call)
    return None


def _is_as_claimed(
    fdg: FDG,
    actor: str,
    names: Sequence[Value | None],
    whole: Sequence[np.ndarray],
    parts: Sequence[np.ndarray],
) -> bool:
    kinds = fdg.kinds[actor]
    return all(
        name is None or holds(kinds.get(name), a, b)
        for name, a, b in zip(names, whole, parts, strict=True)
    )


def _first_unrelated(expected: Sequence[Found], found: Sequence[Found]) -> Eqn | None:
    for (_, whole), (eqn, parts) in zip(expected, found, strict=True):
        if any(relation(a, b) is None for a, b in zip(whole, parts, strict=True)):
            return eqn
    return None


def _described(eqn: Eqn, call: Eqn) -> str:
    # Inside a library's function there may be no line of the user's: then it is the call's.
    line = source_line(eqn) or source_line(call)
    return f"{eqn.primitive.name} at {line}" if line else eqn.primitive.name


def _played(stage: Stage, first: Callable[[Stage], Values]) -> list[tuple[Seen, list[np.ndarray]]]:
    """Every equation, in order, with its results, replicas first."""
    kept: list[Seen] = []

    def run(values: Values) -> Any:
        seen: list[Seen] = []
        play(stage, values, seen)
        kept[:] = seen
        return [[held.apart(stage.actors[s.actor].replicas) for held in s.values] for s in seen]

    made = compiled(lambda: run(first(stage)))()
    return [
        (seen, [np.asarray(raw_key(x) if is_key(x) else x) for x in arrays])
        for seen, arrays in zip(kept, made, strict=True)
    ]
