"""What the replicas of a fragment hold of a value: all the same, a row each, or a part of a sum."""

from dataclasses import dataclass, replace
from enum import Enum


class Tag(Enum):
    UNIFORM = "uniform"
    """the same on every replica, and on one that holds all environments"""
    VARYING = "varying"
    """has the environment axis: each replica holds the rows of its environments"""
    PARTIAL = "partial"
    """reduced over the replica's own environments, not yet over all"""
    MIXED = "mixed"
    """none of these: replicas would compute something else than one big batch"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
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
    """how it scales with the number of environments here: a sum over them 1, a mean 0"""
    reduction: str = "sum"
    """of a partial value: sum, max or min"""
    zero: bool = False
    affine: bool = False
    """a partial value to which something uniform was added"""
    reason: str = ""
    line: str = ""
    """where it became partial or mixed"""

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
            case Tag.UNIFORM:
                return "U"

    @property
    def layout(self) -> tuple[int, int, int, bool]:
        return (self.axis, self.outer, self.inner, self.joint)

    @property
    def is_cuttable(self) -> bool:
        """Whether each replica's part is one contiguous piece along `axis`."""
        return self.tag is Tag.VARYING and not self.joint and (self.outer == 1 or self.flexible)


UNIFORM = Kind(tag=Tag.UNIFORM)
ZERO = Kind(tag=Tag.UNIFORM, zero=True)


def varying(axis: int, **fields: int | bool) -> Kind:
    return Kind(tag=Tag.VARYING, axis=axis, **fields)  # pyright: ignore[reportArgumentType]


def partial(line: str, degree: int = 1, reduction: str = "sum") -> Kind:
    return Kind(tag=Tag.PARTIAL, degree=degree, reduction=reduction, line=line)


def mixed(reason: str, line: str) -> Kind:
    return Kind(tag=Tag.MIXED, reason=reason, line=line)


def first_mixed(kinds: tuple[Kind, ...]) -> Kind | None:
    return next((k for k in kinds if k.tag is Tag.MIXED), None)


def join(a: Kind | None, b: Kind | None, line: str = "") -> Kind | None:
    """What holds of a value that is sometimes `a` and sometimes `b`; None is not known yet."""
    if a is None or b is None:
        return a or b
    if a == b:
        return a
    bad = first_mixed((a, b))
    if bad is not None:
        return bad
    tags = {a.tag, b.tag}
    if tags == {Tag.UNIFORM}:
        if a.degree == b.degree or a.zero or b.zero:
            return replace(a, zero=a.zero and b.zero, degree=b.degree if a.zero else a.degree)
        return mixed("depends on how many environments a replica holds", line)
    if tags == {Tag.VARYING}:
        base, other = (b, a) if a.flexible else (a, b)
        if base.axis == other.axis and (base.layout == other.layout or other.flexible):
            if a.degree == b.degree or a.zero or b.zero:
                degree = b.degree if a.zero else a.degree
                return replace(base, degree=degree, zero=a.zero and b.zero)
            return mixed("depends on how many environments a replica holds", line)
        return mixed("has the environment axis in two different places", line)
    if tags == {Tag.PARTIAL}:
        if (a.degree, a.reduction) == (b.degree, b.reduction):
            return replace(a, affine=a.affine or b.affine)
        return mixed("combines a sum and a mean over a replica's environments", line or a.line)
    if tags == {Tag.UNIFORM, Tag.PARTIAL}:
        part, whole = (a, b) if a.tag is Tag.PARTIAL else (b, a)
        return replace(part, affine=part.affine or not whole.zero)
    return mixed("is sometimes one value per environment and sometimes not", line)
