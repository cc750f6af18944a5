"""Rules for indexing, random numbers and windows; see table.py."""

import math
from dataclasses import replace
from typing import Any

from fragflow._jax import applied_by, draws_together, is_key
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
    partial,
    together,
    varying,
)
from fragflow.graph.replicas.rules.elementwise import Kinds, Rule, elementwise
from fragflow.graph.replicas.rules.shapes_and_reductions import side_by_side

FROM_ONE_KEY = (
    "is drawn from keys that are not threefry's, of which JAX uses the first for all environments "
    "together: use jax.random.key(seed, impl='threefry2x32')"
)
_BY_ITSELF = (
    "draw with env.keys(key), one key per environment, and call what takes one key for a whole "
    "batch for each environment by itself: env.map(lambda key, x: f(key, x[None]), env.keys(key), "
    "rows)"
)
SHARED_KEY = (
    "is drawn for every environment from one shared key, so replicas would draw the same numbers: "
    + _BY_ITSELF
)
ANOTHERS_KEY = "takes one environment's key for other environments: " + _BY_ITSELF
INDEXED = "is indexed along the environment axis"
_OTHERS = "is indexed by something that differs from replica to replica"


def of_keys(rule: Rule) -> Rule:
    """Wraps a rule that takes some entries of an array, to say what is wrong if these are keys."""

    def told(pair: EqnPair, kinds: Kinds) -> Kind | list[Kind]:
        result = rule(pair, kinds)
        is_mixed = isinstance(result, Kind) and result.tag is Tag.MIXED
        is_key_of_row = kinds[0].tag is Tag.VARYING and is_key(pair.a.invars[0].aval)
        return mixed(ANOTHERS_KEY, pair.line) if is_mixed and is_key_of_row else result

    return told


def _are_indices(kinds: Kinds) -> bool:
    return all(k.tag is Tag.UNIFORM and (k.zero or not k.degree) for k in kinds)


def dynamic_slice(pair: EqnPair, kinds: Kinds) -> Kind:
    if not _are_indices(kinds[1:]):
        return mixed(_OTHERS, pair.line)
    kind = kinds[0]
    if kind.tag is not Tag.VARYING or pair.keeps_length(kind.axis):
        return kind
    return mixed(INDEXED, pair.line)


def dynamic_update_slice(pair: EqnPair, kinds: Kinds) -> Kind:
    if not _are_indices(kinds[2:]):
        return mixed(_OTHERS, pair.line)
    operand, update = kinds[:2]
    same = side_by_side(pair, (operand, update))
    if same is not None:
        return same
    if not (operand.tag is update.tag is Tag.VARYING and operand.axis == update.axis):
        return mixed(LOCAL, pair.line)
    axis = operand.axis
    if any(e.invars[0].aval.shape[axis] != e.invars[1].aval.shape[axis] for e in (pair.a, pair.b)):
        return mixed(INDEXED, pair.line)
    return together((operand, update), pair.line)


def _fills_with(pair: EqnPair) -> Any:
    """The value that a gather gives beyond the end; None for none, or NaN, which scales to NaN."""
    value = pair.params.get("fill_value")
    if "FILL" not in str(pair.params.get("mode")) or value is None:
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


def gather(pair: EqnPair, kinds: Kinds) -> Kind:
    operand, indices = kinds
    dims = pair.params["dimension_numbers"]
    rank = len(pair.a.outvars[0].aval.shape)
    batch = [d for d in range(rank) if d not in dims.offset_dims]
    filling = _fills_with(pair)
    if indices.tag is Tag.PARTIAL:
        return mixed(LOCAL, indices.line)
    if indices.degree and not indices.zero:
        return mixed(COUNT, pair.line)
    if filling not in (None, 0):
        if operand.tag is Tag.PARTIAL:
            return mixed(LOCAL, operand.line)
        if operand.degree and not operand.zero:
            return mixed(COUNT, pair.line)
    fills = "FILL" in str(pair.params.get("mode")) and pair.params.get("fill_value") != 0
    operand = replace(operand, zero=operand.zero and not fills)
    if indices.tag is Tag.ROW:
        return _own_entries(pair, operand, indices, batch)
    if operand.tag is Tag.VARYING:
        axis = operand.axis
        if axis in dims.operand_batching_dims:
            position = dims.start_indices_batching_dims[dims.operand_batching_dims.index(axis)]
            if indices.tag is not Tag.VARYING or indices.axis != position:
                return mixed(INDEXED, pair.line)
            if not aligned(operand, indices):
                return mixed(PAIRS, pair.line)
            firm = indices if operand.flexible else operand
            return replace(
                firm,
                axis=batch[position],
                flexible=operand.flexible and indices.flexible,
                zero=operand.zero,
                degree=operand.degree,
            )
        sliced = axis in dims.collapsed_slice_dims or axis in dims.start_index_map
        if sliced or not _takes_all(pair, axis):
            return mixed(INDEXED, pair.line)
        if indices.tag is Tag.VARYING:
            return mixed(PAIRS, pair.line)
        window = [
            d
            for d in range(len(pair.a.invars[0].aval.shape))
            if d not in dims.collapsed_slice_dims and d not in dims.operand_batching_dims
        ]
        return replace(operand, axis=dims.offset_dims[window.index(axis)])
    if indices.tag is Tag.VARYING:
        if operand.tag is Tag.PARTIAL:
            return mixed(LOCAL, operand.line)
        if indices.axis >= len(batch):
            return mixed(INDEXED, pair.line)
        return replace(indices, axis=batch[indices.axis], zero=operand.zero, degree=operand.degree)
    return operand


def _takes_all(pair: EqnPair, axis: int) -> bool:
    return all(
        e.params["slice_sizes"][axis] == e.invars[0].aval.shape[axis] for e in (pair.a, pair.b)
    )


def _column(pair: EqnPair, indices: Kind) -> int | None:
    """The column of indices that is row numbers; None if several are, or may be."""
    is_only = pair.a.invars[1].aval.shape[-1] == 1
    return indices.column if indices.column >= 0 else 0 if is_only else None


def _own_entries(pair: EqnPair, operand: Kind, indices: Kind, batch: list[int]) -> Kind:
    """x[arange(n), i]: every row's own entries, if it is the row's number that finds the row."""
    dims = pair.params["dimension_numbers"]
    column = _column(pair, indices)
    finds = (
        column is not None
        and operand.tag is Tag.VARYING
        and aligned(operand, varying(0))
        and indices.axis < len(batch)
        and dims.start_index_map[column] == operand.axis
        and operand.axis in dims.collapsed_slice_dims
    )
    if not finds:
        return mixed(indices.reason, indices.line)
    return replace(operand, axis=batch[indices.axis], outer=1, inner=1, flexible=False)


def scatter(adds: bool) -> Rule:
    def rule(pair: EqnPair, kinds: Kinds) -> Kind:
        operand, indices, updates = kinds
        if indices.tag is Tag.PARTIAL:
            return mixed(LOCAL, indices.line)
        if indices.degree and not indices.zero:
            return mixed(COUNT, pair.line)
        if applied_by(pair.a) is not None:
            # x.at[i].apply(f): any function, entry by entry; it may change zeros too.
            if operand.tag is Tag.PARTIAL:
                return mixed(LOCAL, operand.line)
            if operand.degree:
                return mixed(COUNT, pair.line)
            operand = replace(operand, zero=False)
        if all(k.tag in (Tag.UNIFORM, Tag.PARTIAL) for k in kinds):
            return together((operand, updates), pair.line)
        parts = [k for k in kinds if k.tag is Tag.PARTIAL]
        if parts:
            return mixed(LOCAL, parts[0].line)
        degree = common_degree((operand, updates))
        if degree is None:
            return mixed(COUNT, pair.line)
        dims = pair.params["dimension_numbers"]
        found = [k for k in kinds if k.tag is Tag.VARYING]
        if any(not aligned(x, y) for x in found for y in found):
            return mixed(PAIRS, pair.line)
        firm = next((k for k in found if not k.flexible), found[0] if found else UNIFORM)
        rank = len(pair.a.invars[2].aval.shape)
        batch = [d for d in range(rank) if d not in dims.update_window_dims]
        if operand.tag is Tag.VARYING:
            axis = operand.axis
            result = replace(firm, axis=axis, flexible=False, zero=False, degree=degree)
            if indices.tag is Tag.ROW:
                return _own_places(pair, kinds, result, batch)
            if axis in dims.operand_batching_dims:
                position = dims.operand_batching_dims.index(axis)
                rows: int = dims.scatter_indices_batching_dims[position]
                by_row = indices.tag is Tag.VARYING and indices.axis == rows
                own = updates.tag is Tag.VARYING and updates.axis == batch[rows]
                return result if by_row and own else mixed(INDEXED, pair.line)
            inserted = axis in dims.inserted_window_dims
            if inserted or axis in dims.scatter_dims_to_operand_dims:
                return mixed(INDEXED, pair.line)
            if indices.tag is not Tag.UNIFORM:
                return mixed(PAIRS, pair.line)
            return result if _covers(pair, kinds) else mixed(INDEXED, pair.line)
        if indices.tag is Tag.ROW:
            return mixed(indices.reason, indices.line)
        if adds and operand.zero and _sums_up(kinds, batch):
            return partial(pair.line, degree=updates.degree + 1)
        return mixed("collects rows of all environments in one place", pair.line)

    return rule


def _covers(pair: EqnPair, kinds: Kinds) -> bool:
    """True if updates have a row for each of the operand's, along a window of the same length."""
    operand, _, updates = kinds
    dims = pair.params["dimension_numbers"]
    outside = (*dims.inserted_window_dims, *dims.operand_batching_dims)
    window = [d for d in range(len(pair.a.invars[0].aval.shape)) if d not in outside]
    place = dims.update_window_dims[window.index(operand.axis)]
    return (
        updates.tag is Tag.VARYING
        and updates.axis == place
        and all(
            e.invars[2].aval.shape[place] == e.invars[0].aval.shape[operand.axis]
            for e in (pair.a, pair.b)
        )
    )


def _own_places(pair: EqnPair, kinds: Kinds, result: Kind, batch: list[int]) -> Kind:
    """x.at[arange(n), i]: every row writes into itself."""
    operand, indices, updates = kinds
    dims = pair.params["dimension_numbers"]
    column = _column(pair, indices)
    finds = (
        column is not None
        and aligned(operand, varying(0))
        and indices.axis < len(batch)
        and dims.scatter_dims_to_operand_dims[column] == operand.axis
        and operand.axis in dims.inserted_window_dims
        and updates.tag is Tag.VARYING
        and updates.axis == batch[indices.axis]
        and aligned(updates, varying(0))
    )
    if not finds:
        return mixed(indices.reason, indices.line)
    return replace(result, outer=1, inner=1)


def _sums_up(kinds: Kinds, batch: list[int]) -> bool:
    """True if rows are added up in one place: each update goes where its own index says."""
    _, indices, updates = kinds
    return (
        updates.tag is indices.tag is Tag.VARYING
        and indices.axis < len(batch)
        and updates.axis == batch[indices.axis]
    )


def random_bits(pair: EqnPair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    if kind.tag is Tag.VARYING and draws_together(pair.a):
        return mixed(FROM_ONE_KEY, pair.line)
    made = [d for d in pair.output_sized() if kind.tag is not Tag.VARYING or d != kind.axis]
    if made:
        return mixed(SHARED_KEY, pair.line)
    return replace(kind, zero=False)


def fold_in(pair: EqnPair, kinds: Kinds) -> Kind | list[Kind]:
    if kinds[0].tag is Tag.VARYING and draws_together(pair.a):
        return mixed(FROM_ONE_KEY, pair.line)
    return elementwise(pair, kinds)


def window(kind_of: str) -> Rule:
    def rule(pair: EqnPair, kinds: Kinds) -> Kind:
        kind = replace(kinds[0], zero=kinds[0].zero and kind_of == "sum")
        if kind.tag is not Tag.VARYING:
            return kind
        return kind if _is_apart(pair, kind.axis) else mixed(POOLED, pair.line)

    return rule


POOLED = "is pooled along the environment axis"


def _is_apart(pair: EqnPair, axis: int) -> bool:
    """True if a window is one row long, and rows are neither left out nor added."""
    params = pair.params
    dilations = [params.get(name) for name in ("base_dilation", "window_dilation")]
    return (
        params["window_dimensions"][axis] == 1
        and params["window_strides"][axis] == 1
        and tuple(params["padding"][axis]) == (0, 0)
        and all(d is None or d[axis] == 1 for d in dilations)
    )


def select_and_scatter_add(pair: EqnPair, kinds: Kinds) -> Kind:
    """Follows the gradient of a maximum over windows: the choice does not depend on a scale."""
    source, operand = kinds
    if source.tag is operand.tag is Tag.UNIFORM:
        return replace(source, zero=source.zero)
    both = source.tag is operand.tag is Tag.VARYING and source.axis == operand.axis
    if not both or not aligned(source, operand):
        return mixed(PAIRS, pair.line)
    if not _is_apart(pair, source.axis):
        return mixed(POOLED, pair.line)
    firm = operand if source.flexible else source
    return replace(firm, degree=source.degree, zero=source.zero, flexible=False)


def split(pair: EqnPair, kinds: Kinds) -> list[Kind]:
    kind = kinds[0]
    if kind.tag is Tag.VARYING and kind.axis == pair.params["axis"]:
        return [mixed("takes some rows of the environment axis", pair.line)] * len(pair.a.outvars)
    return [kind] * len(pair.a.outvars)


def unstack(pair: EqnPair, kinds: Kinds) -> list[Kind]:
    kind, axis = kinds[0], pair.params["axis"]
    if kind.tag is Tag.VARYING:
        if kind.axis == axis:
            kind = mixed("takes some rows of the environment axis", pair.line)
        else:
            kind = replace(kind, axis=kind.axis - (axis < kind.axis))
    return [kind] * len(pair.a.outvars)


def same_axis(_: EqnPair, kinds: Kinds) -> Kind:
    return replace(kinds[0], zero=False)


def barrier(_: EqnPair, kinds: Kinds) -> list[Kind]:
    return list(kinds)
