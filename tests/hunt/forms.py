"""Ways of writing that are no public function: indexing, control flow, gradients, sizes.

Each takes what a drawn step gives: arrays, numbers (some of which depend on how many environments
there are) and small choices. They reach primitives that no function of `jax.numpy` makes.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import fragflow as ff

UNARY: tuple[Callable[[Any], Any], ...] = (
    jnp.sin,
    lambda x: 2 * x,
    lambda x: x + 1,
    jnp.square,
    lambda x: jnp.cumsum(x, -1),
    lambda x: jnp.flip(x, -1),
    lambda x: x - jnp.mean(x),
    jnp.zeros_like,
    lambda x: -x,
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add,
    operator.mul,
    operator.sub,
    jnp.maximum,
    jnp.minimum,
    lambda x, y: x,
    lambda x, y: y,
)

# Replicas reduce among themselves.


def all_mean(x: Any) -> Any:
    return ff.all_mean(x)


def all_sum(x: Any) -> Any:
    return ff.all_sum(x)


def all_max(x: Any) -> Any:
    return ff.all_max(x)


# Indices.


def index(x: Any, i: Any) -> Any:
    return x[i]


def index_last(x: Any, i: Any) -> Any:
    return x[..., i]


def slice_first(x: Any, start: int, stop: int) -> Any:
    return x[start:stop]


def slice_second(x: Any, start: int, stop: int) -> Any:
    return x[:, start:stop]


def own_row(x: Any, i: Any) -> Any:
    return x[jnp.arange(x.shape[0]), i]


def _columns(i: Any, columns: int) -> Any:
    """The same indices in every column of an index of several axes."""
    i = jnp.asarray(i)
    return jnp.broadcast_to(i[..., None], (*i.shape, columns))


def gathered(x: Any, i: Any, columns: int, swapped: bool) -> Any:
    """An index that NumPy's way of writing does not make: its columns are one broadcast array."""
    axes = tuple(range(columns))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(jnp.ndim(i), jnp.ndim(i) + x.ndim - columns)),
        collapsed_slice_dims=axes,
        start_index_map=axes[::-1] if swapped else axes,
    )
    return lax.gather(x, _columns(i, columns), numbers, (1,) * columns + x.shape[columns:])


def gathered_own(x: Any, columns: int, swapped: bool) -> Any:
    return gathered(x, jnp.arange(x.shape[0]), columns, swapped)


def scattered(x: Any, i: Any, y: Any, columns: int, op: str) -> Any:
    axes = tuple(range(columns))
    rank = jnp.ndim(i)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(rank, rank + x.ndim - columns)),
        inserted_window_dims=axes,
        scatter_dims_to_operand_dims=axes,
    )
    updates = jnp.broadcast_to(jnp.asarray(y, x.dtype), (*jnp.shape(i), *x.shape[columns:]))
    write = {"sum": lax.scatter_add, "max": lax.scatter_max, "min": lax.scatter_min}
    return write.get(op, lax.scatter)(x, _columns(i, columns), updates, numbers)


def scattered_own(x: Any, y: Any, columns: int, op: str) -> Any:
    return scattered(x, jnp.arange(x.shape[0]), y, columns, op)


INDEXING: tuple[Callable[[Any, Any], Any], ...] = (
    lambda row, j: row[j],
    lambda row, j: lax.dynamic_slice_in_dim(row, j, 1),
    lambda row, j: row.at[j].set(2.0),
    lambda row, j: row.at[j].add(1.0),
    lambda row, j: lax.dynamic_update_slice_in_dim(row, row[:1] + 1, j, 0),
)


def indexed_each(x: Any, i: Any, axis: int, k: int) -> Any:
    """Along any axis, each entry by an index of its own, or all by the same."""
    in_axes = (axis, 0 if jnp.ndim(i) else None)
    return jax.vmap(INDEXING[k % len(INDEXING)], in_axes)(x, i)


def at(x: Any, i: Any, y: Any, method: str, mode: str | None) -> Any:
    return getattr(x.at[i], method)(y, mode=mode)


def at_last(x: Any, i: Any, y: Any, method: str, mode: str | None) -> Any:
    return getattr(x.at[..., i], method)(y, mode=mode)


def at_apply(x: Any, i: Any, y: Any) -> Any:
    return x.at[i].apply(lambda entry: jnp.cos(entry) * y)


def at_apply_last(x: Any, i: Any, y: Any) -> Any:
    return x.at[..., i].apply(lambda entry: entry * y + 1)


def at_get(x: Any, i: Any, mode: str, fill_value: Any) -> Any:
    return x.at[i].get(mode=mode, fill_value=fill_value)


def at_get_last(x: Any, i: Any, mode: str, fill_value: Any) -> Any:
    return x.at[..., i].get(mode=mode, fill_value=fill_value)


def per_row(x: Any, i: Any) -> Any:
    return jax.vmap(lambda row, k: row[k])(x, i)


def write_row(x: Any, i: Any, y: Any, method: str) -> Any:
    return jax.vmap(lambda row, k, v: getattr(row.at[k], method)(v))(x, i, y)


# Types.


def cast(x: Any, dtype: str) -> Any:
    return x.astype(dtype)


def power(x: Any, k: Any) -> Any:
    return x**k


def floor_divide(x: Any, k: Any) -> Any:
    return x // k


def bits(x: Any) -> Any:
    return lax.bitcast_convert_type(
        x, {8: "int64", 4: "int32", 2: "int16", 1: "int8"}[x.dtype.itemsize]
    )


# Sizes as numbers, in Python.


def branch(x: Any, taken: bool, one: int, other: int) -> Any:
    return UNARY[one](x) if taken else UNARY[other](x)


def ordered(x: Any, y: Any, swapped: bool, k: int) -> Any:
    return BINARY[k](y, x) if swapped else BINARY[k](x, y)


def rewired(x: Any, swapped: bool, one: int, other: int) -> Any:
    a, b = UNARY[one](x), UNARY[other](x)
    if swapped:
        a, b = b, a
    return 2 * a + b


def repeated(x: Any, times: int, k: int) -> Any:
    for _ in range(times % 8):
        x = UNARY[k](x)
    return x


def scaled(x: Any, k: Any) -> Any:
    return x * k


def shifted(x: Any, k: Any) -> Any:
    return x + k


def ramp(length: int, step: Any) -> Any:
    return jnp.arange(length) * step


def constant(length: int, value: Any) -> Any:
    return jnp.asarray(np.full(length, value))


def numbered(length: int) -> Any:
    return jnp.asarray(np.arange(length) / 7.0)


def pattern(x: Any, k: int) -> Any:
    """A pattern along the last axis for every row, folded into the rows."""
    wide = jnp.broadcast_to(jnp.arange(float(k)), (x.shape[0], k))
    return wide.reshape(-1)


def ravelled(x: Any) -> Any:
    return x.reshape(-1)


def merged(x: Any) -> Any:
    """The first two axes as one."""
    return x.reshape(-1, *x.shape[2:])


def unmerged(x: Any, k: int) -> Any:
    return x.reshape(k, -1, *x.shape[1:])


def unmerged_last(x: Any, k: int) -> Any:
    return x.reshape(-1, k, *x.shape[1:])


def with_count(x: Any, count: Any) -> Any:
    return jnp.stack([jnp.mean(x), jnp.asarray(count, x.dtype)])


# Loops and branches.


def scan_rows(x: Any, k: int, reverse: bool) -> Any:
    """Over the first axis, with a carry."""

    def body(carry: Any, row: Any) -> Any:
        carry = BINARY[k](carry, row)
        return carry, carry

    return lax.scan(body, jnp.zeros_like(x[0]), x, reverse=reverse)


def scan_map(x: Any, k: int) -> Any:
    return lax.scan(lambda _, row: (None, UNARY[k](row)), None, x)[1]


def scan_turns(x: Any, turns: int, k: int) -> Any:
    return lax.scan(lambda carry, _: (UNARY[k](carry), carry.sum()), x, None, length=turns % 8)


def scan_pair(x: Any, y: Any, k: int) -> Any:
    """Carries that change places."""
    return lax.fori_loop(0, 3, lambda _, c: (c[1], BINARY[k](c[0], c[1])), (x, y))


def mapped(x: Any, k: int) -> Any:
    return lax.map(UNARY[k], x)


def turns(x: Any, count: Any, k: int) -> Any:
    return lax.fori_loop(0, count, lambda _, c: UNARY[k](c), x)


def until(x: Any, limit: float) -> Any:
    """One condition for all rows."""
    return lax.while_loop(
        lambda c: jnp.any(c[0] < limit) & (c[1] < 9), lambda c: (c[0] + 0.3, c[1] + 1), (x, 0)
    )


def until_each(x: Any, limit: float) -> Any:
    """A condition per row."""

    def one(row: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0].sum() < limit) & (c[1] < 9), lambda c: (c[0] + 0.3, c[1] + 1), (row, 0)
        )

    return jax.vmap(one)(x)


def cond(test: Any, x: Any, one: int, other: int) -> Any:
    return lax.cond(jnp.sum(test) > 0, UNARY[one], UNARY[other], x)


def cond_pair(test: Any, x: Any, y: Any) -> Any:
    return lax.cond(jnp.ravel(test)[0] > 0, lambda: (x, y), lambda: (y, x))


def switch(i: Any, x: Any) -> Any:
    return lax.switch(jnp.ravel(i)[0].astype("int32"), UNARY, x)


def cond_each(x: Any, one: int, other: int) -> Any:
    return jax.vmap(lambda row: lax.cond(row.sum() > 0, UNARY[one], UNARY[other], row))(x)


# Derivatives and calls.


def gradient(x: Any, w: Any) -> Any:
    """Of a mean over everything, by what all rows share and by the rows."""
    return jax.grad(lambda w, x: jnp.mean(jnp.square(jnp.tanh(x) * w)), (0, 1))(w, x)


def gradient_of_sum(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jnp.sin(x) * w))(w)


def tangent(x: Any, y: Any, k: int) -> Any:
    return jax.jvp(UNARY[k], (x,), (y,))[1]


@jax.custom_jvp
def _halved(x: Any) -> Any:
    return x / 2


@_halved.defjvp
def _halved_jvp(primals: Any, tangents: Any) -> Any:
    return _halved(*primals), tangents[0] / 2


@jax.custom_vjp
def _doubled(x: Any) -> Any:
    return 2 * x


_doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def custom(x: Any) -> Any:
    return _halved(x), _doubled(x)


def recomputed(x: Any, k: int) -> Any:
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(UNARY[k])(x)))(x)


def named(x: Any) -> Any:
    return checkpoint_name(x, "named")


def barrier(x: Any, y: Any) -> Any:
    return lax.optimization_barrier((x, y))


def solve(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(lambda v: 3 * v + 0 * a, b, lambda _, c: c / 3)


# Windows, convolutions, products.


def pooled(x: Any, size: int, op: str) -> Any:
    """Over the last axis."""
    window = (1,) * (x.ndim - 1) + (size,)
    init, how = {
        "sum": (0.0, lax.add),
        "max": (-jnp.inf, lax.max),
        "min": (jnp.inf, lax.min),
        "mul": (1.0, lax.mul),
    }[op]
    return lax.reduce_window(x, init, how, window, (1,) * x.ndim, "VALID")


def pooled_first(x: Any, size: int, op: str) -> Any:
    return jnp.moveaxis(pooled(jnp.moveaxis(x, 0, -1), size, op), -1, 0)


def pooled_gradient(x: Any, size: int, op: str) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.square(pooled(x, size, op))))(x)


def convolved(x: Any, kernel: Any) -> Any:
    """`[rows, length]` with `[taps]`."""
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        x[:, :, None], kernel[:, None, None], (1,), "SAME", dimension_numbers=numbers
    )[..., 0]


def convolved_gradient(x: Any, kernel: Any) -> Any:
    return jax.grad(lambda k: jnp.mean(jnp.square(convolved(x, k))))(kernel)


def contracted(x: Any, y: Any, contract: tuple[int, int], batch: Sequence[int]) -> Any:
    left, right = contract
    return lax.dot_general(x, y, (((left,), (right,)), (tuple(batch), tuple(batch))))


def product(x: Any, y: Any, spec: str) -> Any:
    return jnp.einsum(spec, x, y)


def sorted_pair(x: Any, y: Any, axis: int, keys: int) -> Any:
    return lax.sort((x, y), dimension=axis % x.ndim, num_keys=keys)


def custom_reduce(x: Any, axis: int, k: int) -> Any:
    how = (lax.add, lax.mul, lax.max, lax.bitwise_xor)[k]
    return lax.reduce(x, jnp.zeros((), x.dtype), how, (axis % x.ndim,))


# Random numbers.


def drawn(key: Any, rows: int, k: int) -> Any:
    """From one key, for all rows."""
    how = (jax.random.normal, jax.random.uniform, jax.random.bits)[k]
    return how(key, (rows, 2))


def drawn_each(keys: Any, k: int) -> Any:
    how = (jax.random.normal, jax.random.uniform, jax.random.bits)[k]
    return jax.vmap(lambda key: how(key, (2,)))(keys)


def folded(key: Any, data: Any) -> Any:
    return jax.random.key_data(jax.random.fold_in(key, data))


def split_each(keys: Any) -> Any:
    return jax.vmap(jax.random.split)(keys)


def rewrapped(keys: Any) -> Any:
    return jax.random.wrap_key_data(jax.random.key_data(keys))


def split_for(key: Any, count: int) -> Any:
    return jax.random.split(key, count)


def split_into(x: Any, axis: int, first: int) -> Any:
    axis %= x.ndim
    return lax.split(x, (first, x.shape[axis] - first), axis)


def unstacked(x: Any, axis: int) -> Any:
    return jnp.unstack(x, axis=axis % x.ndim)
