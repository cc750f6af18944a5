"""How each primitive treats the environment axis; see replicas.py."""

from collections.abc import Callable
from dataclasses import replace

from fragflow.graph.elementwise import (
    COUNT,
    ELEMENTWISE,
    LOCAL,
    Kinds,
    Rule,
    elementwise,
    layout_of,
)
from fragflow.graph.kinds import UNIFORM, ZERO, Kind, Tag, first_mixed, mixed, partial, varying
from fragflow.graph.pair import Pair


def same_class(pair: Pair, kinds: Kinds) -> Kind | None:
    """For operations that only move entries: the result's kind when nothing is varying."""
    layout = layout_of(pair, kinds)
    if layout is not None:
        return None
    parts = [k for k in kinds if k.tag is Tag.PARTIAL]
    if parts:
        others = [k for k in kinds if k.tag is Tag.UNIFORM]
        if len({(k.degree, k.reduction) for k in parts}) > 1:
            return mixed(LOCAL, parts[0].line)
        return replace(
            parts[0], affine=any(k.affine for k in parts) or any(not k.zero for k in others)
        )
    degrees = {k.degree for k in kinds if not k.zero}
    if len(degrees) > 1:
        return mixed(COUNT, pair.line)
    return replace(UNIFORM, degree=degrees.pop() if degrees else 0, zero=all(k.zero for k in kinds))


def moving(follow: Callable[[Pair, Kind], Kind | int | None], what: str) -> Rule:
    """A rule for operations on one array, from where they move the environment axis to."""

    def rule(pair: Pair, kinds: Kinds) -> Kind:
        first = kinds[0]
        if first.tag is not Tag.VARYING:
            return first
        moved = follow(pair, first)
        if moved is None:
            return mixed(what, pair.line)
        return moved if isinstance(moved, Kind) else replace(first, axis=int(moved))

    return rule


def broadcast_in_dim(pair: Pair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    target = pair.params["broadcast_dimensions"]
    axis = target[kind.axis] if kind.tag is Tag.VARYING else None
    made = [d for d in pair.output_sized() if d != axis]
    if not made:
        return kind if axis is None else replace(kind, axis=axis)
    if kind.tag is Tag.PARTIAL:
        return mixed(LOCAL, kind.line)
    if axis is not None or len(made) > 1:
        return mixed("pairs environments with one another", pair.line)
    inner = pair.multiple(pair.a.outvars[0].aval.shape[made[0]])
    if inner is None:
        return mixed(COUNT, pair.line)
    return varying(made[0], inner=inner, flexible=True, degree=kind.degree, zero=kind.zero)


def iota(pair: Pair, _: Kinds) -> Kind:
    made = pair.output_sized()
    if not made:
        return UNIFORM
    if made == [pair.params["dimension"]]:
        return mixed("numbers a replica's environments from zero", pair.line)
    return varying(made[0], flexible=True)


def reshape(pair: Pair, kind: Kind) -> Kind | None:
    old, new = pair.a.invars[0].aval.shape, pair.a.outvars[0].aval.shape
    num_envs = pair.sizes[0]
    if kind.flexible:
        made = pair.output_sized()
        inner = pair.multiple(new[made[0]]) if len(made) == 1 else None
        return replace(kind, axis=made[0], outer=1, inner=inner) if inner else None
    before = _product(old[: kind.axis]) * kind.outer
    after = kind.inner * _product(old[kind.axis + 1 :])
    for axis, size in enumerate(new):
        ahead, behind = _product(new[:axis]), _product(new[axis + 1 :])
        if before % ahead or after % behind or axis not in pair.output_sized():
            continue
        outer, inner = before // ahead, after // behind
        if outer * num_envs * inner == size:
            return replace(kind, axis=axis, outer=outer, inner=inner)
    return None


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def squeeze(pair: Pair, kind: Kind) -> int:
    return kind.axis - sum(d < kind.axis for d in pair.params["dimensions"])


def transpose(pair: Pair, kind: Kind) -> int:
    return pair.params["permutation"].index(kind.axis)


def along(parameter: str) -> Callable[[Pair, Kind], int | None]:
    """Fine unless it works along the environment axis."""

    def follow(pair: Pair, kind: Kind) -> int | None:
        axes = pair.params[parameter]
        axes = axes if isinstance(axes, tuple | list) else (axes,)
        return None if kind.axis in axes else kind.axis

    return follow


def slice_(pair: Pair, kind: Kind) -> Kind | int | None:
    full = pair.a.invars[0].aval.shape[kind.axis] == pair.a.outvars[0].aval.shape[kind.axis]
    if full or not kind.joint:
        return kind.axis if full else None
    return _team(pair, kind)


def _team(pair: Pair, kind: Kind) -> Kind | None:
    """A slice of several teams' agents, if it takes those of one."""
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


def pad(pair: Pair, kinds: Kinds) -> Kind:
    same = same_class(pair, kinds)
    if same is not None:
        return same
    if pair.params["padding_config"][kinds[0].axis] != (0, 0, 0):
        return mixed("adds rows to the environment axis", pair.line)
    return replace(kinds[0], zero=False, flexible=False)


def concatenate(pair: Pair, kinds: Kinds, new_axis: bool = False) -> Kind:
    same = same_class(pair, kinds)
    if same is not None:
        return same
    layout = layout_of(pair, kinds)
    assert layout is not None
    if layout.tag is Tag.MIXED or any(k.tag is not Tag.VARYING for k in kinds):
        return mixed(LOCAL, pair.line)
    if not new_axis and layout.axis == pair.params["dimension"]:
        return mixed("joins rows along the environment axis", pair.line)
    degrees = {k.degree for k in kinds if not k.zero}
    if len(degrees) > 1:
        return mixed(COUNT, pair.line)
    flexible = all(k.flexible for k in kinds)
    zero = all(k.zero for k in kinds)
    return replace(layout, flexible=flexible, zero=zero, degree=degrees.pop() if degrees else 0)


def stack(pair: Pair, kinds: Kinds) -> Kind:
    joined = concatenate(pair, kinds, new_axis=True)
    if joined.tag is not Tag.VARYING:
        return joined
    return replace(joined, axis=joined.axis + (pair.params["axis"] <= joined.axis))


def tile(pair: Pair, kind: Kind) -> int | None:
    return kind.axis if pair.params["reps"][kind.axis] == 1 else None


def sort(pair: Pair, kinds: Kinds) -> Kind:
    layout = layout_of(pair, kinds)
    if layout is None:
        return UNIFORM if all(k.tag is Tag.UNIFORM for k in kinds) else mixed(LOCAL, pair.line)
    if layout.tag is Tag.MIXED or layout.axis == pair.params["dimension"]:
        return mixed("sorts along the environment axis", pair.line)
    return replace(layout, flexible=False, zero=False)


def reduction(kind_of: str) -> Rule:
    def rule(pair: Pair, kinds: Kinds) -> Kind:
        kind, axes = kinds[0], pair.params["axes"]
        if kind.tag is Tag.UNIFORM:
            return replace(kind, zero=kind.zero and kind_of == "sum")
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


def dot_general(pair: Pair, kinds: Kinds) -> Kind:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = pair.params["dimension_numbers"]
    lhs, rhs = kinds
    if Tag.VARYING not in (lhs.tag, rhs.tag):
        parts = [k for k in kinds if k.tag is Tag.PARTIAL]
        degree = lhs.degree + rhs.degree
        if not parts:
            return replace(UNIFORM, degree=degree, zero=lhs.zero or rhs.zero)
        one = len(parts) == 1 and parts[0].reduction == "sum"
        return replace(parts[0], degree=degree) if one else mixed(LOCAL, parts[0].line)
    if Tag.PARTIAL in (lhs.tag, rhs.tag):
        return mixed(LOCAL, next(k.line for k in kinds if k.tag is Tag.PARTIAL))
    ranks = [len(v.aval.shape) for v in pair.a.invars]
    free = [
        [d for d in range(ranks[0]) if d not in lhs_contract and d not in lhs_batch],
        [d for d in range(ranks[1]) if d not in rhs_contract and d not in rhs_batch],
    ]
    degree = lhs.degree + rhs.degree

    def result(axis: int, kind: Kind) -> Kind:
        return replace(kind, axis=axis, degree=degree, flexible=False)

    both = lhs.tag is rhs.tag is Tag.VARYING
    if both and (lhs.axis, rhs.axis) in zip(lhs_contract, rhs_contract, strict=True):
        return partial(pair.line, degree=degree + 1)
    if both and (lhs.axis, rhs.axis) in zip(lhs_batch, rhs_batch, strict=True):
        return result(lhs_batch.index(lhs.axis), lhs if not lhs.flexible else rhs)
    if lhs.tag is Tag.VARYING and rhs.tag is Tag.UNIFORM and lhs.axis in free[0]:
        return result(len(lhs_batch) + free[0].index(lhs.axis), lhs)
    if rhs.tag is Tag.VARYING and lhs.tag is Tag.UNIFORM and rhs.axis in free[1]:
        return result(len(lhs_batch) + len(free[0]) + free[1].index(rhs.axis), rhs)
    return mixed("multiplies environments with one another", pair.line)


def convolution(pair: Pair, kinds: Kinds) -> Kind:
    """Rows of images with one kernel; or, in a gradient, a sum over images by their kernels."""
    numbers = pair.params["dimension_numbers"]
    (lhs_rows, lhs_features), (_, rhs_features) = numbers.lhs_spec[:2], numbers.rhs_spec[:2]
    lhs, rhs = kinds
    groups = pair.params["feature_group_count"], pair.params["batch_group_count"]
    if Tag.VARYING not in (lhs.tag, rhs.tag):
        return same_class(pair, kinds) or UNIFORM
    if groups == (1, 1):
        degree = lhs.degree + rhs.degree
        if rhs.tag is Tag.UNIFORM and lhs.axis == lhs_rows:
            return replace(lhs, axis=numbers.out_spec[0], degree=degree, flexible=False)
        both = lhs.tag is rhs.tag is Tag.VARYING
        if both and (lhs.axis, rhs.axis) == (lhs_features, rhs_features):
            return partial(pair.line, degree=degree + 1)
    return mixed("convolves environments with one another", pair.line)


def unknown_primitive(pair: Pair, kinds: Kinds) -> Kind | list[Kind]:
    bad = first_mixed(kinds)
    if bad is not None:
        return bad
    if all(k.tag is Tag.UNIFORM and k.degree == 0 for k in kinds):
        sized = [pair.output_sized(i) for i in range(len(pair.a.outvars))]
        if not any(sized):
            return UNIFORM
    return mixed(f"is made by {pair.name}, which the replica check does not know", pair.line)


def all_reduce(pair: Pair, kinds: Kinds) -> list[Kind]:
    return [_reduced(pair, kind) for kind in kinds]


def _reduced(pair: Pair, kind: Kind) -> Kind:
    operation = pair.params["operation"]
    if kind.tag is Tag.UNIFORM:
        if kind.degree or (operation == "sum" and not kind.zero):
            return mixed(COUNT, pair.line)
        return kind
    if kind.tag is Tag.VARYING:
        reason = f"still has the environment axis when all_{operation} is applied: reduce it first"
        return mixed(reason, pair.line)
    if kind.tag is Tag.PARTIAL:
        fits = {
            "mean": kind.reduction == "sum" and kind.degree == 0,
            "sum": kind.reduction == "sum" and kind.degree == 1 and not kind.affine,
            "max": kind.reduction == "max",
        }[operation]
        if not fits and kind.reduction == "sum" and kind.degree not in (0, 1):
            return mixed(COUNT, pair.line)
        if not fits:
            local = {0: "mean", 1: "sum"}.get(kind.degree, "")
            local = local if kind.reduction == "sum" else kind.reduction
            return mixed(f"is a local {local}, to which all_{operation} is applied", pair.line)
        return UNIFORM
    return kind


def host_call(pair: Pair, kinds: Kinds) -> Kind:
    """Environments on the host answer row by row."""
    if all(k.tag is Tag.VARYING and k.axis == 0 for k in kinds):
        return varying(0)
    return mixed("is asked of environments whose rows cannot be followed", pair.line)


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "broadcast_in_dim": broadcast_in_dim,
    "iota": iota,
    "reshape": moving(reshape, "folds the environment axis so that it cannot be followed"),
    "squeeze": moving(squeeze, ""),
    "transpose": moving(transpose, ""),
    "rev": moving(along("dimensions"), "reverses the environment axis"),
    "slice": moving(slice_, "takes some rows of the environment axis"),
    "pad": pad,
    "concatenate": concatenate,
    "stack": stack,
    "tile": moving(tile, "repeats the environment axis"),
    "sort": sort,
    "top_k": moving(
        lambda pair, kind: None if kind.axis == len(pair.a.invars[0].aval.shape) - 1 else kind.axis,
        "sorts along the environment axis",
    ),
    **{
        name: moving(along("axis"), "accumulates along the environment axis")
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    },
    "reduce_sum": reduction("sum"),
    "reduce_max": reduction("max"),
    "reduce_min": reduction("min"),
    **dict.fromkeys(("reduce_prod", "reduce_and", "reduce_or", "reduce_xor"), reduction("other")),
    **dict.fromkeys(("argmax", "argmin"), reduction("other")),
    "dot_general": dot_general,
    "conv_general_dilated": convolution,
    "all_reduce": all_reduce,
    **dict.fromkeys(("host_call", "host_program"), host_call),
}
