"""Uses JAX's batching rules to judge primitives that have no replica rule.

An equation that `jax.vmap` makes of one row's equation works row by row, by the batching rule.
"""

from dataclasses import replace
from typing import Any

import jax

from fragflow._jax import Eqn, bind, called_by, draws_together
from fragflow._jax_typed import make_jaxpr
from fragflow.graph.replicas.eqn_pair import EqnPair
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.graph.replicas.rules.elementwise import Kinds, layout_of


def batched(pair: EqnPair, kinds: Kinds) -> list[Kind] | None:
    """Kinds of the results if the equation is a batched one in both traces; else None."""
    if any(k.tag not in (Tag.UNIFORM, Tag.VARYING) or k.degree for k in kinds):
        return None
    if draws_together(pair.a):
        return None
    layout = layout_of(pair, kinds)
    if layout is None or layout.tag is Tag.MIXED:
        return None
    axes = tuple(int(k.axis) if k.tag is Tag.VARYING else None for k in kinds)
    made = [pair.output_sized(i) for i in range(len(pair.a.outvars))]
    if any(len(sized) != 1 for sized in made):
        return None
    out_axes = tuple(int(sized[0]) for sized in made)
    if not all(_is_batched(eqn, axes, out_axes) for eqn in (pair.a, pair.b)):
        return None
    return [replace(layout, axis=axis, flexible=False, zero=False) for axis in out_axes]


def _is_batched(eqn: Eqn, axes: tuple[int | None, ...], out_axes: tuple[int, ...]) -> bool:
    """True if vmap of its primitive along `axes` gives `eqn` itself, with the same parameters."""

    def one(*args: Any) -> tuple[Any, ...]:
        return tuple(bind(eqn, args))

    inputs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    try:
        # A batching rule does not look at a row: first there must be an equation of one row.
        row = make_jaxpr(one)(*map(_without, inputs, axes)).jaxpr
        made = make_jaxpr(jax.vmap(one, in_axes=axes, out_axes=out_axes))(*inputs).jaxpr
    except Exception:  # parameters that are those of one size only, or no rule at all
        return False
    if [v.aval.shape for v in row.outvars] != [
        _without(v.aval, axis).shape for v, axis in zip(eqn.outvars, out_axes, strict=True)
    ]:
        return False
    while len(made.eqns) == 1 and _is_that(made) and (inner := called_by(made.eqns[0])) is not None:
        made = inner.jaxpr  # a batching rule may wrap its equation in a call
    if len(made.eqns) != 1 or not _is_that(made) or made.eqns[0].primitive is not eqn.primitive:
        return False
    own: Any = made.eqns[0].params
    return own.keys() == eqn.params.keys() and all(
        str(own[key]) == str(value) for key, value in eqn.params.items()
    )


def _without(aval: Any, axis: int | None) -> jax.ShapeDtypeStruct:
    """The type of one row."""
    shape = tuple(n for d, n in enumerate(aval.shape) if d != axis)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _is_that(jaxpr: Any) -> bool:
    """True if a program is its one equation: the same inputs and results, in the same order."""
    eqn = jaxpr.eqns[0]
    return list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars)
