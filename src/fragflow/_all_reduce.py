"""all_mean, all_sum, all_max: present in every trace, given a meaning when fragments are built."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

all_reduce_p = core.Primitive("all_reduce")
all_reduce_p.multiple_results = True


def _identity(*values: Any, operation: str) -> list[Any]:
    del operation
    return list(values)


all_reduce_p.def_impl(_identity)
all_reduce_p.def_abstract_eval(_identity)


def all_reduce(operation: str, values: Sequence[Any]) -> list[Any]:
    """Binds the reduction over replicas; the identity until a fragment is built."""
    return all_reduce_p.bind(*[jax.numpy.asarray(v) for v in values], operation=operation)


def _all_reduce_batch(args: Sequence[Any], dims: Sequence[Any], *, operation: str) -> Any:
    return all_reduce_p.bind(*args, operation=operation), list(dims)


def _all_reduce_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, operation: str) -> Any:
    if operation == "max":
        raise TypeError("all_max has no derivative: apply it outside the differentiated function")
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    return (
        all_reduce_p.bind(*primals, operation=operation),
        all_reduce_p.bind(*tangents, operation=operation),
    )


def _all_reduce_transpose(cotangents: Sequence[Any], *_: Any, operation: str) -> Any:
    # The mean (or sum) over replicas is symmetric, hence its own transpose.
    return all_reduce_p.bind(*[ad.instantiate_zeros(c) for c in cotangents], operation=operation)


batching.primitive_batchers[all_reduce_p] = _all_reduce_batch
ad.primitive_jvps[all_reduce_p] = _all_reduce_jvp
ad.primitive_transposes[all_reduce_p] = _all_reduce_transpose
mlir.register_lowering(all_reduce_p, mlir.lower_fun(_identity, multiple_results=True))


def reduce_over_axis(operation: str, values: Sequence[Any], axis: str) -> list[Any]:
    """The reduction among the shards of one SPMD group."""
    reduce = {"mean": _mean_over, "sum": _sum_over, "max": _max_over}[operation]
    return [reduce(v, axis) for v in values]


def _mean_over(x: Any, axis: str) -> Any:
    if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
        return lax.pmean(as_summed(x), axis).astype(x.dtype)
    # Integers are equal on all replicas (others are refused), and their sum may not fit the type.
    return lax.pmax(x.astype(np.int32) if x.dtype == bool else x, axis).astype(x.dtype)


def _sum_over(x: Any, axis: str) -> Any:
    return lax.psum(as_summed(x), axis).astype(x.dtype)


def _max_over(x: Any, axis: str) -> Any:
    most = lax.pmax(x, axis)
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return most
    # The collective loses NaN, which is the maximum wherever there is one.
    is_nan = lax.pmax(jax.numpy.isnan(x).astype(np.int32), axis)
    return jax.numpy.where(is_nan > 0, np.asarray(np.nan, x.dtype), most)


def as_summed(x: Any) -> Any:
    """`x` in the type in which JAX adds up: narrow floats would overflow, or lose digits."""
    is_narrow = jax.numpy.issubdtype(x.dtype, jax.numpy.floating) and x.dtype.itemsize < 4
    return x.astype(np.float32) if is_narrow else x
