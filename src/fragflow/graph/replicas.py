"""Abstract interpretation of a jaxpr for replicas: uniform, varying, partial or mixed.

Two traces of the same program, with different numbers of environments, are read side by side: a
dimension or a literal that differs is one that depends on that number. The environment axis is
inherited from inputs that have it and followed through every operation, never guessed from sizes.
The agents' axis is followed in the same way, from traces with different numbers of agents; it comes
from the environment's component.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np

from fragflow._jax import (
    CALLS,
    ClosedJaxpr,
    Eqn,
    Jaxpr,
    Literal,
    branches_of,
    called_by,
    closed_jaxpr,
    component_of,
    scan_of,
    source_line,
    while_of,
)
from fragflow.errors import TraceError
from fragflow.graph.extent import Axis
from fragflow.graph.kinds import UNIFORM, ZERO, Kind, Tag, first_mixed, join, mixed, varying
from fragflow.graph.pair import Pair, sized_dims
from fragflow.graph.replica_index_rules import INDEX_RULES
from fragflow.graph.replica_rules import RULES, unknown_primitive


def constant_kind(a: Any, b: Any, sizes: tuple[int, int]) -> Kind:
    """The kind of a literal or a closed-over array."""
    try:
        x, y = np.asarray(a), np.asarray(b)
    except TypeError:  # random keys
        return UNIFORM
    where = "a constant of the algorithm"
    if x.shape != y.shape:
        axes = [i for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=False)) if m != n]
        if x.ndim == y.ndim and len(axes) == 1:
            one_x, one_y = x.take([0], axes[0]), y.take([0], axes[0])
            if (x == one_x).all() and (y == one_y).all() and (one_x == one_y).all():
                return varying(axes[0], flexible=True, zero=not x.any())
        return mixed("differs from environment to environment by its position", where)
    if x.dtype == object or np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
        return ZERO if x.dtype != object and not x.any() else UNIFORM
    if x.ndim == 0 and x != 0 and y != 0:
        ratio = Fraction(*sizes)
        for degree in (1, -1):
            if np.isclose(float(x) / float(y), float(ratio**degree), rtol=1e-5):
                return replace(UNIFORM, degree=degree)
    return mixed("depends on how many environments a replica holds", where)


_known: WeakKeyDictionary[Any, dict[Any, tuple[Kind, ...]]] = WeakKeyDictionary()
"""by a jaxpr, what was found of it: functions are called, and programs cut, more than once"""


def analyse(
    a: ClosedJaxpr | Jaxpr, b: ClosedJaxpr | Jaxpr, kinds: Sequence[Kind], context: "Context"
) -> list[Kind]:
    """Kinds of the results of a jaxpr, given those of its inputs."""
    known = _known.setdefault(a, {})
    key = (None if b is a else b, *kinds, context)  # what refers to itself would be kept for ever
    if key not in known:
        known[key] = tuple(_analyse(closed_jaxpr(a), closed_jaxpr(b), kinds, context))
    return list(known[key])


def _analyse(
    a: ClosedJaxpr, b: ClosedJaxpr, kinds: Sequence[Kind], context: "Context"
) -> list[Kind]:
    env: dict[Any, Kind] = dict(zip(a.jaxpr.invars, kinds, strict=True))
    for variable, x, y in zip(a.jaxpr.constvars, a.consts, b.consts, strict=True):
        env[variable] = context.settle(constant_kind(x, y, context.sizes))
    _eqns(a.jaxpr, b.jaxpr, env, context)
    return [
        _read(env, x, y, context) for x, y in zip(a.jaxpr.outvars, b.jaxpr.outvars, strict=True)
    ]


def _read(env: dict[Any, Kind], a: Any, b: Any, context: "Context") -> Kind:
    if isinstance(a, Literal):
        return context.settle(constant_kind(a.val, b.val, context.sizes))
    return env[a]


def _eqns(a: Jaxpr, b: Jaxpr, env: dict[Any, Kind], context: "Context") -> None:
    for x, y in zip(a.eqns, b.eqns, strict=False):
        if x.primitive is not y.primitive:
            _refuse(x, context)
        kinds = [_read(env, i, j, context) for i, j in zip(x.invars, y.invars, strict=True)]
        env.update(zip(x.outvars, context.apply(x, y, kinds), strict=True))

    if len(a.eqns) != len(b.eqns):
        longer = max(a, b, key=lambda jaxpr: len(jaxpr.eqns)).eqns
        # What JAX adds by itself has no line.
        _refuse(next((e for e in reversed(longer) if source_line(e)), longer[-1]), context)


def _refuse(eqn: Eqn, context: "Context") -> NoReturn:
    line = source_line(eqn)
    where = f"at {line} " if line else ""
    if context.axis.over == "agents":
        raise TraceError(
            f"what happens {where}depends on how many agents are here, so that they cannot be "
            "divided. Only shapes may depend on it."
        )
    raise TraceError(
        f"what happens {where}depends on num_envs: it differs between "
        f"{context.sizes[0]} and {context.sizes[1]} environments. Only shapes may depend on it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How to read equations: along which axis, and whether a replica holds all of it."""

    axis: Axis
    whole: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        return self.axis.sizes

    def settle(self, kind: Kind) -> Kind:
        """With all environments here, a sum is a sum and nothing is partial or mixed."""
        if not self.whole or (kind.tag in (Tag.UNIFORM, Tag.VARYING) and kind.degree == 0):
            return kind
        if kind.tag is Tag.VARYING:
            return replace(kind, degree=0)
        return UNIFORM

    def apply(self, a: Eqn, b: Eqn, kinds: Sequence[Kind]) -> list[Kind]:
        """Kinds of an equation's results."""
        pair = Pair(a=a, b=b, sizes=self.sizes, teams=self.axis.teams)
        if self.axis.over == "environments":
            return self._results(pair, kinds)
        if (component_of(a) or "").startswith("environment"):
            return self.of_all_agents(a, b)
        results = self._results(pair, kinds)
        if not self.whole:
            return results
        # Where all agents are, any axis as long as theirs can be cut for those who have some.
        made = self.of_all_agents(a, b)
        return [m if k.tag is Tag.UNIFORM else k for k, m in zip(results, made, strict=True)]

    def of_all_agents(self, a: Eqn | Jaxpr, b: Eqn | Jaxpr) -> list[Kind]:
        """Kinds of results that are made for all agents at once, as an environment does."""
        return [self._by_length(x.aval, y.aval) for x, y in zip(a.outvars, b.outvars, strict=True)]

    def _by_length(self, a: Any, b: Any) -> Kind:
        sized, teams = sized_dims(a, b), self.axis.teams
        if len(sized) != 1:
            return UNIFORM
        long, length = a.shape[sized[0]], b.shape[sized[0]]
        is_joint = len(teams) > 1 and length == sum(teams)
        grows = long * self.sizes[1] == length * self.sizes[0]
        if not grows or not (is_joint or length in teams):
            return UNIFORM
        return varying(sized[0], inner=length // self.sizes[1], joint=is_joint)

    def _results(self, pair: Pair, kinds: Sequence[Kind]) -> list[Kind]:
        a = pair.a
        if self.whole and any(_is_sized_uniform(pair, i, k) for i, k in enumerate(kinds)):
            # Made from all environments at once: it stays here, and so does what is made from it.
            return [UNIFORM] * len(a.outvars)
        higher = HIGHER_ORDER.get(pair.name)
        if higher is not None:
            return [self.settle(k) for k in higher(pair, tuple(kinds), self)]
        bad = first_mixed(tuple(kinds))
        if bad is not None:
            return [bad] * len(a.outvars)
        rule = RULES.get(pair.name) or INDEX_RULES.get(pair.name, unknown_primitive)
        result = rule(pair, tuple(kinds))
        results = result if isinstance(result, list) else [result] * len(a.outvars)
        return [self.settle(k) for k in results]


def _is_sized_uniform(pair: Pair, position: int, kind: Kind) -> bool:
    return kind.tag is Tag.UNIFORM and bool(pair.input_sized(position))


def _call(pair: Pair, kinds: tuple[Kind, ...], context: Context) -> list[Kind]:
    a, b = called_by(pair.a), called_by(pair.b)
    assert a is not None
    assert b is not None
    results = analyse(a, b, kinds, context)
    # Inside a library's function there may be no line of the user's: then it is the call's.
    return [k if k.line or not k.reason else replace(k, line=pair.line) for k in results]


def _fixpoint(first: list[Kind], step: Any, line: str) -> list[Kind]:
    """Least carry kinds that a loop's body preserves."""
    carry = first
    while True:
        after = [join(c, n, line) or UNIFORM for c, n in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _scan(pair: Pair, kinds: tuple[Kind, ...], context: Context) -> list[Kind]:
    scan = scan_of(pair.a)
    consts, count = scan.consts, scan.carries
    if count == 0 and _is_row_map(kinds[:consts], kinds[consts:]):
        return [varying(0) for _ in pair.a.outvars]
    slices = [step_kind(k, pair.line) for k in kinds[consts + count :]]
    a, b = scan.body, scan_of(pair.b).body

    def body(carry: list[Kind]) -> list[Kind]:
        return analyse(a, b, [*kinds[:consts], *carry, *slices], context)

    first = list(kinds[consts : consts + count])
    carry = _fixpoint(first, lambda c: body(c)[:count], pair.line)
    return [*carry, *(stack_kind(k) for k in body(carry)[count:])]


def _is_row_map(consts: Sequence[Kind], slices: Sequence[Kind]) -> bool:
    """Whether a loop without carries does one environment after the other, each by itself."""
    return (
        bool(slices)
        and all(k.tag is Tag.UNIFORM and k.degree == 0 for k in consts)
        and all(k.is_cuttable and (k.axis, k.inner, k.degree) == (0, 1, 0) for k in slices)
    )


def _while(pair: Pair, kinds: tuple[Kind, ...], context: Context) -> list[Kind]:
    loop, other = while_of(pair.a), while_of(pair.b)
    test_consts, consts = loop.test_consts, loop.consts
    body_args = kinds[test_consts : test_consts + consts]

    def body(carry: list[Kind]) -> list[Kind]:
        return analyse(loop.body, other.body, [*body_args, *carry], context)

    carry = _fixpoint(list(kinds[test_consts + consts :]), body, pair.line)
    test = analyse(loop.test, other.test, [*kinds[:test_consts], *carry], context)[0]
    if test.tag is not Tag.UNIFORM:
        return [
            mixed("is computed by a loop whose length differs from replica to replica", pair.line)
            for _ in carry
        ]
    return carry


def _cond(pair: Pair, kinds: tuple[Kind, ...], context: Context) -> list[Kind]:
    if kinds[0].tag is not Tag.UNIFORM:
        reason = "is chosen by a condition that differs from replica to replica"
        return [mixed(reason, pair.line) for _ in pair.a.outvars]
    results: list[Kind | None] = [None] * len(pair.a.outvars)
    for a, b in zip(branches_of(pair.a), branches_of(pair.b), strict=True):
        branch = analyse(a, b, kinds[1:], context)
        results = [join(r, k, pair.line) for r, k in zip(results, branch, strict=True)]
    return [r or UNIFORM for r in results]


def step_kind(kind: Kind, line: str) -> Kind:
    """The kind of one step's slice of a value."""
    if kind.tag is not Tag.VARYING:
        return kind
    if kind.axis == 0:
        return mixed("is made by a loop over the environment axis", line)
    return replace(kind, axis=kind.axis - 1)


def stack_kind(kind: Kind) -> Kind:
    """The kind of values collected along a new first axis."""
    return replace(kind, axis=kind.axis + 1) if kind.tag is Tag.VARYING else kind


HIGHER_ORDER = {
    **dict.fromkeys(CALLS, _call),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
