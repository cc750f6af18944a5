"""Rules for operations that move, order or reduce entries; see table.py.

A rule gives the kind of the result for those of the operands. rule_guards.py checks around every
rule that the operands may enter at all, and that the result has the shape its kind speaks of.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragflow._jax import is_key
from fragflow._jax_typed import is_sequence
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import (
    COUNT,
    LOCAL,
    PAIRS,
    UNIFORM,
    ZERO,
    Kind,
    Tag,
    aligned,
    common_degree,
    mixed,
    partial,
    row_number,
    together,
    varying,
)
from fragflow.graph.replicas.rules.elementwise import Kinds, Rule, layout_of

WHOLE_MEAN = "is a mean of whole numbers, which need not be one: make them floats first"
NUMBERED = "numbers a replica's environments from zero"


def side_by_side(pair: EqnPair, kinds: Kinds) -> Kind | None:
    """The kind of operands together if none of them has the environment axis; else None."""
    if any(k.tag in (Tag.VARYING, Tag.ROW) for k in kinds):
        return None
    return together(kinds, pair.line)


def moving(
    follow: Callable[[EqnPair, Kind], Kind | int | None], what: str, *, keeps_zero: bool = True
) -> Rule:
    """Makes a rule for operations on one array; `follow` finds where they move the axis to."""

    def rule(pair: EqnPair, kinds: Kinds) -> Kind:
        first = kinds[0] if keeps_zero else replace(kinds[0], zero=False)
        if first.tag is not Tag.VARYING:
            return first
        moved = follow(pair, first)
        if moved is None:
            return mixed(what, pair.line)
        return moved if isinstance(moved, Kind) else replace(first, axis=int(moved))

    return rule


def broadcast_in_dim(pair: EqnPair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    target = pair.params["broadcast_dimensions"]
    has_axis = kind.tag in (Tag.VARYING, Tag.ROW)
    axis = int(target[kind.axis]) if has_axis else None
    made = [d for d in pair.output_sized() if d != axis]
    if not made:
        return kind if axis is None else replace(kind, axis=axis)
    if kind.tag is Tag.PARTIAL:
        return mixed(LOCAL, kind.line)
    if axis is not None or len(made) > 1:
        return mixed(PAIRS, pair.line)
    inner = pair.multiple(pair.a.outvars[0].aval.shape[made[0]])
    if inner is None:
        return mixed(COUNT, pair.line)
    return varying(made[0], inner=inner, flexible=True, degree=kind.degree, zero=kind.zero)


def iota(pair: EqnPair, _: Kinds) -> Kind:
    made = pair.output_sized()
    if not made:
        return UNIFORM
    if made == [pair.params["dimension"]]:
        lengths = [e.outvars[0].aval.shape[made[0]] for e in (pair.a, pair.b)]
        type_ = pair.a.outvars[0].aval.dtype
        counts = type_.kind in "iu" and np.iinfo(type_).max >= lengths[0] - 1
        if counts and tuple(lengths) == pair.sizes:
            return row_number(made[0], NUMBERED, pair.line)
        return mixed(NUMBERED, pair.line)
    inner = pair.multiple(pair.a.outvars[0].aval.shape[made[0]])
    return varying(made[0], inner=inner or 1, flexible=True)


def reshape(pair: EqnPair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    if pair.params.get("dimensions") is not None:
        return mixed("reorders entries while it reshapes", pair.line)
    old, new = pair.a.invars[0].aval.shape, pair.a.outvars[0].aval.shape
    if kind.tag is Tag.ROW:
        axes = [d for d in pair.output_sized() if new[d] == old[kind.axis]]
        if len(axes) == 1 and math.prod(new) == old[kind.axis]:
            return replace(kind, axis=axes[0])
        return mixed(kind.reason, kind.line)
    if kind.tag is not Tag.VARYING:
        return kind
    if kind.flexible:
        made = pair.output_sized()
        inner = pair.multiple(new[made[0]]) if len(made) == 1 else None
        if inner and (kind.zero or _stays_apart(old, kind.axis, new, made[0])):
            return replace(kind, axis=made[0], outer=1, inner=inner)
        # Folded with other axes it is no longer constant; as it is, any order describes it.
        kind = replace(kind, flexible=False, outer=1, inner=old[kind.axis] // pair.sizes[0])
    before = math.prod(old[: kind.axis]) * kind.outer
    after = kind.inner * math.prod(old[kind.axis + 1 :])
    for axis in pair.output_sized():
        ahead, behind = math.prod(new[:axis]), math.prod(new[axis + 1 :])
        if before % ahead or after % behind:
            continue
        outer, inner = before // ahead, after // behind
        if outer * pair.sizes[0] * inner == new[axis]:
            return replace(kind, axis=axis, outer=outer, inner=inner)
    return mixed("folds the environment axis so that it cannot be followed", pair.line)


def _stays_apart(old: tuple[int, ...], axis: int, new: tuple[int, ...], made: int) -> bool:
    """True if `axis` is reshaped by itself, other axes staying before and after it."""
    before, after = math.prod(old[:axis]), math.prod(old[axis + 1 :])
    return any(
        math.prod(new[:start]) == before
        and math.prod(new[stop:]) == after
        and math.prod(new[start:stop]) == old[axis]
        for start in range(made + 1)
        for stop in range(made + 1, len(new) + 1)
    )


def squeeze(pair: EqnPair, kind: Kind) -> int:
    return kind.axis - sum(d < kind.axis for d in pair.params["dimensions"])


def transpose(pair: EqnPair, kind: Kind) -> int:
    return tuple(pair.params["permutation"]).index(kind.axis)


def along(parameter: str) -> Callable[[EqnPair, Kind], int | None]:
    """Follows an operation that must not work along the environment axis."""

    def follow(pair: EqnPair, kind: Kind) -> int | None:
        given = pair.params[parameter]
        axes = given if is_sequence(given) else (given,)
        return None if kind.axis in axes else kind.axis

    return follow


def fft(pair: EqnPair, kind: Kind) -> int | None:
    axes = len(pair.a.invars[0].aval.shape) - len(pair.params["fft_lengths"])
    return kind.axis if kind.axis < axes else None


def slice_(pair: EqnPair, kind: Kind) -> Kind | int | None:
    if pair.keeps_length(kind.axis):
        return kind.axis
    return _team(pair, kind) if kind.joint else None


def _team(pair: EqnPair, kind: Kind) -> Kind | None:
    """The kind of a slice of several teams' agents if it takes those of one; else None."""
    ends = [sum(pair.teams[: k + 1]) for k in range(len(pair.teams))]
    bounds = [(end - size, end) for end, size in zip(ends, pair.teams, strict=True)]
    large, small = (
        (eqn.params["start_indices"][kind.axis], eqn.params["limit_indices"][kind.axis])
        for eqn in (pair.a, pair.b)
    )
    growth = pair.sizes[0] // pair.sizes[1]
    if small not in bounds or large != tuple(growth * end for end in small):
        return None
    strides = pair.params["strides"]
    if kind.outer != 1 or (strides is not None and strides[kind.axis] != 1):
        return None
    return replace(kind, joint=False, inner=(small[1] - small[0]) // pair.sizes[1])


def pad(pair: EqnPair, kinds: Kinds) -> Kind:
    same = side_by_side(pair, kinds)
    if same is not None:
        return same
    operand, filling = kinds
    if operand.tag is not Tag.VARYING or filling.tag is not Tag.UNIFORM:
        return mixed(LOCAL, pair.line)
    if tuple(pair.params["padding_config"][operand.axis]) != (0, 0, 0):
        return mixed("adds rows to the environment axis", pair.line)
    degree = common_degree(kinds)
    if degree is None:
        return mixed(COUNT, pair.line)
    return replace(operand, degree=degree, zero=operand.zero and filling.zero)


def concatenate(pair: EqnPair, kinds: Kinds) -> Kind:
    dimension = pair.params["dimension"]
    if any(k.tag is Tag.ROW for k in kinds):
        return _indices(pair, kinds, dimension)
    same = side_by_side(pair, kinds)
    if same is not None:
        return same
    if any(k.tag is not Tag.VARYING for k in kinds):
        return mixed(LOCAL, pair.line)
    joined = together(kinds, pair.line)
    if joined.tag is Tag.VARYING and joined.axis == dimension:
        return mixed("joins rows along the environment axis", pair.line)
    return joined


def _indices(pair: EqnPair, kinds: Kinds, dimension: int) -> Kind:
    """The kind of columns of indices, one of which is the rows' own numbers."""
    column = next(i for i, k in enumerate(kinds) if k.tag is Tag.ROW)
    row, shape = kinds[column], pair.a.outvars[0].aval.shape
    others = [k for i, k in enumerate(kinds) if i != column]
    is_column = dimension == len(shape) - 1 and row.axis != dimension and row.column < 0
    if is_column and all(v.aval.shape[dimension] == 1 for v in pair.a.invars):
        fits = all(
            k.tag is Tag.VARYING and k.axis == row.axis and aligned(k, varying(0)) and not k.degree
            for k in others
        )
        if fits:
            return replace(row, column=column)
    return mixed(row.reason, row.line)


def stack(pair: EqnPair, kinds: Kinds) -> Kind:
    same = side_by_side(pair, kinds)
    if same is not None:
        return same
    joined = together(kinds, pair.line)
    if joined.tag is not Tag.VARYING:
        return mixed(LOCAL, pair.line) if joined.tag is not Tag.MIXED else joined
    return replace(joined, axis=joined.axis + (pair.params["axis"] <= joined.axis))


def tile(pair: EqnPair, kind: Kind) -> int | None:
    return kind.axis if pair.params["reps"][kind.axis] == 1 else None


def sort(pair: EqnPair, kinds: Kinds) -> Kind:
    layout = layout_of(pair, kinds)
    if layout is None:
        return UNIFORM
    if layout.tag is Tag.MIXED or layout.axis == pair.params["dimension"]:
        return mixed("sorts along the environment axis", pair.line)
    return replace(layout, flexible=all(k.flexible for k in kinds), zero=False)


def accumulated(reduction: str) -> Rule:
    """Makes a rule for cumulative sums and the like: as reductions, but not along environments."""

    def rule(pair: EqnPair, kinds: Kinds) -> Kind:
        kind = replace(kinds[0], zero=kinds[0].zero and reduction == "sum")
        if kind.tag is Tag.PARTIAL and kind.reduction != reduction:
            return mixed(LOCAL, kind.line)
        if kind.tag is Tag.VARYING and kind.axis == pair.params["axis"]:
            return mixed("accumulates along the environment axis", pair.line)
        return kind

    return rule


def reduction(kind_of: str) -> Rule:
    def rule(pair: EqnPair, kinds: Kinds) -> Kind:
        kind, axes = kinds[0], pair.params["axes"]
        if kind_of != "sum":
            kind = replace(kind, zero=False)
        if kind.tag is Tag.UNIFORM:
            return kind
        if kind.tag is Tag.PARTIAL:
            return kind if kind.reduction == kind_of else mixed(LOCAL, kind.line)
        if kind.axis not in axes:
            return replace(kind, axis=kind.axis - sum(d < kind.axis for d in axes))
        if kind_of == "other":
            return mixed(
                "reduces the environment axis in a way that no all_... continues", pair.line
            )
        if kind.zero:
            return ZERO
        degree = kind.degree + 1 if kind_of == "sum" else kind.degree
        return partial(pair.line, degree=degree, reduction=kind_of)

    return rule


def product(kinds: Kinds) -> Kind | None:
    """The kind of a bilinear operation's result; None if an environment axis has to be followed."""
    lhs, rhs = kinds
    parts = [k for k in kinds if k.tag is Tag.PARTIAL]
    degree = sum(k.degree for k in kinds)
    if Tag.VARYING in (lhs.tag, rhs.tag):
        return mixed(LOCAL, parts[0].line) if parts else None
    if not parts:
        return replace(UNIFORM, degree=degree, zero=lhs.zero and rhs.zero)
    if len(parts) == 1 and parts[0].reduction == "sum":
        return replace(parts[0], degree=degree)
    return mixed(LOCAL, parts[0].line)


def dot_general(pair: EqnPair, kinds: Kinds) -> Kind:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = pair.params["dimension_numbers"]
    lhs, rhs = kinds
    plain = product(kinds)
    if plain is not None:
        return plain
    ranks = [len(v.aval.shape) for v in pair.a.invars]
    free = [
        [d for d in range(ranks[0]) if d not in lhs_contract and d not in lhs_batch],
        [d for d in range(ranks[1]) if d not in rhs_contract and d not in rhs_batch],
    ]
    degree = lhs.degree + rhs.degree

    def result(axis: int, kind: Kind) -> Kind:
        zero = lhs.zero and rhs.zero
        return replace(kind, axis=axis, degree=degree, flexible=False, zero=zero)

    both = lhs.tag is rhs.tag is Tag.VARYING
    if both and not aligned(lhs, rhs):
        return mixed(PAIRS, pair.line)
    if both and (lhs.axis, rhs.axis) in zip(lhs_contract, rhs_contract, strict=True):
        return ZERO if lhs.zero and rhs.zero else partial(pair.line, degree=degree + 1)
    if both and (lhs.axis, rhs.axis) in zip(lhs_batch, rhs_batch, strict=True):
        return result(list(lhs_batch).index(lhs.axis), lhs if not lhs.flexible else rhs)
    if lhs.tag is Tag.VARYING and rhs.tag is Tag.UNIFORM and lhs.axis in free[0]:
        return result(len(lhs_batch) + free[0].index(lhs.axis), lhs)
    if rhs.tag is Tag.VARYING and lhs.tag is Tag.UNIFORM and rhs.axis in free[1]:
        return result(len(lhs_batch) + len(free[0]) + free[1].index(rhs.axis), rhs)
    return mixed("multiplies environments with one another", pair.line)


def convolution(pair: EqnPair, kinds: Kinds) -> Kind:
    """Follows rows of images with one kernel, or, in a gradient, a sum over images by kernels."""
    numbers = pair.params["dimension_numbers"]
    (lhs_rows, lhs_features), (_, rhs_features) = numbers.lhs_spec[:2], numbers.rhs_spec[:2]
    lhs, rhs = kinds
    groups = pair.params["feature_group_count"], pair.params["batch_group_count"]
    plain = product(kinds)
    if plain is not None:
        return plain
    degree = lhs.degree + rhs.degree
    if groups[1] == 1 and rhs.tag is Tag.UNIFORM and lhs.axis == lhs_rows:
        zero = lhs.zero and rhs.zero
        return replace(lhs, axis=numbers.out_spec[0], degree=degree, flexible=False, zero=zero)
    both = lhs.tag is rhs.tag is Tag.VARYING and aligned(lhs, rhs)
    if both and groups == (1, 1) and (lhs.axis, rhs.axis) == (lhs_features, rhs_features):
        return partial(pair.line, degree=degree + 1)
    return mixed("convolves environments with one another", pair.line)


def all_reduce(pair: EqnPair, kinds: Kinds) -> list[Kind]:
    operation = pair.params["operation"]
    if any(is_key(v.aval) for v in pair.a.invars):
        return [mixed(f"is a random key, to which all_{operation} is applied", pair.line)] * len(
            kinds
        )
    return [
        reduced(kind, operation, v.aval.dtype, pair.line)
        for kind, v in zip(kinds, pair.a.invars, strict=True)
    ]


def reduced(kind: Kind, operation: str, dtype: Any, line: str) -> Kind:
    """The kind of a value of type `dtype` after `all_mean`, `all_sum` or `all_max`."""
    is_float = jnp.issubdtype(dtype, jnp.inexact)
    if kind.tag is Tag.PARTIAL and operation == "mean" and not is_float:
        return mixed(WHOLE_MEAN, line)
    if kind.tag is Tag.UNIFORM:
        if kind.zero or kind.degree == (1 if operation == "sum" else 0):
            return replace(UNIFORM, zero=kind.zero)
        return mixed(COUNT, line)
    if kind.tag is Tag.VARYING:
        reason = f"still has the environment axis when all_{operation} is applied: reduce it first"
        return mixed(reason, line)
    if kind.tag is Tag.PARTIAL:
        expected = {"mean": ("sum", 0), "sum": ("sum", 1), "max": ("max", 0)}[operation]
        if (kind.reduction, kind.degree) == expected:
            return UNIFORM
        if kind.degree not in ((0, 1) if kind.reduction == "sum" else (0,)):
            return mixed(COUNT, line)
        local = ("mean", "sum")[kind.degree] if kind.reduction == "sum" else kind.reduction
        return mixed(f"is a local {local}, to which all_{operation} is applied", line)
    return kind


def host_call(pair: EqnPair, kinds: Kinds) -> Kind:
    """Follows calls of environments on the host, which answer row by row."""
    if all(k.tag is Tag.VARYING and k.axis == 0 and aligned(k, varying(0)) for k in kinds):
        return varying(0)
    return mixed("is asked of environments whose rows cannot be followed", pair.line)
