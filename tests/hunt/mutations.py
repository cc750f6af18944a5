"""Holes made on purpose: a rule of the analysis without one of the things that it refuses.

The hunt is as good as what it would find. A rule is replaced by one that lets one kind of operand
through where the right one says that nothing is known of the result: as if that restriction had
been forgotten.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fragflow.graph.replicas import interpret
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.graph.replicas.rules.table import _TABLE as TABLE

Test = Callable[[Kind], bool]

PROOFS = {"partial sums": "linear", "partial maxima": "monotone", "counts": "homogeneous"}
"""by what may not enter a primitive, the column of the table that would let it"""
OPERANDS: dict[str, Test] = {
    "partial sums": lambda k: k.tag is Tag.PARTIAL and k.reduction == "sum",
    "partial maxima": lambda k: k.tag is Tag.PARTIAL and k.reduction != "sum",
    "counts": lambda k: k.tag is Tag.UNIFORM and k.degree != 0 and not k.zero,
    "rows": lambda k: k.tag is Tag.VARYING,
}
KEEP_SHAPES = ("sort", "cumsum", "cumprod", "cummax", "rev", "gather", "scatter")
"""what may mix rows without a result of another shape, which every rule's guard would see"""

NO_HOLES = {
    ("abs", "counts"): "|c x| = c |x|",
    ("sort", "counts"): "c x is in the order of x",
    **{
        (name, "partial maxima"): "it does not change the order of numbers"
        for name in ("exp", "floor", "sign", "tanh")
    },
}
"""restrictions that are not needed, and why: what they refuse would be right"""


def ruled() -> list[str]:
    """Primitives that have a rule of their own."""
    names = {name for name, entry in TABLE.items() if entry.rule is not None}
    return sorted(names - {"all_reduce", "host_call", "host_program"})


def restrictions(primitive: str) -> list[str]:
    """Kinds of operands that a primitive's rule refuses, or treats with care."""
    entry = TABLE[primitive]
    found = [what for what, proof in PROOFS.items() if not getattr(entry, proof)]
    found += ["rows"] if primitive in KEEP_SHAPES else []
    return [what for what in found if (primitive, what) not in NO_HOLES]


def _without_refusals(
    rule: Callable[..., Any], is_let_in: Test
) -> Callable[[EqnPair, Sequence[Kind]], Any]:
    def lax(pair: EqnPair, kinds: Sequence[Kind]) -> Any:
        result = rule(pair, kinds)
        results = result if isinstance(result, list) else [result] * len(pair.a.outvars)
        return [_let_through(kinds, k, is_let_in) for k in results]

    return lax


def _let_through(kinds: Sequence[Kind], result: Kind, is_let_in: Test) -> Kind:
    """The kind of the operand, with its axis as it was."""
    if result.tag is not Tag.MIXED:
        return result
    return next((replace(k, zero=False) for k in kinds if is_let_in(k)), result)


@contextmanager
def unrestricted(primitive: str, what: str) -> Iterator[None]:
    """The analysis without one restriction of one primitive's rule."""
    entry = TABLE[primitive]
    assert entry.rule is not None
    proofs = {PROOFS[what]: "removed"} if what in PROOFS else {}
    lax = replace(entry, rule=_without_refusals(entry.rule, OPERANDS[what]), **proofs)
    TABLE[primitive] = lax
    _forget()
    try:
        yield
    finally:
        TABLE[primitive] = entry
        _forget()


def _forget() -> None:
    """What was found of jaxprs with other rules: those of library functions are met again."""
    interpret._known.clear()
