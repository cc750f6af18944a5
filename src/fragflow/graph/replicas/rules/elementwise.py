"""Operations that work entry by entry, and what they make of partial values and of degrees."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np

from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import (
    COUNT,
    LOCAL,
    PAIRS,
    UNIFORM,
    Kind,
    Tag,
    aligned,
    common_degree,
    mixed,
    together,
    varying,
)

Kinds = tuple[Kind, ...]
Rule = Callable[[EqnPair, Kinds], Kind | list[Kind]]

UNARY = frozenset(("neg", "convert_element_type", "copy", "copy_p", "name", "real", "imag", "conj"))
"""linear functions of one value"""
SUMS = frozenset(("add", "sub", "add_any"))
_OPPOSITE = {"max": "min", "min": "max"}


def layout_of(pair: EqnPair, kinds: Kinds) -> Kind | None:
    """The varying operands' common layout; a mixed kind if they differ, None if there are none."""
    found = [k for k in kinds if k.tag is Tag.VARYING]
    if not found:
        return None
    firm = next((k for k in found if not k.flexible), found[0])
    if not all(k.axis == firm.axis and aligned(firm, k) for k in found):
        return mixed(PAIRS, pair.line)
    return firm


def elementwise(pair: EqnPair, kinds: Kinds) -> Kind:
    rows = [k for k in kinds if k.tag is Tag.ROW]
    if rows:
        return _of_row_numbers(pair, kinds, rows[0])
    layout = layout_of(pair, kinds)
    parts = [k for k in kinds if k.tag is Tag.PARTIAL]
    if layout is not None and layout.tag is Tag.MIXED:
        return layout
    if parts and layout is not None:
        return mixed(LOCAL, parts[0].line)
    if parts:
        return _of_partials(pair, kinds, parts)
    degree = _combined_degree(pair.name, kinds)
    if degree is None:
        return mixed(COUNT, pair.line)
    zero = _is_zero(pair.name, kinds)
    if layout is None:
        return replace(UNIFORM, degree=degree, zero=zero)
    flexible = all(k.flexible or k.tag is Tag.UNIFORM for k in kinds)
    return replace(layout, degree=degree, flexible=flexible, zero=zero)


def _of_row_numbers(pair: EqnPair, kinds: Kinds, row: Kind) -> Kind:
    """Kinds made of row numbers: JAX asks of every index if it is negative, and these are not."""
    if pair.name in ("convert_element_type", "copy"):
        new = pair.a.outvars[0].aval.dtype
        stays = new.kind in "iu" and np.iinfo(new).max >= pair.sizes[0] - 1
        return row if stays else mixed(row.reason, row.line)
    if pair.name == "lt" and kinds[0] is row and kinds[1].zero and row.column < 0:
        return varying(row.axis, flexible=True, zero=True)
    return mixed(row.reason, row.line)


def _combined_degree(name: str, kinds: Kinds) -> int | None:
    if not any(k.degree for k in kinds if not k.zero) or _is_zero(name, kinds):
        return 0
    if name == "mul":
        return sum(k.degree for k in kinds)
    if name == "div":
        return kinds[0].degree - kinds[1].degree
    if name == "select_n":
        return None if kinds[0].degree else common_degree(kinds[1:])
    return common_degree(kinds)


def _is_zero(name: str, kinds: Kinds) -> bool:
    if name == "mul":  # but zero times what is not finite is NaN
        return any(k.zero and (o.zero or _is_finite(o)) for k, o in permutations(kinds, 2))
    if name == "div":
        return kinds[0].zero and not kinds[1].zero and _is_finite(kinds[1])
    if name in SUMS or name in UNARY:
        return all(k.zero for k in kinds)
    return name == "select_n" and all(k.zero for k in kinds[1:])


def _is_finite(kind: Kind) -> bool:
    """True if it is known to be a finite number."""
    return kind.values is not None and all(math.isfinite(value) for value in kind.values)


def _of_partials(pair: EqnPair, kinds: Kinds, parts: list[Kind]) -> Kind:
    """A function of partial values: fine if it commutes with the reduction that must follow."""
    name, part = pair.name, parts[0]
    refused = mixed(LOCAL, part.line)
    if len({k.reduction for k in parts}) > 1:
        return refused
    if name in UNARY:
        turns = name == "neg" and part.reduction != "sum"
        return replace(part, reduction=_OPPOSITE[part.reduction]) if turns else part
    if name == "select_n":
        if kinds[0].tag is not Tag.UNIFORM or kinds[0].degree:
            return refused
        return together(kinds[1:], pair.line)
    if part.reduction == "sum":
        if name in SUMS or name == "complex":
            return together(kinds, pair.line)
        if name == "mul" and len(parts) == 1:
            return replace(part, degree=sum(k.degree for k in kinds))
        if name == "div" and len(parts) == 1 and kinds[0].tag is Tag.PARTIAL:
            return replace(part, degree=kinds[0].degree - kinds[1].degree)
        return refused
    # max(x) + u = max(x + u), but max(x) + max(y) is not max(x + y).
    if name == part.reduction:
        return together(kinds, pair.line)
    if name in SUMS and len(parts) == 1:
        met = together(kinds, pair.line)
        turns = name == "sub" and kinds[1].tag is Tag.PARTIAL and met.tag is Tag.PARTIAL
        return replace(met, reduction=_OPPOSITE[met.reduction]) if turns else met
    return refused
