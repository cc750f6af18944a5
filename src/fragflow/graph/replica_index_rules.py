"""How indexing, random numbers and convolutions treat the environment axis; see replicas.py."""

from dataclasses import replace

from fragflow.graph.elementwise import LOCAL, Kinds, Rule
from fragflow.graph.kinds import UNIFORM, Kind, Tag, mixed, partial
from fragflow.graph.pair import Pair
from fragflow.graph.replica_rules import same_class

INDEXED = "is indexed along the environment axis"


def dynamic_slice(pair: Pair, kinds: Kinds) -> Kind:
    if any(k.tag is not Tag.UNIFORM for k in kinds[1:]):
        return mixed("is indexed by something that differs from replica to replica", pair.line)
    kind = kinds[0]
    if kind.tag is not Tag.VARYING:
        return kind
    full = pair.a.invars[0].aval.shape[kind.axis] == pair.a.outvars[0].aval.shape[kind.axis]
    return kind if full else mixed(INDEXED, pair.line)


def dynamic_update_slice(pair: Pair, kinds: Kinds) -> Kind:
    if any(k.tag is not Tag.UNIFORM for k in kinds[2:]):
        return mixed("is indexed by something that differs from replica to replica", pair.line)
    operand, update = kinds[:2]
    same = same_class(pair, (operand, update))
    if same is not None:
        return same
    if not (operand.tag is update.tag is Tag.VARYING and operand.axis == update.axis):
        return mixed(LOCAL, pair.line)
    axis = operand.axis
    if pair.a.invars[0].aval.shape[axis] != pair.a.invars[1].aval.shape[axis]:
        return mixed(INDEXED, pair.line)
    firm = update if operand.flexible else operand
    if not operand.flexible and not update.flexible and operand.layout != update.layout:
        return mixed("pairs environments with one another", pair.line)
    flexible = operand.flexible and update.flexible
    return replace(firm, flexible=flexible, zero=operand.zero and update.zero)


def gather(pair: Pair, kinds: Kinds) -> Kind:
    operand, indices = kinds
    dims = pair.params["dimension_numbers"]
    shape = pair.a.invars[0].aval.shape
    rank = len(pair.a.outvars[0].aval.shape)
    batch = [d for d in range(rank) if d not in dims.offset_dims]
    if indices.tag is Tag.PARTIAL:
        return mixed(LOCAL, indices.line)
    if operand.tag is Tag.VARYING:
        axis = operand.axis
        if axis in dims.operand_batching_dims:
            position = dims.start_indices_batching_dims[dims.operand_batching_dims.index(axis)]
            if indices.tag is Tag.VARYING and indices.axis == position:
                return replace(operand, axis=batch[position], flexible=False, zero=False)
            return mixed(INDEXED, pair.line)
        sliced = axis in dims.collapsed_slice_dims or axis in dims.start_index_map
        if sliced or pair.params["slice_sizes"][axis] != shape[axis]:
            return mixed(INDEXED, pair.line)
        if indices.tag is Tag.VARYING:
            return mixed("pairs environments with one another", pair.line)
        window = [
            d
            for d in range(len(shape))
            if d not in dims.collapsed_slice_dims and d not in dims.operand_batching_dims
        ]
        return replace(operand, axis=dims.offset_dims[window.index(axis)])
    if indices.tag is Tag.VARYING:
        if operand.tag is Tag.PARTIAL:
            return mixed(LOCAL, operand.line)
        return replace(indices, axis=batch[indices.axis], flexible=False, zero=False, degree=0)
    return operand


def scatter(adds: bool) -> Rule:
    def rule(pair: Pair, kinds: Kinds) -> Kind:
        operand, indices, updates = kinds
        if indices.tag is Tag.PARTIAL:
            return mixed(LOCAL, indices.line)
        if Tag.VARYING not in (operand.tag, indices.tag, updates.tag):
            return same_class(pair, (operand, updates)) or UNIFORM
        dims = pair.params["dimension_numbers"]
        if operand.tag is Tag.VARYING:
            axis = operand.axis
            if axis in dims.operand_batching_dims:
                rows = dims.scatter_indices_batching_dims[dims.operand_batching_dims.index(axis)]
                if indices.tag is Tag.VARYING and indices.axis == rows:
                    firm = updates if updates.tag is Tag.VARYING else indices
                    return replace(firm, axis=axis, flexible=False, zero=False)
                return mixed(INDEXED, pair.line)
            inserted = axis in dims.inserted_window_dims
            if inserted or axis in dims.scatter_dims_to_operand_dims:
                return mixed(INDEXED, pair.line)
            if indices.tag is Tag.VARYING:
                return mixed("pairs environments with one another", pair.line)
            firm = updates if operand.flexible and updates.tag is Tag.VARYING else operand
            return replace(firm, axis=axis, flexible=False, zero=False)
        if adds and operand.zero and updates.tag is Tag.VARYING:
            return partial(pair.line, degree=updates.degree + 1)
        return mixed("collects rows of all environments in one place", pair.line)

    return rule


def random_bits(pair: Pair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    made = [d for d in pair.output_sized() if kind.tag is not Tag.VARYING or d != kind.axis]
    if made:
        return mixed(
            "is drawn for every environment from one shared key, so replicas would draw the same "
            "numbers: draw with env.keys(key), one key per environment",
            pair.line,
        )
    return replace(kind, zero=False) if kind.tag is not Tag.PARTIAL else mixed(LOCAL, kind.line)


def convolution(pair: Pair, kinds: Kinds) -> Kind:
    lhs, rhs = kinds
    dims = pair.params["dimension_numbers"]
    same = same_class(pair, kinds)
    if same is not None:
        both = lhs.tag is rhs.tag is Tag.PARTIAL
        return mixed(LOCAL, lhs.line) if both else replace(same, affine=False)
    if lhs.tag is Tag.VARYING and rhs.tag is Tag.UNIFORM and lhs.axis == dims.lhs_spec[0]:
        return replace(lhs, axis=dims.out_spec[0], flexible=False, zero=False)
    if lhs.tag is rhs.tag is Tag.VARYING:
        contracted = lhs.axis == dims.lhs_spec[1] and rhs.axis == dims.rhs_spec[1]
        if contracted and pair.params["feature_group_count"] == 1:
            return partial(pair.line, degree=lhs.degree + rhs.degree + 1)
    return mixed("is convolved along the environment axis", pair.line)


def window(pair: Pair, kinds: Kinds) -> Kind:
    kind = kinds[0]
    if kind.tag is not Tag.VARYING:
        return kind if kind.tag is Tag.UNIFORM else mixed(LOCAL, kind.line)
    if pair.params["window_dimensions"][kind.axis] == 1:
        return replace(kind, flexible=False)
    return mixed("is pooled along the environment axis", pair.line)


def split(pair: Pair, kinds: Kinds) -> list[Kind]:
    kind = kinds[0]
    if kind.tag is Tag.VARYING and kind.axis == pair.params["axis"]:
        return [mixed("takes some rows of the environment axis", pair.line)] * len(pair.a.outvars)
    return [kind] * len(pair.a.outvars)


def unstack(pair: Pair, kinds: Kinds) -> list[Kind]:
    kind, axis = kinds[0], pair.params["axis"]
    if kind.tag is Tag.VARYING:
        if kind.axis == axis:
            kind = mixed("takes some rows of the environment axis", pair.line)
        else:
            kind = replace(kind, axis=kind.axis - (axis < kind.axis))
    return [kind] * len(pair.a.outvars)


def same_axis(_: Pair, kinds: Kinds) -> Kind:
    return replace(kinds[0], zero=False)


def barrier(_: Pair, kinds: Kinds) -> list[Kind]:
    return list(kinds)


INDEX_RULES: dict[str, Rule] = {
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "scatter": scatter(adds=False),
    "scatter-add": scatter(adds=True),
    "scatter-sub": scatter(adds=True),
    **dict.fromkeys(("scatter-mul", "scatter-max", "scatter-min"), scatter(adds=False)),
    "random_bits": random_bits,
    "random_split": random_bits,
    "random_wrap": same_axis,
    "random_unwrap": same_axis,
    "random_clone": same_axis,
    "conv_general_dilated": convolution,
    **dict.fromkeys(
        ("reduce_window_max", "reduce_window_sum", "reduce_window_min", "select_and_scatter_add"),
        window,
    ),
    "split": split,
    "unstack": unstack,
    "optimization_barrier": barrier,
}
