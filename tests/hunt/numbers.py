"""Computes programs with NumPy, where compiling each would take all the time.

What is not in the table is bound eagerly: JAX compiles such an equation once for its shapes.
Replicas go from equation to equation together, and reduce where `all_...` stands.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special as special

from fragflow._jax import (
    Eqn,
    Literal,
    bind,
    branches_of,
    called_by,
    closed_jaxpr,
    contains_all_reduce,
    is_key,
    scan_of,
    while_of,
)

Params = dict[str, Any]
Function = Callable[..., Any]


def in_lockstep(closed: Any, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The results of every replica."""
    closed = closed_jaxpr(closed)
    envs: list[dict[Any, Any]] = []
    for args in parts:
        env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        envs.append(env | dict(zip(closed.jaxpr.invars, args, strict=True)))

    def read(env: dict[Any, Any], v: Any) -> Any:
        return v.val if isinstance(v, Literal) else env[v]

    for eqn in closed.jaxpr.eqns:
        args = [[read(env, v) for v in eqn.invars] for env in envs]
        for env, results in zip(envs, _equation(eqn, args), strict=True):
            env.update(zip(eqn.outvars, results, strict=True))
    return [[read(env, v) for v in closed.jaxpr.outvars] for env in envs]


def _equation(eqn: Eqn, args: list[list[Any]]) -> list[list[Any]]:
    if eqn.primitive.name == "all_reduce":
        results = [_reduced(eqn.params["operation"], list(x)) for x in zip(*args, strict=True)]
        return [results] * len(args)
    called = called_by(eqn)
    if called is not None:
        return in_lockstep(called, args)
    assert not contains_all_reduce(eqn), "only calls may reduce over replicas here"
    return [_results(eqn, part) for part in args]


def _reduced(operation: str, parts: list[Any]) -> Any:
    stacked = np.stack([np.asarray(p) for p in parts])
    if operation == "max":
        return stacked.max(0)
    total = stacked.sum(0, dtype=stacked.dtype)
    return total if operation == "sum" else np.asarray(total / len(parts)).astype(stacked.dtype)


def _results(eqn: Eqn, args: list[Any]) -> list[Any]:
    loop = LOOPS.get(eqn.primitive.name)
    if loop is not None:
        return loop(eqn, args)
    function = TABLE.get(eqn.primitive.name)
    if function is None or not all(map(_is_plain, (*eqn.invars, *eqn.outvars))):
        return bind(eqn, args)
    try:
        results = function(eqn.params, *[np.asarray(a) for a in args])
    except NotImplementedError:  # a case that the table leaves to JAX
        return bind(eqn, args)
    results = results if eqn.primitive.multiple_results else [results]
    return [np.asarray(r, v.aval.dtype) for r, v in zip(results, eqn.outvars, strict=True)]


def _is_plain(variable: Any) -> bool:
    """Whether NumPy calculates with values of this type as JAX does."""
    aval = variable.aval
    return hasattr(aval, "dtype") and not is_key(aval) and aval.dtype.kind in "biufc"


def _run(closed: Any, args: Sequence[Any]) -> list[Any]:
    return in_lockstep(closed, [args])[0]


def _scan(eqn: Eqn, args: list[Any]) -> list[Any]:
    scan = scan_of(eqn)
    consts, carry = args[: scan.consts], args[scan.consts : scan.consts + scan.carries]
    slices = args[scan.consts + scan.carries :]
    rows: list[list[Any]] = []
    order = range(scan.length)
    for t in reversed(order) if scan.reverse else order:
        out = _run(scan.body, [*consts, *carry, *(x[t] for x in slices)])
        carry = out[: scan.carries]
        rows.append(out[scan.carries :])
    if scan.reverse:
        rows.reverse()
    made = eqn.outvars[scan.carries :]
    if not rows:
        return [*carry, *(np.zeros(v.aval.shape, v.aval.dtype) for v in made)]
    return [*carry, *(_stacked([row[i] for row in rows]) for i in range(len(made)))]


def _stacked(rows: list[Any]) -> Any:
    if is_key(rows[0]):
        return jax.numpy.stack(rows)
    return np.stack([np.asarray(r) for r in rows])


def _while(eqn: Eqn, args: list[Any]) -> list[Any]:
    loop = while_of(eqn)
    tests = args[: loop.test_consts]
    consts = args[loop.test_consts : loop.test_consts + loop.consts]
    carry = args[loop.test_consts + loop.consts :]
    while True:
        going = np.asarray(_run(loop.test, [*tests, *carry])[0])
        if not going.any():
            return list(carry)
        new = _run(loop.body, [*consts, *carry])
        # With a condition per row, those that have ended stay as they are.
        carry = [_chosen(going, n, c) for n, c in zip(new, carry, strict=True)]


def _chosen(going: np.ndarray, new: Any, old: Any) -> Any:
    if going.ndim == 0 or is_key(new):
        return new
    shape = (*going.shape, *(1,) * (np.ndim(new) - going.ndim))
    return np.where(going.reshape(shape), np.asarray(new), np.asarray(old))


def _cond(eqn: Eqn, args: list[Any]) -> list[Any]:
    branches = branches_of(eqn)
    which = min(max(int(np.asarray(args[0])), 0), len(branches) - 1)
    return _run(branches[which], args[1:])


LOOPS = {"scan": _scan, "while": _while, "cond": _cond}


# Equations of one array or more: a function of the equation's parameters and of arrays.


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
        x = x.real
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
    sizes = [lo + hi + n + max(n - 1, 0) * i for (lo, hi, i), n in zip(config, x.shape, strict=True)]
    result = np.full(sizes, fill, x.dtype)
    inside = zip(config, x.shape, strict=True)
    result[tuple(slice(lo, lo + n + max(n - 1, 0) * i, i + 1) for (lo, _, i), n in inside)] = x
    return result


def _split(params: Params, x: np.ndarray) -> Any:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _unstack(params: Params, x: np.ndarray) -> Any:
    return [x.take(i, params["axis"]) for i in range(x.shape[params["axis"]])]


def _selected(_: Params, which: np.ndarray, *cases: np.ndarray) -> Any:
    if len(cases) == 1:
        return cases[0]
    return np.choose(which.astype(np.int64), cases) if len(cases) > 2 else np.where(which, cases[1], cases[0])


def _dot(params: Params, x: np.ndarray, y: np.ndarray) -> Any:
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    xs, ys = [""] * x.ndim, [""] * y.ndim
    batch = []
    for i, j in zip(xb, yb, strict=True):
        xs[i] = ys[j] = next(letters)
        batch.append(xs[i])
    for i, j in zip(xc, yc, strict=True):
        xs[i] = ys[j] = next(letters)
    xf = [i for i in range(x.ndim) if not xs[i]]
    yf = [j for j in range(y.ndim) if not ys[j]]
    for i in xf:
        xs[i] = next(letters)
    for j in yf:
        ys[j] = next(letters)
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


def _scatter(combine: Function) -> Function:
    def scatter(params: Params, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> Any:
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
    "add": _plain(np.add), "add_any": _plain(np.add), "sub": _plain(np.subtract), "mul": lambda _, x, y: x & y if x.dtype == bool else x * y,
    "div": _divided, "rem": _remainder, "neg": _plain(np.negative), "max": _plain(np.maximum), "min": _plain(np.minimum),
    "sin": _plain(np.sin), "cos": _plain(np.cos), "tan": _plain(np.tan), "sinh": _plain(np.sinh), "cosh": _plain(np.cosh),
    "tanh": _plain(np.tanh), "asin": _plain(np.arcsin), "acos": _plain(np.arccos), "atan": _plain(np.arctan),
    "asinh": _plain(np.arcsinh), "acosh": _plain(np.arccosh), "atanh": _plain(np.arctanh), "atan2": _plain(np.arctan2),
    "exp": _plain(np.exp), "exp2": _plain(np.exp2), "expm1": _plain(np.expm1), "log": _plain(np.log), "log1p": _plain(np.log1p),
    "logistic": lambda _, x: 1 / (1 + np.exp(-x)), "sqrt": _plain(np.sqrt), "rsqrt": lambda _, x: 1 / np.sqrt(x),
    "cbrt": _plain(np.cbrt), "square": _plain(np.square), "abs": _plain(np.abs), "sign": _plain(np.sign),
    "floor": _plain(np.floor), "ceil": _plain(np.ceil), "round": _round, "is_finite": _plain(np.isfinite),
    "pow": _plain(np.power), "integer_pow": lambda p, x: np.power(x, p["y"]) if p["y"] >= 0 or x.dtype.kind in "fc" else 1 // x,
    "eq": _plain(np.equal), "ne": _plain(np.not_equal), "lt": _plain(np.less), "le": _plain(np.less_equal),
    "gt": _plain(np.greater), "ge": _plain(np.greater_equal), "not": _plain(np.invert),
    "and": _plain(np.bitwise_and), "or": _plain(np.bitwise_or), "xor": _plain(np.bitwise_xor),
    "real": _plain(np.real), "imag": _plain(np.imag), "conj": _plain(np.conj), "complex": lambda _, x, y: x + 1j * y,
    "erf": _plain(special.erf), "erfc": _plain(special.erfc), "erf_inv": _plain(special.erfinv),
    "lgamma": _plain(special.gammaln), "digamma": _plain(special.digamma),
    "clamp": lambda _, low, x, high: np.minimum(np.maximum(x, low), high), "select_n": _selected,
    "convert_element_type": _cast, "broadcast_in_dim": _broadcast, "iota": _iota,
    "reshape": lambda p, x, *_: x.reshape(p["new_sizes"]), "squeeze": lambda p, x: x.squeeze(tuple(p["dimensions"])),
    "expand_dims": lambda p, x: np.expand_dims(x, p["dimensions"]), "transpose": lambda p, x: x.transpose(p["permutation"]),
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])), "slice": _slice, "pad": _pad,
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]), "stack": lambda p, *xs: np.stack(xs, p["axis"]),
    "split": _split, "unstack": _unstack, "tile": lambda p, x: np.tile(x, p["reps"]),
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "scatter": _scatter(lambda _, y: y), "scatter-add": _scatter(np.add), "scatter-sub": _scatter(np.subtract),
    "scatter-mul": _scatter(np.multiply), "scatter-max": _scatter(np.maximum), "scatter-min": _scatter(np.minimum),
    "reduce_sum": _summed, "reduce_prod": _times, "reduce_max": _reduces(np.max), "reduce_min": _reduces(np.min),
    "reduce_and": _reduces(np.bitwise_and.reduce), "reduce_or": _reduces(np.bitwise_or.reduce), "reduce_xor": _reduces(np.bitwise_xor.reduce),
    "argmax": _arg(np.argmax), "argmin": _arg(np.argmin),
    "cumsum": _accumulated(np.add), "cumprod": _accumulated(np.multiply), "cummax": _accumulated(np.maximum),
    "cummin": _accumulated(np.minimum), "cumlogsumexp": _accumulated(np.logaddexp), "dot_general": _dot, "sort": _sort,
}  # fmt: skip
"""by primitive, a function of an equation's parameters and of arrays"""

