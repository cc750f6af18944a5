"""Which operation is to blame where replicas differ: the first that is not what was claimed of it.

Only asked when something differs, so it may take its time: both programs are played again, with the
results of all equations kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragflow._jax import Eqn, is_key, plain_aval, raw_key, source_line
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
    # What goes wrong in a loop's first step soon goes wrong in all that the later ones do.
    for only_first_steps in (True, False):
        for (actor, path), found in together.items():
            pairs = [
                (eqn, _results(eqn, a, b, only_first_steps))
                for (_, a), (eqn, b) in zip(undivided.get(path, []), found, strict=False)
            ]
            call, results = found[-1][0], pairs[-1][1] if pairs else []
            if len(undivided.get(path, [])) != len(found):
                return _described(call, call)
            if not _is_as_claimed(fdg, actor, outputs[path], results):
                return _described(_first_unrelated(pairs) or call, call)
    return None


Pairs = list[tuple[np.ndarray, np.ndarray]]
"""results as they are in the whole, and of each replica"""


def _results(
    eqn: Eqn, whole: Sequence[np.ndarray], parts: Sequence[np.ndarray], only_first_steps: bool
) -> Pairs:
    """An equation's results; within loops of all their steps, which come first, or of the first."""
    pairs: Pairs = []
    for variable, a, b in zip(eqn.outvars, whole, parts, strict=True):
        loops = b.ndim - 1 - len(plain_aval(variable.aval).shape)
        first = (0,) * (loops if only_first_steps else 0)
        pairs.append((a[first], b[(slice(None), *first)]))
    return pairs


def _is_as_claimed(fdg: FDG, actor: str, names: Sequence[Value | None], results: Pairs) -> bool:
    kinds = fdg.kinds[actor]
    return all(
        name is None or holds(kinds.get(name), a, b)
        for name, (a, b) in zip(names, results, strict=True)
    )


def _first_unrelated(pairs: Sequence[tuple[Eqn, Pairs]]) -> Eqn | None:
    for eqn, results in pairs:
        if any(relation(a, b) is None for a, b in results):
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
