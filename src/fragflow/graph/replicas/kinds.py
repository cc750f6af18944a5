"""Kinds of values that replicas hold: all the same, a row each, or a part of a sum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import jax.numpy as jnp

from fragflow._jax_typed import finfo

LOCAL = "is computed from one replica's environments only, before it is reduced over all of them"
COUNT = "depends on how many environments a replica holds"
STRUCTURE = (
    "depends on how many environments are here: with another number it is computed otherwise"
)
SIZED = "has a length that depends on how many environments a replica holds, but no row for each"
PAIRS = "pairs environments with one another"
SOMETIMES = "is sometimes one value per environment and sometimes not"
OUTSIDE = "is read from outside of the program, which no check can follow: by"
NEEDED = "is computed from all environments at once, but used where only some of them are"
SUM_AND_MEAN = "combines a sum and a mean over a replica's environments"

CONSTANT = "a constant of the algorithm"
"""the line of a value that has none, until one of the user's equations reads it"""
EXACT = 1 << 10
"""more binary digits than any float type has"""


class Tag(Enum):
    UNIFORM = "uniform"
    """the same on every replica, and on one that holds all environments"""
    VARYING = "varying"
    """has the environment axis: each replica holds the rows of its environments"""
    PARTIAL = "partial"
    """reduced over the replica's own environments, not yet over all"""
    ROW = "row"
    """the number of a row among those that are here: fine as the index of that row, else mixed"""
    MIXED = "mixed"
    """none of these: replicas would compute something other than one big batch"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A relation between a value of the undivided program and those of the replicas.

    docs/soundness.md says which; every rule must preserve it.
    """

    tag: Tag
    axis: int = -1
    """of a varying value: the axis that holds `outer * environments * inner` entries"""
    outer: int = 1
    inner: int = 1
    joint: bool = False
    """the agents of several teams, one team after the other: only a single team's can be cut"""
    flexible: bool = False
    """constant along the environment axis, so any `outer` and `inner` describe it"""
    degree: int = 0
    """the power of the number of environments here that it scales with: a sum 1, a mean 0"""
    reduction: str = "sum"
    """of a partial value: sum, max or min"""
    zero: bool = False
    column: int = -1
    """of indices made from row numbers: the column that these are; -1: the numbers alone"""
    values: tuple[Any, Any] | None = None
    """of a scalar that follows from constants alone: its values in the whole, and in a replica"""
    digits: int = EXACT
    """binary digits of the narrowest float type that its rows were in: rounding to no fewer loses
    nothing that was there"""
    reason: str = ""
    line: str = ""
    """the line that made it partial or mixed"""

    def __str__(self) -> str:
        match self.tag:
            case Tag.VARYING:
                return f"V{self.axis}" + (
                    f"({self.outer}·n·{self.inner})" if self.outer > 1 else ""
                )
            case Tag.PARTIAL:
                return f"P({self.reduction})"
            case Tag.MIXED:
                return "X"
            case Tag.ROW:
                return f"R{self.axis}"
            case Tag.UNIFORM:
                return "U"

    @property
    def layout(self) -> tuple[int, int, int, bool]:
        return (self.axis, self.outer, self.inner, self.joint)

    @property
    def is_cuttable(self) -> bool:
        """True if each replica's part is one contiguous piece along `axis`."""
        return self.tag is Tag.VARYING and not self.joint and (self.outer == 1 or self.flexible)


UNIFORM = Kind(tag=Tag.UNIFORM)
ZERO = Kind(tag=Tag.UNIFORM, zero=True)


def varying(axis: int, **fields: int | bool) -> Kind:
    return Kind(tag=Tag.VARYING, axis=axis, **fields)  # pyright: ignore[reportArgumentType]


def partial(line: str, degree: int = 1, reduction: str = "sum") -> Kind:
    return Kind(tag=Tag.PARTIAL, degree=degree, reduction=reduction, line=line)


def mixed(reason: str, line: str) -> Kind:
    return Kind(tag=Tag.MIXED, reason=reason, line=line)


def row_number(axis: int, reason: str, line: str) -> Kind:
    """The kind of rows' own numbers; `reason` refuses any use but as an index of the row itself."""
    return Kind(tag=Tag.ROW, axis=axis, reason=reason, line=line)


def first_mixed(kinds: Sequence[Kind]) -> Kind | None:
    return next((k for k in kinds if k.tag is Tag.MIXED), None)


def aligned(a: Kind, b: Kind) -> bool:
    """True if the entries of two environment axes are in the same order."""
    return a.flexible or b.flexible or (a.outer, a.inner, a.joint) == (b.outer, b.inner, b.joint)


def common_degree(kinds: Sequence[Kind]) -> int | None:
    """The degree of values that stand side by side, zeros having any; None if they differ."""
    degrees = {k.degree for k in kinds if not k.zero}
    if len(degrees) > 1:
        return None
    return degrees.pop() if degrees else 0


def join(a: Kind | None, b: Kind | None, line: str = "") -> Kind | None:
    """The kind of a value that is sometimes `a` and sometimes `b`; None is not known yet."""
    if a is None or b is None:
        return a or b
    return a if a == b else together((a, b), line)


def together(kinds: Sequence[Kind], line: str) -> Kind:
    """The kind of a value whose entries each come from one of `kinds`, axes being equal."""
    bad = first_mixed(kinds)
    if bad is not None:
        return bad
    tags = {k.tag for k in kinds}
    if len(tags) > 1 and tags != {Tag.UNIFORM, Tag.PARTIAL}:
        row = next((k for k in kinds if k.tag is Tag.ROW), None)
        return mixed(row.reason, row.line) if row else mixed(SOMETIMES, line)
    parts = [k for k in kinds if k.tag is Tag.PARTIAL]
    degree = common_degree(kinds)
    if degree is None and len(parts) > 1:
        return mixed(SUM_AND_MEAN, line or parts[0].line)
    if degree is None:
        return mixed(COUNT, line or (parts[0].line if parts else ""))
    facts = Kind(
        tag=Tag.UNIFORM,
        degree=degree,
        zero=all(k.zero for k in kinds),
        digits=max(k.digits for k in kinds),
    )
    if parts:
        # What is uniform of degree d is a sum, and a maximum, of that degree too.
        if len({k.reduction for k in parts}) > 1:
            return mixed(LOCAL, parts[0].line)
        return replace(parts[0], degree=degree, digits=facts.digits)
    if tags == {Tag.UNIFORM}:
        return facts
    if tags == {Tag.ROW}:
        same = len({(k.axis, k.column) for k in kinds}) == 1
        return kinds[0] if same else mixed(kinds[0].reason, kinds[0].line)
    firm = next((k for k in kinds if not k.flexible), kinds[0])
    if any(k.axis != firm.axis for k in kinds):
        return mixed("has the environment axis in two different places", line)
    if not all(aligned(firm, k) for k in kinds):
        return mixed(PAIRS, line)
    flexible = all(k.flexible for k in kinds)
    return replace(
        firm, degree=degree, zero=facts.zero, flexible=flexible, digits=facts.digits, values=None
    )


def is_coarse(dtype: Any) -> bool:
    """True for floats of a smaller range than float32's, as float16's is; not bfloat16's."""
    is_float = bool(jnp.issubdtype(dtype, jnp.inexact))
    return is_float and finfo(dtype).maxexp < finfo(jnp.float32).maxexp


def coarse(dtype: Any) -> str:
    """The reason why a part of a sum must not be of such a type."""
    return (
        f"is a part of a sum in {dtype}: sums leave its range, and what is small becomes zero; "
        "make it float32 first"
    )


def is_below_a_byte(dtype: Any) -> bool:
    """True for numbers several of which share a byte."""
    if jnp.issubdtype(dtype, jnp.integer):
        return bool(jnp.iinfo(dtype).bits < 8)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and finfo(dtype).bits < 8
