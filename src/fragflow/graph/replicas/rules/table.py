"""The one table of what the replica check knows of each primitive.

Each primitive is added once; a second entry is an error at import. Beside its rule stand the data
of the guards: which values that are not plain rows may enter it at all, each with the proof.
Without a proof, such a value may not enter, and the rule is never asked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fragflow._jax import CALLS
from fragflow.graph.replicas.kinds import Kind
from fragflow.graph.replicas.rules import calls as calls
from fragflow.graph.replicas.rules import indexing as index
from fragflow.graph.replicas.rules import shapes_and_reductions as rules
from fragflow.graph.replicas.rules.elementwise import Rule, elementwise

Opened = Callable[..., list[Kind]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A primitive's rule, and what may enter it."""

    rule: Rule | None = None
    opened: Opened | None = None
    """of calls, loops and branches: reads what is inside, by the rules of the primitives there"""
    linear: str = ""
    """proof that f(x + y) = f(x) + f(y), other operands being uniform: a partial sum may enter"""
    monotone: str = ""
    """proof of f(max(x, y)) = max(f(x), f(y)), others being uniform: a partial maximum may enter"""
    homogeneous: str = ""
    """proof of f(c x) = c^e f(x), c > 0, e known: a count, or a gradient of a mean, may enter"""
    numbers: str = ""
    """proof that a row's own number stays one, or finds the row: it may enter"""


_TABLE: dict[str, Entry] = {}
TABLE: Mapping[str, Entry] = _TABLE


def add(names: str, rule: Rule | None = None, **facts: Any) -> None:
    """Adds primitives to the table, once each."""
    for name in names.split():
        if name in _TABLE:
            raise ValueError(f"primitive {name!r} has a replica rule already: each has one")
        _TABLE[name] = Entry(rule=rule, **facts)


# Entry by entry.

add(
    """
    abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt
    ceil clamp clz cos cosh digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igammac integer_pow is_finite le le_to lgamma log log1p log2 logistic lt_to mulhi ne nextafter
    not one_minus_square or polygamma polynomial population_count pow random_seed
    reduce_precision regularized_incomplete_beta rem round rsqrt shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square tan tanh threefry2x32 xor
    """,
    elementwise,
)
add("lt", elementwise, numbers="no row's number is below zero")
add(
    "neg",
    elementwise,
    linear="-(x + y) = -x - y",
    monotone="-max(x, y) = min(-x, -y): it becomes a minimum",
    homogeneous="-(c x) = c (-x)",
)
add(
    "convert_element_type",
    elementwise,
    linear="the number stays the same, up to rounding that its rows had: see rule_guards.py",
    monotone="x <= y stays so where the cast keeps the order: see rule_guards.py",
    homogeneous="the number stays the same, up to rounding: see rule_guards.py",
    numbers="an integer stays the same",
)
add(
    "copy copy_p name",
    elementwise,
    linear="the identity",
    monotone="the identity",
    homogeneous="the identity",
    numbers="the identity",
)
add(
    "real imag conj",
    elementwise,
    linear="each part of a sum is the sum of the parts",
    homogeneous="each part of c z is c times the part, c being real",
)
add(
    "complex",
    elementwise,
    linear="(a + b) + i (c + d) = (a + i c) + (b + i d): both operands are such sums",
    homogeneous="c a + i c b = c (a + i b): both have one degree",
)
add(
    "add add_any sub",
    elementwise,
    linear="(x + u) of parts is a part of (x + u), where u has x's degree or is such a sum",
    monotone="max(x, y) + u = max(x + u, y + u), one operand being the maximum",
    homogeneous="c x + c y = c (x + y): both have one degree",
    numbers="no number of a row any more: the rule says so",
)
add(
    "mul",
    elementwise,
    linear="(x + y) u = x u + y u, one operand being the sum",
    homogeneous="(c x) (c' y) = c c' (x y): degrees add up",
)
add(
    "div",
    elementwise,
    linear="(x + y) / u = x / u + y / u, for floats and a sum above the line: see rule_guards.py",
    homogeneous="(c x) / (c' y) = c / c' (x / y), for floats: see rule_guards.py",
)
add(
    "max min",
    elementwise,
    monotone="max(max(x, y), z) = max(max(x, z), max(y, z)), of the same kind: the rule asks",
    homogeneous="max(c x, c y) = c max(x, y) for c > 0: both have one degree",
)
add(
    "select_n",
    elementwise,
    linear="with a uniform condition it moves entries",
    monotone="with a uniform condition it moves entries",
    homogeneous="it moves entries, which have one degree",
    numbers="a condition that is false everywhere chooses the first: interpret.py says so",
)

# Moving entries.

_MOVES: dict[str, Any] = {
    "linear": "moves entries: so f(x + y) = f(x) + f(y), entry by entry",
    "monotone": "moves entries: so f(max(x, y)) = max(f(x), f(y)), entry by entry",
    "homogeneous": "moves entries: so f(c x) = c f(x), entry by entry",
}
_AND_OTHERS: dict[str, Any] = {
    "linear": "moves entries; what stands beside them has their degree, or is zero",
    "monotone": "moves entries; what stands beside them has their degree, or is zero",
    "homogeneous": "moves entries; what stands beside them has their degree, or is zero",
}
_NUMBERS = "row j has number j still, at the axis the rule says"
add("broadcast_in_dim", rules.broadcast_in_dim, **_MOVES, numbers=_NUMBERS)
add("reshape", rules.reshape, **_MOVES, numbers=_NUMBERS)
add("squeeze", rules.moving(rules.squeeze, ""), **_MOVES)
add("transpose", rules.moving(rules.transpose, ""), **_MOVES)
add(
    "rev",
    rules.moving(rules.along("dimensions"), "reverses the environment axis"),
    **_MOVES,
)
add(
    "slice",
    index.of_keys(rules.moving(rules.slice_, "takes some rows of the environment axis")),
    **_MOVES,
)
add("tile", rules.moving(rules.tile, "repeats the environment axis"), **_MOVES)
add("split", index.split, **_MOVES)
add("unstack", index.unstack, **_MOVES)
add(
    "optimization_barrier stop_gradient device_put",
    index.barrier,
    **_MOVES,
    numbers="the identity",
)
add("pad", rules.pad, **_AND_OTHERS)
add(
    "concatenate",
    rules.concatenate,
    **_AND_OTHERS,
    numbers="column by column: the rule remembers which column the numbers are",
)
add("stack", rules.stack, **_AND_OTHERS)
add("dynamic_slice", index.dynamic_slice, **_MOVES)
add("dynamic_update_slice", index.dynamic_update_slice, **_AND_OTHERS)
add(
    "gather",
    index.gather,
    linear="moves entries; zero, or NaN, where there is none: the rule looks at fill_value",
    monotone="moves entries; the rule looks at fill_value",
    homogeneous="moves entries; zero, or NaN, where there is none: the rule looks at fill_value",
    numbers="x[j, ...] for row j of x: its own entries",
)
add("scatter", index.scatter(adds=False), **_AND_OTHERS, numbers="row j writes into row j")
add(
    "scatter-add scatter-sub",
    index.scatter(adds=True),
    linear="sums of operand and updates, both of one degree",
    homogeneous="c x + c y = c (x + y): both have one degree",
    numbers="row j adds to row j",
)
add("scatter-mul scatter-max scatter-min", index.scatter(adds=False), numbers="row j into row j")
add("iota", rules.iota)

# Sums, products and orders.

add(
    "reduce_sum",
    rules.reduction("sum"),
    linear="a sum of sums is the sum of all",
    homogeneous="c x + c y = c (x + y)",
)
for _name, _other in (("max", "min"), ("min", "max")):
    add(
        f"reduce_{_name}",
        rules.reduction(_name),
        monotone=f"the {_name}imum of {_name}ima is that of all; the rule refuses a {_other}imum",
        homogeneous=f"{_name}(c x, c y) = c {_name}(x, y) for c > 0",
    )
    add(
        f"cum{_name}",
        rules.accumulated(_name),
        monotone=f"the {_name}imum of {_name}ima is that of all; the rule refuses a {_other}imum",
        homogeneous=f"{_name}(c x, c y) = c {_name}(x, y) for c > 0",
    )
add("reduce_prod reduce_and reduce_or reduce_xor argmax argmin", rules.reduction("other"))
add(
    "cumsum",
    rules.accumulated("sum"),
    linear="a sum of sums is the sum of all",
    homogeneous="c x + c y = c (x + y)",
)
add("cumprod cumlogsumexp", rules.accumulated("other"))
add("sort", rules.sort)
add(
    "top_k",
    rules.moving(rules.along("axis"), "sorts along the environment axis", keeps_zero=False),
)
add(
    "fft",
    rules.moving(rules.fft, "transforms along the environment axis"),
    linear="a Fourier transform is a matrix product with constants",
    homogeneous="a Fourier transform is a matrix product with constants",
)
add(
    "dot_general",
    rules.dot_general,
    linear="(x + y) u = x u + y u, one operand being the sum",
    homogeneous="(c x) (c' y) = c c' (x y): degrees add up",
)
add(
    "conv_general_dilated",
    rules.convolution,
    linear="(x + y) * u = x * u + y * u, one operand being the sum",
    homogeneous="(c x) * (c' y) = c c' (x * y): degrees add up",
)
add("reduce_window_sum", index.window("sum"), homogeneous="c x + c y = c (x + y)")
add(
    "reduce_window_max reduce_window_min",
    index.window("other"),
    homogeneous="max(c x, c y) = c max(x, y) for c > 0, and windows are filled up with infinity",
)
add(
    "select_and_scatter_add",
    index.select_and_scatter_add,
    homogeneous="linear in the first operand; which entries are chosen does not depend on a scale",
)
add(
    "all_reduce",
    rules.all_reduce,
    linear="this is the sum that the parts await",
    monotone="this is the maximum that the parts await",
    homogeneous="over replicas that hold the same: degree 1 and a sum, or degree 0",
)

# Random numbers, and environments on the host.

add("random_bits random_split", index.random_bits)
add("random_fold_in", index.fold_in)
add("random_wrap random_unwrap random_clone", index.same_axis)
add("host_call host_program", rules.host_call)

# Calls, loops and branches, whose insides are read.

add(" ".join(sorted(CALLS)), opened=calls.call)
add("scan", opened=calls.scan)
add("while", opened=calls.while_)
add("cond", opened=calls.cond)
add("custom_linear_solve", opened=calls.linear_solve)
