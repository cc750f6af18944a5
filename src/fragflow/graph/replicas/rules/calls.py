"""Rules for calls, loops and branches, which follow from the programs inside them.

Each reads these programs, of both traces, with `walk`, which finds the kinds of their results.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fragflow._jax import (
    ClosedJaxpr,
    branches_of,
    called_by,
    contains_all_reduce,
    linear_solve_of,
    scan_of,
    while_of,
)
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import (
    STRUCTURE,
    UNIFORM,
    Kind,
    Tag,
    aligned,
    first_mixed,
    join,
    mixed,
    varying,
)

Walk = Callable[[ClosedJaxpr, ClosedJaxpr, Sequence[Kind]], list[Kind]]
Kinds = tuple[Kind, ...]


def _all(kind: Kind, pair: EqnPair) -> list[Kind]:
    return [kind] * len(pair.a.outvars)


def call(pair: EqnPair, kinds: Kinds, walk: Walk) -> list[Kind]:
    a, b = called_by(pair.a), called_by(pair.b)
    assert a is not None
    assert b is not None
    # Inside a library's function there may be no line of the user's: then it is the call's.
    return [k if k.line or not k.reason else replace(k, line=pair.line) for k in walk(a, b, kinds)]


def _fixpoint(first: list[Kind], step: Any, line: str) -> list[Kind]:
    """Least carry kinds that a loop's body preserves."""
    carry = first
    while True:
        after = [join(c, n, line) or UNIFORM for c, n in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


DEGREES = (-1, 1)
"""degrees of means and of sums, which rows of zeros may be taken to have"""


def _settled(first: list[Kind], step: Any, line: str) -> list[Kind]:
    """Carry kinds that a loop's body preserves, with as much as is known of them.

    A zero is of any degree, but what is made of it is of one: the derivative of a loop begins with
    zeros, to which gradients of a mean are added after they have been multiplied. If they cannot
    be rows of degree 0, they are taken to be of another one, as zeros are.
    """
    carry = _fixpoint(first, step, line)
    for degree in DEGREES:
        if not _lost(first, carry):
            break
        assumed = [
            replace(k, degree=degree, zero=False) if k.zero and k.tag is Tag.VARYING else k
            for k in first
        ]
        if assumed == first:
            break
        other = _fixpoint(assumed, step, line)
        carry = carry if _lost(first, other) else other
    return carry


def _lost(first: Sequence[Kind], carry: Sequence[Kind]) -> bool:
    """True if a carry is mixed that was not so at first."""
    return any(c.tag is Tag.MIXED is not f.tag for f, c in zip(first, carry, strict=True))


def scan(pair: EqnPair, kinds: Kinds, walk: Walk) -> list[Kind]:
    loop, other = scan_of(pair.a), scan_of(pair.b)
    consts, count = loop.consts, loop.carries
    if (consts, count, loop.reverse) != (other.consts, other.carries, other.reverse):
        return _all(mixed(STRUCTURE, pair.line), pair)
    if count == 0 and _is_row_map(kinds[:consts], kinds[consts:]):
        return _row_map(pair, walk)
    if loop.length != other.length:
        return _all(mixed("is made by a loop over the environment axis", pair.line), pair)
    slices = [step_kind(k, pair.line) for k in kinds[consts + count :]]

    def body(carry: list[Kind]) -> list[Kind]:
        return walk(loop.body, other.body, [*kinds[:consts], *carry, *slices])

    def next_carry(carry: list[Kind]) -> list[Kind]:
        return body(carry)[:count]

    first = list(kinds[consts : consts + count])
    carry = _settled(first, next_carry, pair.line)
    return [*carry, *(stack_kind(k) for k in body(carry)[count:])]


def _is_row_map(consts: Sequence[Kind], slices: Sequence[Kind]) -> bool:
    """True if a loop without carries does one environment after the other, each by itself."""
    return (
        bool(slices)
        and all(k.tag is Tag.UNIFORM and k.degree == 0 for k in consts)
        and all(k.is_cuttable and (k.axis, k.inner, k.degree) == (0, 1, 0) for k in slices)
    )


def _row_map(pair: EqnPair, walk: Walk) -> list[Kind]:
    """Kinds for a loop over rows, whose work must be the same for every row of both traces."""
    a, b = scan_of(pair.a).body, scan_of(pair.b).body
    inner = walk(a, b, [UNIFORM] * len(pair.a.invars))
    bad = first_mixed(inner)
    if bad is None and not all(k.tag is Tag.UNIFORM and not k.degree for k in inner):
        bad = mixed(STRUCTURE, pair.line)
    if bad is None and any(contains_all_reduce(e) for e in a.jaxpr.eqns):
        bad = mixed("reduces over all environments in a loop over them", pair.line)
    return _all(varying(0) if bad is None else bad, pair)


def while_(pair: EqnPair, kinds: Kinds, walk: Walk) -> list[Kind]:
    loop, other = while_of(pair.a), while_of(pair.b)
    test_consts, consts = loop.test_consts, loop.consts
    if (test_consts, consts) != (other.test_consts, other.consts):
        return _all(mixed(STRUCTURE, pair.line), pair)
    body_args = kinds[test_consts : test_consts + consts]

    def body(carry: list[Kind]) -> list[Kind]:
        return walk(loop.body, other.body, [*body_args, *carry])

    carry = _fixpoint(list(kinds[test_consts + consts :]), body, pair.line)
    test = walk(loop.test, other.test, [*kinds[:test_consts], *carry])[0]
    if test.tag is Tag.UNIFORM and test.degree == 0:
        return carry
    if test.tag is Tag.VARYING and test.degree == 0 and _ends_by_row(pair, test, carry):
        return [replace(k, flexible=False, zero=False) if k.flexible else k for k in carry]
    bad = first_mixed((test, *carry))
    reason = "is computed by a loop whose length differs from replica to replica"
    return _all(bad or mixed(reason, pair.line), pair)


def _ends_by_row(pair: EqnPair, test: Kind, carry: list[Kind]) -> bool:
    """True if a loop was vmapped: its condition has rows, and each row ends by itself.

    By the primitive's own meaning, rows that have ended then keep their values. A condition for all
    rows together (any) does not count: how often a row changes would depend on others.
    """
    loop = while_of(pair.a)
    reduces = any(contains_all_reduce(e) for j in (loop.body, loop.test) for e in j.jaxpr.eqns)
    return not reduces and all(
        k.tag is Tag.VARYING and k.axis == test.axis and aligned(k, test) and aligned(test, k)
        for k in carry
    )


def cond(pair: EqnPair, kinds: Kinds, walk: Walk) -> list[Kind]:
    bad = first_mixed(kinds[:1])
    if kinds[0].tag is not Tag.UNIFORM or (kinds[0].degree and not kinds[0].zero):
        reason = "is chosen by a condition that differs from replica to replica"
        return _all(bad or mixed(reason, pair.line), pair)
    branches, others = branches_of(pair.a), branches_of(pair.b)
    if len(branches) != len(others):
        return _all(mixed(STRUCTURE, pair.line), pair)
    results: list[Kind | None] = [None] * len(pair.a.outvars)
    for a, b in zip(branches, others, strict=True):
        branch = walk(a, b, kinds[1:])
        results = [join(r, k, pair.line) for r, k in zip(results, branch, strict=True)]
    return [r or UNIFORM for r in results]


def linear_solve(pair: EqnPair, kinds: Kinds, walk: Walk) -> list[Kind]:
    """Kinds of a solution: only `solve` runs, the other functions are there for derivatives."""
    (a, used), (b, used_too) = linear_solve_of(pair.a), linear_solve_of(pair.b)
    # JAX lets a solution have other types than declared, and casts it.
    types = [v.aval.dtype for v in a.jaxpr.outvars] == [v.aval.dtype for v in pair.a.outvars]
    if used != used_too or not types:
        return _all(mixed(STRUCTURE, pair.line), pair)
    return walk(a, b, [kinds[i] for i in used])


def step_kind(kind: Kind, line: str) -> Kind:
    """The kind of one step's slice of a value."""
    if kind.tag is Tag.ROW:
        return (
            mixed(kind.reason, kind.line) if kind.axis == 0 else replace(kind, axis=kind.axis - 1)
        )
    if kind.tag is not Tag.VARYING:
        return kind
    if kind.axis == 0:
        return mixed("is made by a loop over the environment axis", line)
    return replace(kind, axis=kind.axis - 1)


def stack_kind(kind: Kind) -> Kind:
    """The kind of values collected along a new first axis."""
    if kind.tag not in (Tag.VARYING, Tag.ROW):
        return replace(kind, values=None)
    return replace(kind, axis=kind.axis + 1)
