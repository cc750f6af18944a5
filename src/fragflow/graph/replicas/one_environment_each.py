"""Replicas that hold one environment: another program stands for theirs in the replica check.

JAX broadcasts an axis of length one where it would follow a longer one, so that the program for one
environment has other equations than that for two. So twice the environments are compared: all of
them, and two for each replica. What runs must be the same programs with half the length, apart from
broadcasts and reshapes, whose entries are compared one by one; the probe tries them besides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Literal,
    bind,
    called_by,
    component_of,
    programs_in,
    scan_of,
    source_line,
)
from fragflow.errors import ReplicaError
from fragflow.graph.fragment_extent import Axis
from fragflow.graph.replicas.constants import constant_kind
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.graph.replicas.rule_guards import same_parameters
from fragflow.graph.tracing.trace import Tracer

WRITTEN_OTHERWISE = ("broadcast_in_dim", "reshape")
"""primitives that JAX itself adds or leaves out for one row, in gradients and indices"""
TWICE = (2, 1)
TRIED = ("gather", "scatter", "scatter-add")
"""primitives that JAX writes differently for one row, without the axis: compared by numbers"""
TRIALS = 3


@dataclass(frozen=True, eq=False)
class _View:
    """A value as entries of another one, which an equation made, or of a constant."""

    root: int | tuple[Any]
    """a number that is the same in all programs, or a constant in a tuple"""
    shape: tuple[int, ...]
    """the root's"""
    steps: tuple[Eqn, ...] = ()
    """broadcasts and reshapes"""


_Views = dict[Any, _View]


def check_stands_for(source: Tracer, axis: Axis) -> None:
    """Refuses programs for which the compared ones do not stand."""
    twice, runs = axis.extents, (source.extent, axis.replica)
    programs = [source.at(extent).closed for extent in (*twice, *runs)]
    _Comparison(axis).programs(programs, [{} for _ in programs])


class _Comparison:
    """Reads four programs side by side: the whole and a replica, at twice the size and as run."""

    def __init__(self, axis: Axis):
        self._axis = axis
        self._line: str = ""
        self._made = 0

    def programs(
        self, closed: Sequence[ClosedJaxpr], views: Sequence[_Views], are_called: bool = False
    ) -> None:
        """Compares programs; called ones have known inputs, and results as they are inside."""
        for program, known in zip(closed, views, strict=True):
            # Some programs get their constants as operands.
            for variable, value in zip(program.jaxpr.constvars, program.consts, strict=False):
                known[variable] = _View((value,), np.shape(value))
        self._name([p.jaxpr.constvars[len(p.consts) :] for p in closed], views)
        if not are_called:
            self._name([p.jaxpr.invars for p in closed], views)
        rows = zip_longest(*(_kept(c, v) for c, v in zip(closed, views, strict=True)))
        for eqns in rows:
            found = [eqn for eqn in eqns if eqn is not None]
            lines = (line for line in map(source_line, found) if line)
            self._line = next(lines, self._line)
            names = ["nothing" if eqn is None else eqn.primitive.name for eqn in eqns]
            if len(set(names)) > 1:
                self._refuse(f"it is {names[3]} with one, {names[1]} with two")
            if (component_of(eqns[0]) or "").startswith("environment."):
                self._equations(eqns, views, is_read=False)
            elif all(called_by(eqn) for eqn in eqns):
                self._calls(eqns, views)
            else:
                self._equations(eqns, views)
        why = self._operands([program.jaxpr.outvars for program in closed], views)
        if why and not are_called:
            self._refuse(why)

    def _calls(self, eqns: Sequence[Eqn], views: Sequence[_Views]) -> None:
        """Compares calls as if they were inlined: JAX's functions give one row another shape."""
        called = [closed for eqn in eqns if (closed := called_by(eqn)) is not None]
        within = [
            {x: _view(v, known) for x, v in zip(c.jaxpr.invars, eqn.invars, strict=True)}
            for c, eqn, known in zip(called, eqns, views, strict=True)
        ]
        if len({len(eqn.invars) for eqn in eqns}) > 1 or len({len(e.outvars) for e in eqns}) > 1:
            self._refuse("it has other operands or results")
        self.programs(called, within, are_called=True)
        for c, eqn, inner, known in zip(called, eqns, within, views, strict=True):
            for v, x in zip(eqn.outvars, c.jaxpr.outvars, strict=True):
                known[v] = _view(x, inner)

    def _equations(
        self, eqns: Sequence[Eqn], views: Sequence[_Views], is_read: bool = True
    ) -> None:
        why = self._operands([eqn.invars for eqn in eqns], views)
        for two, one in ((eqns[0], eqns[2]), (eqns[1], eqns[3])):
            why = why or _other_equation(two, one)
        if why and not (
            eqns[1].primitive.name in TRIED
            and not _other_equation(eqns[0], eqns[2])
            and _same_by_numbers(eqns[1], eqns[3], views[1], views[3])
        ):
            self._refuse(why)
        if is_read:
            for inner in zip_longest(*(programs_in(eqn) for eqn in eqns)):
                if any(program is None for program in inner):
                    self._refuse("it has other programs inside")
                self.programs(inner, [{} for _ in inner])
        self._name([eqn.outvars for eqn in eqns], views)
        for two, one, known in ((eqns[0], eqns[2], views[2]), (eqns[1], eqns[3], views[3])):
            shape = _sum_of_one_row(two, one)
            if shape is not None:
                known[one.outvars[0]] = _View(self._made, shape, (one,))

    def _name(self, variables: Sequence[Sequence[Any]], views: Sequence[_Views]) -> None:
        if len({len(all_) for all_ in variables}) > 1:
            self._refuse("it has another number of results")
        for same in zip(*variables, strict=True):
            self._made += 1
            for variable, known in zip(same, views, strict=True):
                known[variable] = _View(self._made, variable.aval.shape)

    def _operands(self, variables: Sequence[Sequence[Any]], views: Sequence[_Views]) -> str:
        """Refuses operands of other values; returns a reason if only their entries differ."""
        why = ""
        if len({len(all_) for all_ in variables}) > 1:
            self._refuse("it has another number of operands")
        for same in zip(*variables, strict=True):
            found = [_view(v, known) for v, known in zip(same, views, strict=True)]
            roots = [view.root for view in found]
            constants = [root[0] for root in roots if isinstance(root, tuple)]
            if len(constants) == len(roots):
                self._constants(constants)
            elif constants or len(set(roots)) > 1:
                self._refuse("it reads other values")
            for two, one in ((0, 2), (1, 3)):
                if not _same_entries(found[two], same[two], found[one], same[one]):
                    why = "it reads other entries of a value"
        return why

    def _constants(self, values: Sequence[Any]) -> None:
        """Refuses constants that are not all related to their half in one way, for any size."""
        pairs = ((0, 1, self._axis.sizes), (0, 2, TWICE), (1, 3, TWICE))
        kinds = [constant_kind(values[i], values[j], sizes) for i, j, sizes in pairs]
        if any(k.tag is Tag.MIXED for k in kinds) or len({_facts(k) for k in kinds}) > 1:
            self._refuse("a constant is another one than with two")

    def _refuse(self, why: str) -> None:
        what = "agent" if self._axis.over == "agents" else "environment"
        raise ReplicaError(
            f"with one {what} for each replica, the program differs from that with two (at "
            f"{self._line}: {why}), and only the one with two can be shown to compute what the "
            f"undivided one does: give every replica two {what}s, or write it so that it does not "
            "depend on their number"
        )


def _kept(closed: ClosedJaxpr, views: _Views) -> Iterator[Eqn]:
    """Equations without broadcasts and reshapes, whose results become views."""
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name in WRITTEN_OTHERWISE and len(eqn.invars) == 1:
            seen = _view(eqn.invars[0], views)
            views[eqn.outvars[0]] = _View(seen.root, seen.shape, (*seen.steps, eqn))
        else:
            yield eqn


def _view(variable: Any, views: _Views) -> _View:
    if isinstance(variable, Literal):
        return _View((variable.val,), np.shape(variable.val))
    return views[variable]


def _facts(kind: Kind) -> tuple[Any, ...]:
    return (kind.tag, 0 if kind.zero else kind.degree, kind.axis, kind.inner)


def _halved(two: Sequence[int], one: Sequence[int]) -> list[int] | None:
    """Axes that are half as long; None if anything else differs."""
    if len(two) != len(one):
        return None
    sized = [i for i, (a, b) in enumerate(zip(two, one, strict=True)) if a != b]
    return sized if all(two[i] == 2 * one[i] for i in sized) and len(sized) <= 1 else None


def _other_equation(two: Eqn, one: Eqn) -> str:
    """The difference between both; empty if they are one equation, of half the length."""
    if _sum_of_one_row(two, one) is not None:
        return ""
    if _loop(two) != _loop(one) or not same_parameters(EqnPair(a=two, b=one, sizes=TWICE)):
        return "its parameters are others with one than with two"
    for a, b in zip(two.outvars, one.outvars, strict=True):
        if a.aval.dtype != b.aval.dtype or _halved(a.aval.shape, b.aval.shape) is None:
            return "its results have other shapes"
    return ""


def _same_by_numbers(two: Eqn, one: Eqn, of_two: _Views, of_one: _Views) -> bool:
    """True if `two` does to each of two rows what `one` does to it alone, for random numbers."""
    rng = np.random.default_rng(0)
    pairs = [
        (_view(a, of_two), _view(b, of_one), a.aval.dtype)
        for a, b in zip(two.invars, one.invars, strict=True)
    ]
    for _ in range(TRIALS):
        together: list[np.ndarray] = []
        alone: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for both, single, dtype in pairs:
            rows = _halved(both.shape, single.shape)
            if (
                rows is None
                or (rows and single.shape[rows[0]] != 1)
                or getattr(dtype, "kind", "") not in tuple("fiub")
            ):
                return False
            constant = both.root[0] if isinstance(both.root, tuple) else None
            drawn = np.asarray(constant) if constant is not None else _drawn(rng, both.shape, dtype)
            together.append(drawn.ravel()[_entries(both)])
            for row in range(2):
                own = drawn.take([row], rows[0]) if rows else drawn
                alone[row].append(own.ravel()[_entries(single)])
        results = bind(two, [jnp.asarray(x) for x in together])
        for row in range(2):
            for result, own in zip(
                results, bind(one, list(map(jnp.asarray, alone[row]))), strict=True
            ):
                rows = _halved(result.shape, own.shape)
                if not rows or own.shape[rows[0]] != 1:
                    return False
                if not np.array_equal(np.take(result, [row], rows[0]), own, equal_nan=True):
                    return False
    return True


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers; whole ones are small, since they are indices."""
    is_float = dtype.kind == "f"
    return (rng.normal(size=shape) if is_float else rng.integers(0, 2, shape)).astype(dtype)


def _loop(eqn: Eqn) -> tuple[Any, ...]:
    """A scan's numbers of operands, length and direction; empty for other equations."""
    return tuple(scan_of(eqn)[:-1]) if eqn.primitive.name == "scan" else ()


def _sum_of_one_row(two: Eqn, one: Eqn) -> tuple[int, ...] | None:
    """The shape of the sum `one` if taken along the axes of `two`; None if these are its own.

    For one row, JAX adds up along the row too, or leaves that out: a sum along one entry is that
    entry, in another shape.
    """
    if two.primitive.name != "reduce_sum" or two.primitive is not one.primitive:
        return None
    axes, more = (set(eqn.params["axes"]) for eqn in (two, one))
    shape = one.invars[0].aval.shape
    if axes == more or any(shape[i] != 1 for i in axes ^ more):
        return None
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _same_entries(two: _View, seen_two: Any, one: _View, seen_one: Any) -> bool:
    """True if both are the same entries of their roots: of each row its own."""
    if len(two.steps) == len(one.steps) and all(
        a.primitive is b.primitive and not _other_equation(a, b)
        for a, b in zip(two.steps, one.steps, strict=True)
    ):
        return True
    rows, out = _halved(two.shape, one.shape), _halved(seen_two.aval.shape, seen_one.aval.shape)
    if rows is None or out is None or (rows and one.shape[rows[0]] != 1):
        return False
    here, there = _entries(two), _entries(one)
    if out:
        if there.shape[out[0]] != 1 and rows:
            return False
        halves = np.split(here, 2, axis=out[0])
    else:
        halves = [here]
    if not rows:
        return all(np.array_equal(half, there) for half in halves)
    # The first half must be entries of the first row, the second half of the second, each in the
    # order of the program for one row.
    per_row = np.arange(int(np.prod(two.shape))).reshape(two.shape)
    row_of, place = np.empty(per_row.size, int), np.empty(per_row.size, int)
    for row in range(2):
        own = per_row.take([row], rows[0]).ravel()
        row_of[own], place[own] = row, np.arange(len(own))
    return len(halves) == 2 and all(
        bool(np.all(row_of[half] == row)) and np.array_equal(place[half], there)
        for row, half in enumerate(halves)
    )


def _entries(view: _View) -> np.ndarray:
    """The numbers of the root's entries that a view has."""
    found = np.arange(int(np.prod(view.shape)), dtype=np.int64).reshape(view.shape)
    for eqn in view.steps:
        shape = eqn.outvars[0].aval.shape
        if eqn.primitive.name != "broadcast_in_dim":
            found = found.reshape(shape)
        else:
            axes = eqn.params["broadcast_dimensions"]
            lengths = [1] * len(shape)
            for axis, length in zip(axes, found.shape, strict=True):
                lengths[axis] = length
            found = np.broadcast_to(found.reshape(lengths), shape)
    return found
