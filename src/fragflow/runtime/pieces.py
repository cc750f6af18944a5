"""What the runtime computes itself, inside segments: cutting, joining and collecting of values."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from fragflow._all_reduce import as_summed
from fragflow._jax import apart, is_key, plain_aval, wrapped_key
from fragflow.graph.ir import Parcel


def splitter(pieces: int, axis: int) -> Callable[..., Sequence[Any]]:
    """Cuts a value for a scatter."""

    def split(whole: Any) -> Sequence[Any]:
        return jnp.split(whole, pieces, axis)

    return split


def joiner(parcel: Parcel, aval: Any) -> Callable[..., Sequence[Any]]:
    """Joins the pieces of a gather or a reduction."""

    def gather(*parts: Any) -> Sequence[Any]:
        return (jnp.concatenate(parts, parcel.join),)

    def reduce(*parts: Any) -> Sequence[Any]:
        # Summed in the order of replicas, whichever came first.
        shaped = [as_summed(part.reshape(aval.shape)) for part in parts]
        total = shaped[0]
        for part in shaped[1:]:
            total = jnp.maximum(total, part) if parcel.collective == "reduce-max" else total + part
        total = total / len(parts) if parcel.collective == "reduce-mean" else total
        return (total.astype(aval.dtype),)

    return apart(reduce if parcel.join is None else gather)


def zeros(aval: Any) -> Callable[..., Sequence[Any]]:
    """Room for a loop's output."""

    def make() -> Sequence[Any]:
        if is_key(aval):
            plain = plain_aval(aval)
            return (wrapped_key(jnp.zeros(plain.shape, plain.dtype), aval),)
        return (jnp.zeros(aval.shape, aval.dtype),)

    return make


def take_row(whole: Any, step: Any) -> Sequence[Any]:
    """The row of a loop's input that a step reads."""
    return (lax.dynamic_index_in_dim(whole, step, 0, keepdims=False),)


def put_row(buffer: Any, element: Any, step: Any) -> Sequence[Any]:
    """A loop's output with the row that a step makes."""
    return (lax.dynamic_update_index_in_dim(buffer, element, step, 0),)
