"""Abstract interpretation of a jaxpr for replicas: uniform, varying, partial or mixed.

The program of the whole and that of a replica are read side by side, equation by equation. Where
they are one program, but for lengths along the environment axis, a rule says what its result is;
what differs otherwise is mixed. The environment axis is inherited from inputs that have it and
followed through every operation, never guessed from sizes. The agents' axis is followed in the same
way; it comes from the environment's component. docs/soundness.md says what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Jaxpr,
    Literal,
    called_by,
    calls_back,
    closed_jaxpr,
    component_of,
    contains_all_reduce,
    draws_together,
    inner_jaxprs,
    source_line,
)
from fragflow.api.rows import row_call
from fragflow.graph.fragment_extent import Axis
from fragflow.graph.replicas.constants import constant_kind, folded
from fragflow.graph.replicas.eqn_pair import EqnPair, sized_dims
from fragflow.graph.replicas.judge_by_batching import batched
from fragflow.graph.replicas.kinds import (
    CONSTANT,
    OUTSIDE,
    STRUCTURE,
    UNIFORM,
    Kind,
    Tag,
    aligned,
    first_mixed,
    mixed,
    varying,
)
from fragflow.graph.replicas.rule_guards import (
    is_function,
    postcondition,
    precondition,
    same_parameters,
    well_formed,
    with_digits,
)
from fragflow.graph.replicas.rules.table import TABLE

_known: WeakKeyDictionary[Any, dict[Any, tuple[Kind, ...]]] = WeakKeyDictionary()
"""by jaxpr, the kinds found of it: functions are called, and programs cut, more than once"""


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
    count = len(a.jaxpr.outvars)
    inputs, others = a.jaxpr.invars, b.jaxpr.invars
    if (len(inputs), len(a.consts), count) != (len(others), len(b.consts), len(b.jaxpr.outvars)):
        return [context.settle(mixed(STRUCTURE, _some_line(a.jaxpr)))] * count
    env: dict[Any, Kind] = dict(zip(inputs, kinds, strict=True))
    twins: dict[Any, Any] = dict(zip(inputs, others, strict=True))
    for variable, other, x, y in zip(
        a.jaxpr.constvars, b.jaxpr.constvars, a.consts, b.consts, strict=True
    ):
        twins[variable] = other
        env[variable] = context.settle(constant_kind(x, y, context.sizes))
    line = _eqns(a.jaxpr, b.jaxpr, env, twins, context)

    def result(x: Any, y: Any) -> Kind:
        if are_twins(x, y, twins):
            return _read(env, x, y, context)
        return context.settle(mixed(STRUCTURE, line or _some_line(a.jaxpr)))

    return [result(x, y) for x, y in zip(a.jaxpr.outvars, b.jaxpr.outvars, strict=True)]


def are_twins(a: Any, b: Any, twins: dict[Any, Any]) -> bool:
    """True if both traces mean the same value: literals, or results of the same equation."""
    if isinstance(a, Literal) or isinstance(b, Literal):
        return isinstance(a, Literal) and isinstance(b, Literal)
    return a in twins and twins[a] is b


def _read(env: dict[Any, Kind], a: Any, b: Any, context: "Context") -> Kind:
    if isinstance(a, Literal):
        return context.settle(constant_kind(a.val, b.val, context.sizes))
    return env[a]


def _eqns(
    a: Jaxpr, b: Jaxpr, env: dict[Any, Kind], twins: dict[Any, Any], context: "Context"
) -> str:
    """Fills `env` as far as both are one program; returns the line where they part, or ''."""
    for x, y in zip(a.eqns, b.eqns, strict=False):
        shape, other = (len(x.invars), len(x.outvars)), (len(y.invars), len(y.outvars))
        if x.primitive is not y.primitive or shape != other:
            return source_line(x) or _some_line(a)
        wired = all(are_twins(i, j, twins) for i, j in zip(x.invars, y.invars, strict=True))
        twins.update(zip(x.outvars, y.outvars, strict=True))
        if wired:
            kinds = [_read(env, i, j, context) for i, j in zip(x.invars, y.invars, strict=True)]
            results = context.apply(x, y, kinds)
        else:
            results = [context.settle(mixed(STRUCTURE, source_line(x)))] * len(x.outvars)
        env.update(zip(x.outvars, results, strict=True))
    if len(a.eqns) == len(b.eqns):
        return ""
    return _some_line(max(a, b, key=lambda jaxpr: len(jaxpr.eqns)))


def _some_line(jaxpr: Jaxpr) -> str:
    """The user's last line in a program; equations that JAX adds by itself have none."""
    return next((line for e in reversed(jaxpr.eqns) if (line := source_line(e))), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The way to read equations: along `axis`, and as `whole` if a replica holds all of it."""

    axis: Axis
    whole: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        return self.axis.sizes

    def settle(self, kind: Kind) -> Kind:
        """`kind` as it is here: with all environments, sums are final, and nothing is mixed."""
        if not self.whole or (kind.tag in (Tag.UNIFORM, Tag.VARYING) and kind.degree == 0):
            return kind
        if kind.tag is Tag.VARYING:
            return replace(kind, degree=0)
        return UNIFORM

    def apply(self, a: Eqn, b: Eqn, kinds: Sequence[Kind]) -> list[Kind]:
        """Kinds of an equation's results."""
        pair = EqnPair(a=a, b=b, sizes=self.sizes, teams=self.axis.teams)
        if self.axis.over == "environments":
            return self._results(pair, tuple(kinds))
        if (component_of(a) or "").startswith("environment."):
            return self.of_all_agents(a, b)
        results = self._results(pair, tuple(kinds))
        if not self.whole:
            return results
        # A fragment that holds all agents may scatter any axis of their length to those with some.
        made = self.of_all_agents(a, b)
        return [m if k.tag is Tag.UNIFORM else k for k, m in zip(results, made, strict=True)]

    def of_all_agents(self, a: Eqn | Jaxpr, b: Eqn | Jaxpr) -> list[Kind]:
        """Kinds of results that are made for all agents at once, as an environment does."""
        return [self._by_length(x.aval, y.aval) for x, y in zip(a.outvars, b.outvars, strict=True)]

    def _by_length(self, a: Any, b: Any) -> Kind:
        sized, teams = sized_dims(a, b), self.axis.teams
        if len(sized) != 1:
            return UNIFORM
        length = b.shape[sized[0]]
        is_joint = len(teams) > 1 and length == sum(teams)
        if not (is_joint or length in teams):
            return UNIFORM
        kind = varying(sized[0], inner=length // self.sizes[1], joint=is_joint)
        return kind if well_formed(kind, a, b, self.sizes) else UNIFORM

    def _results(self, pair: EqnPair, kinds: tuple[Kind, ...]) -> list[Kind]:
        if self.whole:
            return self._of_all(pair, kinds)
        is_stand_in = self.axis.is_stood_for
        known = folded(pair, kinds, self.sizes, is_stand_in) or self._by_construction(pair, kinds)
        if known is not None:
            return known
        entry = TABLE.get(pair.name)
        if entry is not None and entry.opened is not None:
            if not same_parameters(pair):
                return [mixed(STRUCTURE, pair.line)] * len(pair.a.outvars)
            results = entry.opened(pair, kinds, self.walk)
            if called_by(pair.a) is None:
                results = [replace(k, values=None) for k in results]
            return postcondition(pair, results)
        return postcondition(pair, with_digits(pair, kinds, _by_rule(pair, kinds)))

    def walk(self, a: ClosedJaxpr, b: ClosedJaxpr, kinds: Sequence[Kind]) -> list[Kind]:
        return analyse(a, b, kinds, self)

    def _of_all(self, pair: EqnPair, kinds: tuple[Kind, ...]) -> list[Kind]:
        """Kinds of results on one replica with all environments: axes are followed, not compared.

        What it sends to replicas is cut along these axes, so any value of the right shape will do.
        """
        if any(k.tag is Tag.UNIFORM and pair.input_sized(i) for i, k in enumerate(kinds)):
            # Made from all environments at once: it stays here, and so does what is made from it.
            return [UNIFORM] * len(pair.a.outvars)
        known = self._by_construction(pair, kinds)
        entry = TABLE.get(pair.name)
        if known is not None:
            results = known
        elif entry is not None and entry.opened is not None:
            results = entry.opened(pair, kinds, self.walk)
        else:
            results = _by_rule(pair, kinds)
        return [
            self.settle(k) if well_formed(k, x.aval, y.aval, self.sizes) else UNIFORM
            for k, x, y in zip(results, pair.a.outvars, pair.b.outvars, strict=True)
        ]

    def _by_construction(self, pair: EqnPair, kinds: tuple[Kind, ...]) -> list[Kind] | None:
        """A marked vmap of one row's function: rows in, rows out; its inside is not read."""
        marked, other = row_call(pair.a), row_call(pair.b)
        if marked is None or marked != other or contains_all_reduce(pair.a):
            return None
        if marked.rows is None and not _same_operations(pair.a, pair.b):
            return None  # a batching rule has seen how many there are
        if draws_together(pair.a):
            return None  # vmapped, but not row by row
        if marked.rows is not None and calls_back(pair.a):
            return None  # callbacks look alike, whatever they do; environments promise to be by row
        for position, kind in enumerate(kinds):
            is_row = (
                kind.tag is Tag.VARYING
                and kind.axis == 0
                and aligned(kind, varying(0))
                and not kind.degree
                and (marked.rows is None or position in marked.rows)
            )
            if not is_row and not (kind.tag is Tag.UNIFORM and not kind.degree):
                return None
        rows = [varying(0)] * len(pair.a.outvars)
        fits = all(
            well_formed(k, x.aval, y.aval, self.sizes)
            for k, x, y in zip(rows, pair.a.outvars, pair.b.outvars, strict=True)
        )
        return rows if fits else None


def _same_operations(a: Eqn, b: Eqn) -> bool:
    """True if both are made of the same primitives, at any depth."""
    if a.primitive is not b.primitive:
        return False
    pairs = zip_longest(inner_jaxprs(a), inner_jaxprs(b))
    return all(
        x is not None
        and y is not None
        and len(x.eqns) == len(y.eqns)
        and all(map(_same_operations, x.eqns, y.eqns))
        for x, y in pairs
    )


def _by_rule(pair: EqnPair, kinds: tuple[Kind, ...]) -> list[Kind]:
    count = len(pair.a.outvars)
    if pair.name == "select_n" and kinds[0].zero:
        return [replace(kinds[1], values=None)]  # nothing of the other cases is taken
    bad = first_mixed(kinds)
    if bad is not None:
        line = pair.line if bad.line == CONSTANT else bad.line
        return [replace(bad, values=None, line=line)] * count
    if not is_function(pair.a):
        # It may count, draw, or know the number of environments: nothing can be proven of it.
        return [mixed(f"{OUTSIDE} {pair.name}", pair.line)] * count
    entry = TABLE.get(pair.name)
    if entry is None:
        return _without_rule(pair, kinds)
    refused = precondition(pair, kinds, entry)
    if refused is not None:
        return [refused] * count
    assert entry.rule is not None
    result = entry.rule(pair, kinds)
    results = result if isinstance(result, list) else [result] * count
    return [replace(k, values=None) for k in results]


def _without_rule(pair: EqnPair, kinds: tuple[Kind, ...]) -> list[Kind]:
    count = len(pair.a.outvars)
    if not same_parameters(pair):
        return [mixed(STRUCTURE, pair.line)] * count
    if all(k.tag is Tag.UNIFORM and not k.degree for k in kinds):
        return [UNIFORM] * count
    judged = batched(pair, kinds)
    if judged is not None:
        return judged
    reason = f"is made by {pair.name}, which the replica check does not know"
    return [mixed(reason, pair.line)] * count
