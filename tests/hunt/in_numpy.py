"""Primitives in NumPy: each a function of an equation's parameters and of arrays.

Compiling every drawn program would take all the time. A case that is left to JAX raises
NotImplementedError.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special as special

Params = dict[str, Any]
Function = Callable[..., Any]


def _divided(_: Params, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y)
    quotient = np.trunc(x / safe) if x.dtype.kind == "i" else x // safe
    return np.where(y == 0, -1 if x.dtype.kind == "i" else np.iinfo(x.dtype).max, quotient)


def _remainder(_: Params, x: np.ndarray, y: np.ndarray) -> Any:
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


def _cast(params: Params, x: np.ndarray) -> Any:
    new = np.dtype(params["new_dtype"])
    if x.dtype.kind == "c" and new.kind != "c":
        x = np.real(x)
    if x.dtype.kind == "f" and new.kind in "iu":  # XLA goes to the nearest number there is
        bounds = np.iinfo(new)
        inside = np.clip(np.nan_to_num(np.trunc(x)), float(bounds.min), float(bounds.max))
        return np.where(inside >= float(bounds.max), bounds.max, inside).astype(new)
    return x.astype(new)


def _round(params: Params, x: np.ndarray) -> Any:
    if int(params["rounding_method"]) == 1:
        return np.round(x)
    return np.where(np.abs(x - np.trunc(x)) == 0.5, np.trunc(x) + np.sign(x) * 1.0, np.round(x))


def _broadcast(params: Params, x: np.ndarray, *_: Any) -> Any:
    shape, dims = params["shape"], params["broadcast_dimensions"]
    wide = [1] * len(shape)
    for d, size in zip(dims, x.shape, strict=True):
        wide[d] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _slice(params: Params, x: np.ndarray) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*end) for end in ends)]


def _starts(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    firsts = [min(max(int(s), 0), d - n) for s, d, n in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + n) for s, n in zip(firsts, sizes, strict=True))


def _dynamic_slice(params: Params, x: np.ndarray, *starts: Any) -> Any:
    return x[_starts(starts, x.shape, params["slice_sizes"])]


def _dynamic_update_slice(_: Params, x: np.ndarray, update: np.ndarray, *starts: Any) -> Any:
    result = x.copy()
    result[_starts(starts, x.shape, update.shape)] = update
    return result


def _iota(params: Params, *_: Any) -> Any:
    shape, d = params["shape"], params["dimension"]
    wide = [1] * len(shape)
    wide[d] = shape[d]
    return np.broadcast_to(np.arange(shape[d]).reshape(wide), shape)


def _pad(params: Params, x: np.ndarray, fill: np.ndarray) -> Any:
    config = params["padding_config"]
    if any(lo < 0 or hi < 0 for lo, hi, _ in config):
        raise NotImplementedError
    sizes = [
        lo + hi + n + max(n - 1, 0) * i for (lo, hi, i), n in zip(config, x.shape, strict=True)
    ]
    result = np.full(sizes, fill, x.dtype)
    inside = zip(config, x.shape, strict=True)
    result[tuple(slice(lo, lo + n + max(n - 1, 0) * i, i + 1) for (lo, _, i), n in inside)] = x
    return result


def _split(params: Params, x: np.ndarray) -> Any:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _unstack(params: Params, x: np.ndarray) -> Any:
    return [x.take(i, params["axis"]) for i in range(x.shape[params["axis"]])]


def _selected(_: Params, which: np.ndarray, *cases: np.ndarray) -> Any:
    return np.choose(which.astype(np.int64), cases)


def _dot(params: Params, x: np.ndarray, y: np.ndarray) -> Any:
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    submissions = iter("abcdefghijklmnopqrstuvwxyz")
    xs, ys = [""] * x.ndim, [""] * y.ndim
    batch = []
    for i, j in zip(xb, yb, strict=True):
        xs[i] = ys[j] = next(submissions)
        batch.append(xs[i])
    for i, j in zip(xc, yc, strict=True):
        xs[i] = ys[j] = next(submissions)
    xf = [i for i in range(x.ndim) if not xs[i]]
    yf = [j for j in range(y.ndim) if not ys[j]]
    for i in xf:
        xs[i] = next(submissions)
    for j in yf:
        ys[j] = next(submissions)
    out = [*batch, *(xs[i] for i in xf), *(ys[j] for j in yf)]
    return np.einsum(f"{''.join(xs)},{''.join(ys)}->{''.join(out)}", x, y)


def _arg(find: Function) -> Function:
    def function(params: Params, x: np.ndarray) -> Any:
        if x.dtype.kind == "f" and np.isnan(x).any():
            raise NotImplementedError
        return find(x, params["axes"][0])

    return function


def _accumulated(function: Any) -> Function:
    def accumulate(params: Params, x: np.ndarray) -> Any:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(function.accumulate(np.flip(x, axis), axis), axis)
        return function.accumulate(x, axis)

    return accumulate


def _sort(params: Params, *xs: np.ndarray) -> Any:
    keys, axis = params["num_keys"], params["dimension"]
    if any(x.dtype.kind not in "biu" and not np.isfinite(x).all() for x in xs[:keys]):
        raise NotImplementedError
    order = np.lexsort([*reversed(xs[:keys])], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in xs]


def _gather(params: Params, x: np.ndarray, indices: np.ndarray) -> Any:
    """Window by window, as the primitive is defined."""
    dims, sizes = params["dimension_numbers"], params["slice_sizes"]
    mode = str(params["mode"])
    batch_shape = indices.shape[:-1]
    rank = len(batch_shape) + len(dims.offset_dims)
    fill = _fill(params, x.dtype)
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    window = [n for d, n in enumerate(sizes) if d not in gone]
    result = np.empty((*batch_shape, *window), x.dtype)
    for place in np.ndindex(*batch_shape):
        start = [0] * x.ndim
        for k, d in enumerate(dims.start_index_map):
            start[d] = int(indices[place][k])
        for d, b in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True):
            start[d] = place[b]
        inside = all(0 <= s <= x.shape[d] - sizes[d] for d, s in enumerate(start))
        if not inside and "FILL" in mode:
            result[place] = fill
            continue
        cut = x[_starts(start, x.shape, sizes)]
        result[place] = cut.reshape(window)
    batch = [d for d in range(rank) if d not in dims.offset_dims]
    return np.moveaxis(result, range(rank), [*batch, *dims.offset_dims])


def _fill(params: Params, dtype: Any) -> Any:
    if params.get("fill_value") is not None:
        return params["fill_value"]
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min


def _written(_: np.ndarray, new: np.ndarray) -> np.ndarray:
    return new


def _scatter(combine: Function) -> Function:
    def scatter(params: Params, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> Any:
        if combine is _written and params["update_jaxpr"] is not None:
            raise NotImplementedError  # x.at[i].apply(f)
        dims = params["dimension_numbers"]
        clips = "CLIP" in str(params["mode"])
        gone = (*dims.inserted_window_dims, *dims.operand_batching_dims)
        kept = [d for d in range(x.ndim) if d not in gone]
        batch = [d for d in range(updates.ndim) if d not in dims.update_window_dims]
        moved = np.moveaxis(updates, [*batch, *dims.update_window_dims], range(updates.ndim))
        window = moved.shape[len(batch) :]
        sizes = [1] * x.ndim
        for d, n in zip(kept, window, strict=True):
            sizes[d] = n
        result = x.copy()
        for place in np.ndindex(*indices.shape[:-1]):
            start = [0] * x.ndim
            for k, d in enumerate(dims.scatter_dims_to_operand_dims):
                start[d] = int(indices[place][k])
            pairs = zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)
            for d, b in pairs:
                start[d] = place[b]
            inside = all(0 <= s <= x.shape[d] - sizes[d] for d, s in enumerate(start))
            if not inside and not clips:
                continue
            where = _starts(start, x.shape, sizes)
            result[where] = combine(result[where], moved[place].reshape(sizes))
        return result

    return scatter


def _plain(function: Function) -> Function:
    return lambda _, *args: function(*args)


def _reduces(function: Function) -> Function:
    return lambda params, x: function(x, axis=tuple(params["axes"]))


def _summed(params: Params, x: np.ndarray) -> Any:
    return x.sum(tuple(params["axes"]), dtype=x.dtype)


def _times(params: Params, x: np.ndarray) -> Any:
    return x.prod(tuple(params["axes"]), dtype=x.dtype)


TABLE: dict[str, Function] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "name"), lambda _, x: x),
    "optimization_barrier": lambda _, *xs: list(xs),
    "add": _plain(np.add),
    "add_any": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": lambda _, x, y: x & y if x.dtype == bool else x * y,
    "div": _divided,
    "rem": _remainder,
    "neg": _plain(np.negative),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tan": _plain(np.tan),
    "sinh": _plain(np.sinh),
    "cosh": _plain(np.cosh),
    "tanh": _plain(np.tanh),
    "asin": _plain(np.arcsin),
    "acos": _plain(np.arccos),
    "atan": _plain(np.arctan),
    "asinh": _plain(np.arcsinh),
    "acosh": _plain(np.arccosh),
    "atanh": _plain(np.arctanh),
    "atan2": _plain(np.arctan2),
    "exp": _plain(np.exp),
    "exp2": _plain(np.exp2),
    "expm1": _plain(np.expm1),
    "log": _plain(np.log),
    "log1p": _plain(np.log1p),
    "logistic": lambda _, x: 1 / (1 + np.exp(-x)),
    "sqrt": _plain(np.sqrt),
    "rsqrt": lambda _, x: 1 / np.sqrt(x),
    "cbrt": _plain(np.cbrt),
    "square": _plain(np.square),
    "abs": _plain(np.abs),
    "sign": _plain(np.sign),
    "floor": _plain(np.floor),
    "ceil": _plain(np.ceil),
    "round": _round,
    "is_finite": _plain(np.isfinite),
    "pow": _plain(np.power),
    "integer_pow": lambda p, x: (
        np.power(x, p["y"]) if p["y"] >= 0 or x.dtype.kind in "fc" else 1 // x
    ),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "not": _plain(np.invert),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "real": _plain(np.real),
    "imag": _plain(np.imag),
    "conj": _plain(np.conj),
    "complex": lambda _, x, y: x + 1j * y,
    "erf": _plain(special.erf),
    "erfc": _plain(special.erfc),
    "erf_inv": _plain(special.erfinv),
    "lgamma": _plain(special.gammaln),
    "digamma": _plain(special.digamma),
    "igamma": _plain(special.gammainc),
    "igammac": _plain(special.gammaincc),
    "regularized_incomplete_beta": _plain(special.betainc),
    "bessel_i0e": _plain(special.i0e),
    "bessel_i1e": _plain(special.i1e),
    "polygamma": _plain(special.polygamma),
    "zeta": _plain(special.zeta),
    "nextafter": _plain(np.nextafter),
    "clamp": lambda _, low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": _selected,
    "convert_element_type": _cast,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": lambda p, x, *_: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: x.squeeze(tuple(p["dimensions"])),
    "expand_dims": lambda p, x: np.expand_dims(x, p["dimensions"]),
    "transpose": lambda p, x: x.transpose(p["permutation"]),
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])),
    "slice": _slice,
    "pad": _pad,
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "stack": lambda p, *xs: np.stack(xs, p["axis"]),
    "split": _split,
    "unstack": _unstack,
    "tile": lambda p, x: np.tile(x, p["reps"]),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter(_written),
    "scatter-add": _scatter(np.add),
    "scatter-sub": _scatter(np.subtract),
    "scatter-mul": _scatter(np.multiply),
    "scatter-max": _scatter(np.maximum),
    "scatter-min": _scatter(np.minimum),
    "reduce_sum": _summed,
    "reduce_prod": _times,
    "reduce_max": _reduces(np.max),
    "reduce_min": _reduces(np.min),
    "reduce_and": _reduces(np.bitwise_and.reduce),
    "reduce_or": _reduces(np.bitwise_or.reduce),
    "reduce_xor": _reduces(np.bitwise_xor.reduce),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "cumsum": _accumulated(np.add),
    "cumprod": _accumulated(np.multiply),
    "cummax": _accumulated(np.maximum),
    "cummin": _accumulated(np.minimum),
    "cumlogsumexp": _accumulated(np.logaddexp),
    "dot_general": _dot,
    "sort": _sort,
}
"""by primitive, a function of an equation's parameters and of arrays"""
