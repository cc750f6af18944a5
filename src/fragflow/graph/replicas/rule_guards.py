"""Guards around every rule: operands must be allowed to enter, the result must fit the shapes.

Rules are written one primitive at a time, and each may be wrong. These checks are written once, and
their default is to refuse.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import ClosedJaxpr, Eqn, Jaxpr, calls_back, closed_jaxpr
from fragflow._jax_typed import finfo, is_sequence
from fragflow.api.rows import digest
from fragflow.graph.replicas.constants import same_bits
from fragflow.graph.replicas.eqn_pair import EqnPair, sized_dims
from fragflow.graph.replicas.kinds import (
    COUNT,
    EXACT,
    LOCAL,
    SIZED,
    STRUCTURE,
    Kind,
    Tag,
    coarse,
    is_coarse,
    mixed,
)
from fragflow.graph.replicas.rules.table import TABLE, Entry

# Parameters that hold lengths, and so may differ: those of results, whose shapes are checked
# afterwards, and those along axes of the first operand.
_OF_RESULTS = {
    "broadcast_in_dim": "shape",
    "iota": "shape",
    "reshape": "new_sizes",
    "random_bits": "shape",
    "random_split": "shape",
}
_OF_OPERANDS: dict[str, tuple[str, ...]] = {
    "slice": ("start_indices", "limit_indices"),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
}
# Programs inside that are read by themselves, where a primitive is opened.
_PROGRAMS = frozenset(
    ("jaxpr", "call_jaxpr", "body_jaxpr", "cond_jaxpr", "branches", "jaxprs", "length")
)
# Derivatives, which do not run; where values lie; and objects that stand for the environments.
_IGNORED = """
fwd_jaxpr_thunk bwd jvp_jaxpr_fun jvp_jaxpr_thunk out_trees debug_info sharding out_sharding
in_shardings out_shardings in_layouts out_layouts ctx_mesh host ft_in ft_out linear unroll
compiler_options_kvs keep_unused donated_invars
"""
_NOT_COMPARED = frozenset(_IGNORED.split())
_NO_FUNCTIONS = ("rng_uniform", "empty")
"""primitives whose results depend on the device: drawn from its own state, or whatever memory
holds, though JAX does not call that an effect"""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def is_function(eqn: Eqn) -> bool:
    """True if results of `eqn` depend on its operands alone: nothing is called, stored or drawn."""
    return not (eqn.effects or calls_back(eqn) or eqn.primitive.name in _NO_FUNCTIONS)


def same_parameters(pair: EqnPair) -> bool:
    """True if parameters are the same in both traces, apart from lengths that may differ."""
    a, b = pair.a.params, pair.b.params
    if a.keys() != b.keys():
        return False
    lengths = _OF_OPERANDS.get(pair.name, ())
    entry = TABLE.get(pair.name)
    opened = _PROGRAMS if entry is not None and entry.opened is not None else frozenset[str]()
    for key in a.keys() - _NOT_COMPARED - opened - {_OF_RESULTS.get(pair.name)}:
        if key in lengths:
            sized = pair.input_sized(0)
            if len(a[key]) != len(b[key]) or any(
                x != y and i not in sized
                for i, (x, y) in enumerate(zip(a[key], b[key], strict=True))
            ):
                return False
        elif not _equal(a[key], b[key]):
            return False
    return True


def _is_number(value: Any) -> bool:
    """True for what is compared bit by bit: -0.0 equals 0.0, but is another number to functions."""
    return isinstance(value, np.ndarray | np.generic | jax.Array | float | complex)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Jaxpr | ClosedJaxpr) and isinstance(b, Jaxpr | ClosedJaxpr):
        return digest(closed_jaxpr(a)) == digest(closed_jaxpr(b))
    if _is_number(a) and _is_number(b):
        return type(a) is type(b) and same_bits(np.asarray(a), np.asarray(b))
    if is_sequence(a) and is_sequence(b) and type(a) is type(b):
        return len(a) == len(b) and all(map(_equal, a, b))
    try:
        if bool(a == b):
            return True
    except Exception:  # what cannot be compared may still be written in the same way
        pass
    # An object that is known by its address alone may do anything: a closure, say.
    return type(a) is type(b) and str(a) == str(b) and _ADDRESS.search(str(a)) is None


def precondition(pair: EqnPair, kinds: Sequence[Kind], entry: Entry) -> Kind | None:
    """The mixed kind of the results if these operands may not enter, with the reason; else None."""
    if not same_parameters(pair):
        return mixed(STRUCTURE, pair.line)
    for kind, variable in zip(kinds, pair.a.invars, strict=True):
        dtype = variable.aval.dtype
        if kind.tag is Tag.PARTIAL:
            met = _leaves_range(pair, kind, dtype)
            if met is not None:
                return mixed(coarse(met), pair.line)
            proof = entry.linear if kind.reduction == "sum" else entry.monotone
            if not proof or not _is_exact(pair, kind, dtype):
                return mixed(LOCAL, kind.line)
        elif kind.tag is Tag.ROW:
            if not entry.numbers:
                return mixed(kind.reason, kind.line)
        elif (
            kind.degree
            and not kind.zero
            and not (entry.homogeneous and _is_exact(pair, kind, dtype))
        ):
            return mixed(COUNT, pair.line)
    return None


_SCALES = ("mul", "div", "dot_general", "conv_general_dilated")
_CASTS = ("convert_element_type", "dot_general", "conv_general_dilated")
"""primitives whose results may have another type than their operands"""


def _is_exact(pair: EqnPair, kind: Kind, old: Any) -> bool:
    """True if this does to a value of type `old` what it would do to exact numbers."""
    wraps = wraps_around(old)
    if pair.name in ("neg", "add", "add_any", "sub"):
        return not (wraps and kind.tag is Tag.PARTIAL and kind.reduction != "sum")
    if pair.name == "div":
        return bool(jnp.issubdtype(old, jnp.inexact))
    if pair.name not in _CASTS:
        return True
    new = pair.a.outvars[0].aval.dtype
    if old == new:
        return True
    was_complex, is_complex = (jnp.issubdtype(t, jnp.complexfloating) for t in (old, new))
    was_float, is_float = (jnp.issubdtype(t, jnp.inexact) for t in (old, new))
    if was_complex and not is_complex:
        return False  # half of it is lost
    if kind.tag is Tag.PARTIAL and kind.reduction != "sum":
        if is_complex:
            return False
        # Rounding keeps the order, to an integer too; wrapping around does not.
        ordered = is_float or (was_float and not wraps_around(new)) or np.can_cast(old, new, "safe")
        return bool(ordered) and "b" not in (old.kind, new.kind)
    if "b" in (old.kind, new.kind) or wraps:
        return False
    if was_float and is_float:
        enough = digits_of(new) >= min(digits_of(old), kind.digits)
        return kind.tag is not Tag.PARTIAL or enough
    if is_float:
        return digits_of(new) >= digits_of(np.dtype(np.float32))
    return not was_float and bool(np.can_cast(old, new, "safe"))


def _leaves_range(pair: EqnPair, kind: Kind, old: Any) -> Any:
    """The type of a small range in which parts would be other numbers than the whole, if any.

    float16 may hold a mean or a sum of rows that were in it, but not what is scaled besides.
    """
    if is_coarse(old) and finfo(old).bits < 16:
        return old
    if kind.reduction != "sum":
        return None
    if is_coarse(old) and pair.name in _SCALES:
        return old
    new = pair.a.outvars[0].aval.dtype
    return new if new != old and is_coarse(new) and kind.digits != digits_of(new) else None


def wraps_around(dtype: Any) -> bool:
    """True for integers without a sign, or of few bits: parts wrap around where all do not.

    NumPy does not know the kind of types below a byte.
    """
    if not jnp.issubdtype(dtype, jnp.integer):
        return False
    return bool(jnp.issubdtype(dtype, jnp.unsignedinteger)) or jnp.iinfo(dtype).bits < 32


def digits_of(dtype: Any) -> int:
    """Binary digits of a float type; for other types, more than any float has."""
    return int(finfo(dtype).nmant) if jnp.issubdtype(dtype, jnp.inexact) else EXACT


def with_digits(pair: EqnPair, kinds: Sequence[Kind], results: Sequence[Kind]) -> list[Kind]:
    """Results that remember the float type that their rows were in, however they were cast since.

    Of several operands with rows, the widest: what is added to narrow rows need not be narrow.
    """
    met = [
        min(k.digits, digits_of(v.aval.dtype))
        for k, v in zip(kinds, pair.a.invars, strict=True)
        if k.tag in (Tag.VARYING, Tag.PARTIAL) and jnp.issubdtype(v.aval.dtype, jnp.inexact)
    ]
    digits = max(met, default=EXACT)
    if digits == digits_of(jnp.float16) and _scales(pair, kinds):
        digits = EXACT  # no numbers of float16's range any more
    return [
        replace(k, digits=digits) if k.tag in (Tag.VARYING, Tag.PARTIAL) else k for k in results
    ]


def _scales(pair: EqnPair, kinds: Sequence[Kind]) -> bool:
    """True if this multiplies by other numbers than counts of environments, as a mean does."""
    return pair.name in _SCALES and any(k.tag is Tag.UNIFORM and not k.degree for k in kinds)


def well_formed(kind: Kind, a: Any, b: Any, sizes: tuple[int, int]) -> bool:
    """True if the shapes in both traces are those that `kind` speaks of.

    The one axis whose length differs is the environment axis, with `outer * n * inner` entries in
    both; a value without an environment axis has the same shape in both.
    """
    sized = sized_dims(a, b)
    if kind.tag is Tag.MIXED:
        return True
    if kind.tag in (Tag.UNIFORM, Tag.PARTIAL):
        return not sized
    if sized != [kind.axis]:
        return False
    per_row = 1 if kind.tag is Tag.ROW else kind.outer * kind.inner
    lengths = (a.shape[kind.axis], b.shape[kind.axis])
    if kind.flexible:
        per_row, rest = divmod(lengths[0], sizes[0])
        return not rest and lengths[1] == per_row * sizes[1]
    return lengths == (per_row * sizes[0], per_row * sizes[1])


def postcondition(pair: EqnPair, kinds: Sequence[Kind]) -> list[Kind]:
    """Kinds as a rule gave them, where they fit the shapes; the others become mixed."""
    return [
        k if well_formed(k, x.aval, y.aval, pair.sizes) else mixed(SIZED, pair.line)
        for k, x, y in zip(kinds, pair.a.outvars, pair.b.outvars, strict=True)
    ]
