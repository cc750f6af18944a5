"""Operations that work entry by entry, and which of them commute with a sum; see replicas.py."""

from collections.abc import Callable
from dataclasses import replace

from fragflow.graph.kinds import UNIFORM, Kind, Tag, mixed
from fragflow.graph.pair import Pair

Kinds = tuple[Kind, ...]
Rule = Callable[[Pair, Kinds], Kind | list[Kind]]

LOCAL = "is computed from one replica's environments only, before it is reduced over all of them"
COUNT = "depends on how many environments a replica holds"

LINEAR = {"neg", "convert_element_type", "copy", "copy_p", "reduce_precision", "name"}
LINEAR |= {"stop_gradient"}
SUMS = {"add", "sub", "add_any"}
_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow
is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi name ne neg nextafter
not one_minus_square optimization_barrier or polygamma polynomial population_count pow
random_fold_in random_seed real
reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
threefry2x32 xor
"""
ELEMENTWISE = frozenset(_NAMES.split())


def layout_of(pair: Pair, kinds: Kinds) -> Kind | None:
    """The common layout of the varying operands, or a mixed kind if they have none."""
    found = [k for k in kinds if k.tag is Tag.VARYING]
    firm = [k for k in found if not k.flexible]
    if not found:
        return None
    if len({k.layout for k in firm}) > 1 or len({k.axis for k in found}) > 1:
        return mixed("pairs environments with one another", pair.line)
    return firm[0] if firm else found[0]


def elementwise(pair: Pair, kinds: Kinds) -> Kind:
    layout = layout_of(pair, kinds)
    parts = [k for k in kinds if k.tag is Tag.PARTIAL]
    if layout is not None:
        if layout.tag is Tag.MIXED:
            return layout
        if parts:
            return mixed(LOCAL, parts[0].line)
        degree = combined_degree(pair.name, kinds)
        if degree is None:
            return mixed(COUNT, pair.line)
        flexible = all(k.flexible or k.tag is Tag.UNIFORM for k in kinds)
        zero = is_zero(pair.name, kinds)
        return replace(layout, degree=degree, flexible=flexible, zero=zero)
    if parts:
        return linear(pair, kinds, parts)
    degree = combined_degree(pair.name, kinds)
    if degree is None:
        return mixed(COUNT, pair.line)
    return replace(UNIFORM, degree=degree, zero=is_zero(pair.name, kinds))


def combined_degree(name: str, kinds: Kinds) -> int | None:
    degrees = [k.degree for k in kinds if not k.zero]
    if not any(degrees) or is_zero(name, kinds):
        return 0
    if name == "mul":
        return sum(degrees)
    if name == "div":
        return kinds[0].degree - kinds[1].degree
    if name == "select_n":
        degrees = [k.degree for k in kinds[1:] if not k.zero]
    elif name not in LINEAR and name not in SUMS and name not in ("max", "min"):
        return None
    return degrees[0] if len(set(degrees)) == 1 else None


def is_zero(name: str, kinds: Kinds) -> bool:
    if name == "mul":
        return any(k.zero for k in kinds)
    if name == "div":
        return kinds[0].zero
    if name in SUMS or name in LINEAR:
        return all(k.zero for k in kinds)
    return name == "select_n" and all(k.zero for k in kinds[1:])


def linear(pair: Pair, kinds: Kinds, parts: list[Kind]) -> Kind:
    """A function of partial values: fine if it commutes with the reduction that must follow."""
    part = parts[0]
    others = [k for k in kinds if k.tag is not Tag.PARTIAL]
    name = pair.name
    if name == "neg" and part.reduction != "sum":
        return replace(part, reduction={"max": "min", "min": "max"}[part.reduction])
    if name in LINEAR or name == "optimization_barrier":
        return part
    if part.reduction == "sum":
        if name in SUMS and len({k.degree for k in parts}) == 1:
            plain = all(k.zero for k in others)
            if plain or (part.degree == 0 and all(k.degree == 0 for k in others)):
                return replace(part, affine=any(k.affine for k in parts) or not plain)
        if name == "mul" and len(parts) == 1:
            return replace(part, degree=sum(k.degree for k in kinds))
        if name == "div" and len(parts) == 1 and kinds[0].tag is Tag.PARTIAL:
            return replace(part, degree=kinds[0].degree - kinds[1].degree)
        if name == "select_n" and kinds[0].tag is Tag.UNIFORM:
            same = len({k.degree for k in parts}) == 1
            if same and all(k.zero or part.degree == 0 for k in others[1:]):
                return replace(part, affine=not all(k.zero for k in others[1:]))
    return mixed(LOCAL, part.line)
