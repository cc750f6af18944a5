"""What is drawn from: the public functions of JAX's modules, and how their arguments are made.

Functions are found, not listed: those that a release adds are drawn from the day it is installed.
Arguments are made by the names of parameters; where a name does not tell, by a line of `SPECIAL`.
"""

import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.scipy

from hunt import forms
from hunt.draw import Draw

Arguments = Callable[[Draw], tuple[tuple[Any, ...], dict[str, Any]]]

MODULES = (
    "jax.numpy",
    "jax.numpy.linalg",
    "jax.numpy.fft",
    "jax.lax",
    "jax.lax.linalg",
    "jax.nn",
    "jax.random",
    *(m.name for m in pkgutil.walk_packages(jax.scipy.__path__, "jax.scipy.")),
)
WEIGHTS = {"jax.numpy": 5, "jax.lax": 5, "jax.nn": 1.5, "hunt.forms": 6, "jax.random": 0.7}
"""how often a module is drawn from; others 0.5 each, those of statistics 0.1"""

UNFIT: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "load",
            "save",
            "savez",
            "frombuffer",
            "fromfile",
            "fromiter",
            "fromstring",
            "from_dlpack",
        ],
        "reads or writes files",
    ),
    **dict.fromkeys(
        ["array_repr", "array_str", "printoptions", "get_printoptions", "set_printoptions"],
        "makes text",
    ),
    **dict.fromkeys(
        [
            "can_cast",
            "promote_types",
            "result_type",
            "issubdtype",
            "isdtype",
            "iscomplexobj",
            "isrealobj",
            "isscalar",
            "ndim",
            "shape",
            "size",
            "iterable",
            "dtype",
            "broadcast_shapes",
            "einsum_path",
            "finfo",
            "iinfo",
        ],
        "is about types, and makes no array",
    ),
    **dict.fromkeys(
        [
            "vectorize",
            "frompyfunc",
            "fromfunction",
            "apply_along_axis",
            "apply_over_axes",
            "piecewise",
        ],
        "takes a function",
    ),
    **dict.fromkeys(
        ["key_impl", "default_prng_impl", "PRNGKey", "key", "wrap_key_data"],
        "makes keys from numbers",
    ),
    **dict.fromkeys(
        ["put", "fill_diagonal", "place", "put_along_axis"],
        "writes into its argument unless told otherwise",
    ),
    **dict.fromkeys(
        [
            "all_gather",
            "all_to_all",
            "axis_index",
            "axis_size",
            "pmax",
            "pmean",
            "pmin",
            "ppermute",
            "precv",
            "preduced",
            "psend",
            "pshuffle",
            "psum",
            "psum_scatter",
            "pswapaxes",
            "pvary",
            "pcast",
            "pbroadcast",
            "ragged_all_to_all",
        ],
        "works along a named axis, of which a user's program has none",
    ),
    **dict.fromkeys(
        ["after_all", "create_token", "with_sharding_constraint", "reshard"],
        "is about devices and order",
    ),
    **dict.fromkeys(
        ["minimize", "funm", "rsf2csf", "scaled_matmul", "get_scaled_dot_general_config"],
        "takes a function or a configuration",
    ),
}
"""by a function's name, why it is not drawn"""


def _args(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


METHODS = ("set", "add", "subtract", "multiply", "max", "min", "divide")
OPERATIONS = ("sum", "max", "min", "set")
MODES = ("fill", "clip", "drop", "wrap", None)

SPECIAL: dict[str, Arguments] = {
    "jax.lax.top_k": lambda d: _args(d.matrix(1), d.integer(1, 3)),
    "jax.lax.approx_max_k": lambda d: _args(d.matrix(1), 2),
    "jax.lax.broadcast": lambda d: _args(d.array(), (d.length(),)),
    "jax.lax.broadcast_in_dim": lambda d: _args(d.vector(), (d.length(), 3), (1,)),
    "jax.lax.broadcasted_iota": lambda d: _args("int32", (d.length(), 3), d.integer(0, 2)),
    "jax.lax.iota": lambda d: _args("int32", d.length()),
    "jax.lax.concatenate": lambda d: _args([d.array(), d.array()], d.integer(0, 2)),
    "jax.lax.stack": lambda d: _args([d.array(), d.array()], d.integer(0, 2)),
    "jax.lax.convert_element_type": lambda d: _args(d.array(), d.dtype()),
    "jax.lax.dynamic_slice_in_dim": lambda d: _args(
        d.matrix(1), d.places_or(), d.integer(1, 4), d.axis()
    ),
    "jax.lax.dynamic_index_in_dim": lambda d: _args(d.matrix(1), d.places_or(), d.axis()),
    "jax.lax.dynamic_update_slice_in_dim": lambda d: _args(
        d.array(), d.array(), d.places_or(), d.axis()
    ),
    "jax.lax.dynamic_update_index_in_dim": lambda d: _args(
        d.array(), d.array(), d.places_or(), d.axis()
    ),
    "jax.lax.slice_in_dim": lambda d: _args(
        d.matrix(1), d.integer(0, 2), d.integer(1, 5), d.integer(1, 3), d.axis()
    ),
    "jax.lax.index_in_dim": lambda d: _args(d.matrix(1), d.integer(0, 3), d.axis()),
    "jax.lax.pad": lambda d: _args(
        d.matrix(1), d.number(), [(d.integer(0, 2), d.integer(0, 2), d.integer(0, 2))]
    ),
    "jax.lax.reduce_precision": lambda d: _args(
        d.array("float"), d.one_of((5, 8, 11)), d.one_of((3, 10, 52))
    ),
    "jax.lax.select": lambda d: _args(d.array("bool"), d.array(), d.array()),
    "jax.lax.select_n": lambda d: _args(d.array("bool"), d.array(), d.array()),
    "jax.lax.sort": lambda d: _args(d.matrix(1), dimension=d.axis()),
    "jax.lax.integer_pow": lambda d: _args(d.array(), d.integer(-2, 4)),
    "jax.lax.rng_bit_generator": lambda d: _args(
        d.fresh("int", ((4,), (4,)), "uint32"), (d.length(),)
    ),
    "jax.lax.fft": lambda d: _args(d.matrix(1), "fft", (3,)),
    "jax.lax.tile": lambda d: _args(d.matrix(1), (d.integer(1, 3),)),
    "jax.lax.expand_dims": lambda d: _args(d.array(), (d.integer(0, 3),)),
    "jax.lax.squeeze": lambda d: _args(d.array(), (d.axis(),)),
    "jax.lax.rev": lambda d: _args(d.matrix(1), (d.integer(0, 2),)),
    "jax.lax.transpose": lambda d: _args(d.matrix(2), (1, 0)),
    "jax.lax.reshape": lambda d: _args(d.matrix(1), (d.length(), 3)),
    "jax.lax.linalg.triangular_solve": lambda d: _args(d.square(), d.array()),
    "jax.lax.linalg.tridiagonal_solve": lambda d: _args(
        d.vector(), d.vector(), d.vector(), d.matrix(2)
    ),
    "jax.lax.linalg.householder_product": lambda d: _args(d.square(), d.vector()),
    "jax.lax.linalg.cholesky_update": lambda d: _args(
        d.fresh("float", ((3, 3), (3, 3)), "float64"), d.vector()
    ),
    "jax.numpy.einsum": lambda d: _args(
        d.one_of(("ij,ij->", "ij,ij->i", "ij,kj->ik", "ij,jk->ik", "ij,ij->j", "ij,ij->ji")),
        d.matrix(2),
        d.matrix(2),
    ),
    "jax.numpy.repeat": lambda d: _args(d.array(), d.integer(1, 4), axis=d.one_of((None, 0, -1))),
    "jax.numpy.tile": lambda d: _args(d.array(), d.integer(1, 4)),
    "jax.numpy.pad": lambda d: _args(
        d.array(), d.integer(0, 3), mode=d.one_of(("constant", "edge", "wrap", "reflect"))
    ),
    "jax.numpy.reshape": lambda d: _args(
        d.array(), d.one_of(((-1,), (-1, 3), (3, -1), (1, -1), (d.length(), -1)))
    ),
    "jax.numpy.broadcast_to": lambda d: _args(d.vector(), (d.length(), 3)),
    "jax.numpy.full": lambda d: _args((d.length(), 2), d.one_of((d.number(), d.vector()))),
    "jax.numpy.linspace": lambda d: _args(d.number(), d.number(), d.length()),
    "jax.numpy.take": lambda d: _args(
        d.array(),
        d.places_or(),
        axis=d.one_of((None, d.axis())),
        mode=d.one_of(("fill", "clip", "wrap")),
        fill_value=d.one_of((None, d.number())),
    ),
    "jax.numpy.take_along_axis": lambda d: _args(d.array(), d.array("int"), axis=d.axis()),
    "jax.numpy.searchsorted": lambda d: _args(d.vector(), d.array()),
    "jax.numpy.interp": lambda d: _args(d.array("float"), d.vector(), d.vector()),
    "jax.numpy.where": lambda d: _args(
        d.array("bool"), d.one_of((d.array(), d.number())), d.one_of((d.array(), d.number()))
    ),
    "jax.numpy.clip": lambda d: _args(d.array(), d.number(), d.number()),
    "jax.numpy.roll": lambda d: _args(d.array(), d.integer(1, 3), axis=d.one_of((None, d.axis()))),
    "jax.numpy.astype": lambda d: _args(d.array(), d.dtype()),
    "jax.numpy.power": lambda d: _args(d.array(), d.one_of((d.array(), d.integer(1, 4)))),
    "jax.numpy.arange": lambda d: _args(d.length()),
    "jax.numpy.split": lambda d: _args(d.array(), d.integer(1, 4), axis=d.axis()),
    "jax.numpy.unravel_index": lambda d: _args(d.array("int"), (3, 3)),
    "jax.numpy.bincount": lambda d: _args(d.places(), length=d.integer(3, 6)),
    "jax.numpy.linalg.solve": lambda d: _args(d.square(), d.square()),
    "jax.nn.one_hot": lambda d: _args(d.places_or(), d.integer(2, 5)),
    "jax.lax.polygamma": lambda d: _args(d.array("float"), d.array("float")),
    "jax.lax.reduce_xor": lambda d: _args(d.matrix(1, "int"), (d.integer(0, 1),)),
    "hunt.forms.rewrapped": lambda d: _args(d.keys()),
    "hunt.forms.custom_reduce": lambda d: _args(
        d.matrix(1, d.one_of(("int", "float"))), d.axis(), d.integer(0, 4)
    ),
    "jax.random.split": lambda d: _args(d.keys(), d.integer(1, 4)),
    "jax.random.fold_in": lambda d: _args(d.keys(), d.one_of((d.integer(), d.places()))),
    "jax.random.categorical": lambda d: _args(d.keys(), d.array("float")),
    "jax.random.permutation": lambda d: _args(d.keys(), d.array()),
    "jax.random.choice": lambda d: _args(d.keys(), d.array()),
    "jax.random.randint": lambda d: _args(d.keys(), (d.length(),), 0, d.integer(2, 5)),
    "hunt.forms.index": lambda d: _args(d.matrix(1), d.one_of((d.integer(0, 3), d.places_or()))),
    "hunt.forms.index_last": lambda d: _args(
        d.matrix(1), d.one_of((d.integer(0, 3), d.places_or()))
    ),
    "hunt.forms.at": lambda d: _args(
        d.matrix(1),
        d.one_of((d.integer(0, 3), d.places_or())),
        d.one_of((d.number(), d.array())),
        d.one_of(METHODS),
        d.one_of(MODES),
    ),
    "hunt.forms.at_last": lambda d: _args(
        d.matrix(1),
        d.one_of((d.integer(0, 3), d.places_or())),
        d.one_of((d.number(), d.array())),
        d.one_of(METHODS),
        d.one_of(MODES),
    ),
    "hunt.forms.at_apply": lambda d: _args(
        d.matrix(1), d.one_of((d.integer(0, 3), d.places_or())), d.number()
    ),
    "hunt.forms.at_apply_last": lambda d: _args(
        d.matrix(1), d.one_of((d.integer(0, 3), d.places_or())), d.number()
    ),
    "hunt.forms.at_get": lambda d: _args(
        d.matrix(1), d.places(), d.one_of(("fill", "clip")), d.one_of((None, d.number()))
    ),
    "hunt.forms.at_get_last": lambda d: _args(
        d.matrix(1), d.places(), d.one_of(("fill", "clip")), d.one_of((None, d.number()))
    ),
    "hunt.forms.gathered": lambda d: _args(
        d.matrix(2), d.places_or(), d.integer(1, 3), d.chance(0.5)
    ),
    "hunt.forms.gathered_own": lambda d: _args(d.rows(), d.integer(1, 3), d.chance(0.5)),
    "hunt.forms.scattered": lambda d: _args(
        d.matrix(2), d.places_or(), d.number(), d.integer(1, 3), d.one_of(OPERATIONS)
    ),
    "hunt.forms.scattered_own": lambda d: _args(
        d.rows(), d.number(), d.integer(1, 3), d.one_of(OPERATIONS)
    ),
    "hunt.forms.indexed_each": lambda d: _args(
        d.matrix(2), d.places_or(), d.axis(), d.integer(0, 9)
    ),
    "hunt.forms.own_row": lambda d: _args(d.rows(), d.row_places()),
    "hunt.forms.per_row": lambda d: _args(d.rows(), d.row_places()),
    "hunt.forms.write_row": lambda d: _args(
        d.rows(), d.row_places(), d.row_places(), d.one_of(METHODS)
    ),
    "hunt.forms.contracted": lambda d: _args(
        d.matrix(2), d.matrix(2), (d.integer(0, 2), d.integer(0, 2)), d.one_of(((), (0,), (1,)))
    ),
    "hunt.forms.product": lambda d: _args(
        d.matrix(2),
        d.array("float"),
        d.one_of(("ij,ij->", "ij,ij->i", "ij,ij->j", "ij,kj->ik", "ij,il->jl", "ij,ij->ji")),
    ),
    "hunt.forms.convolved": lambda d: _args(d.matrix(2), d.vector()),
    "hunt.forms.convolved_gradient": lambda d: _args(d.matrix(2), d.vector()),
    "hunt.forms.pattern": lambda d: _args(d.rows(), d.integer(2, 4)),
    "hunt.forms.until_each": lambda d: _args(d.rows(), d.number()),
    "hunt.forms.cond_each": lambda d: _args(d.rows(), d.integer(0, 9), d.integer(0, 9)),
    "hunt.forms.drawn_each": lambda d: _args(
        d.fresh("key", ((d.sizes.whole,), (d.sizes.local,)), "key"), d.integer(0, 3)
    ),
    "hunt.forms.split_each": lambda d: _args(
        d.fresh("key", ((d.sizes.whole,), (d.sizes.local,)), "key")
    ),
    "hunt.forms.folded": lambda d: _args(
        d.fresh("key", ((), ()), "key"), d.one_of((d.integer(), d.fresh("int", ((), ()), "int32")))
    ),
}

NAMED: dict[str, Callable[[Draw], Any]] = {
    **dict.fromkeys(
        ["axis", "dimension", "axis1", "axis2", "source", "destination"], lambda d: d.axis()
    ),
    **dict.fromkeys(["axes", "dimensions"], lambda d: (d.axis(),)),
    **dict.fromkeys(
        ["keepdims", "reverse", "descending", "right", "endpoint", "full_matrices", "hermitian"],
        lambda d: d.chance(0.5),
    ),
    **dict.fromkeys(["taken", "swapped"], lambda d: d.test()),
    **dict.fromkeys(["one", "other"], lambda d: d.integer(0, 9)),
    **dict.fromkeys(
        [
            "n",
            "N",
            "M",
            "k",
            "m",
            "num",
            "deg",
            "order",
            "times",
            "turns",
            "count",
            "start",
            "stop",
            "first",
            "ddof",
            "shift",
            "kth",
            "decimals",
            "repeats",
            "rows",
            "num_classes",
        ],
        lambda d: d.integer(0, 4),
    ),
    **dict.fromkeys(["size", "length"], lambda d: d.length()),
    **dict.fromkeys(["shape", "new_sizes", "sizes"], lambda d: (d.length(), 3)),
    **dict.fromkeys(
        ["limit", "value", "step", "negative_slope", "alpha", "beta", "fill_value", "initial"],
        lambda d: d.number(),
    ),
    **dict.fromkeys(["dtype", "new_dtype"], lambda d: d.dtype()),
    **dict.fromkeys(["tup", "arrays", "operands"], lambda d: d.arrays()),
    **dict.fromkeys(["where", "pred", "condition", "mask"], lambda d: d.array("bool")),
    **dict.fromkeys(["i", "indices", "index", "start_index"], lambda d: d.places_or()),
    "key": lambda d: d.keys(),
    "keys": lambda d: d.array(),
    "q": lambda d: d.one_of((0.3, 0.5)),
    "op": lambda d: d.one_of(("sum", "max", "min", "mul")),
    "w": lambda d: d.array("float"),
    "index_dtype": lambda d: "int32",
    "reps": lambda d: d.integer(1, 3),
    "indices_or_sections": lambda d: d.integer(1, 4),
}
"""by a parameter's name, what is made for it; all others are arrays"""

OPTIONAL = {
    "axis": 0.7,
    "keepdims": 0.3,
    "where": 0.15,
    "initial": 0.1,
    "ddof": 0.2,
    "dtype": 0.1,
    "k": 0.3,
    "reverse": 0.3,
    "descending": 0.2,
    "n": 0.2,
    "size": 0.1,
    "alpha": 0.1,
    "shape": 0.3,
    "axes": 0.3,
}
"""how often parameters that have a default are given"""

FLOAT_MODULES = ("jax.scipy.special", "jax.scipy.stats", "jax.nn")
"""whose parameters are floats, whatever their names"""


@functools.cache
def functions() -> dict[str, Arguments]:
    """All that may be drawn, by name."""
    found: dict[str, Arguments] = {}
    for module in (*MODULES, "hunt.forms"):
        names = vars(importlib.import_module(module))
        for name in sorted(names):
            value = names[name]
            is_other = name.startswith("_") or isinstance(value, type | types.ModuleType)
            if is_other or not callable(value) or name in UNFIT:
                continue
            if module == "hunt.forms" and getattr(value, "__module__", "") != forms.__name__:
                continue
            full = f"{module}.{name}"
            made = SPECIAL.get(full) or by_signature(module, value)
            if made is not None:
                found[full] = made
    return found


@functools.cache
def chances() -> tuple[list[str], list[float]]:
    """Names of functions, and how likely each is to be drawn."""
    names = list(functions())
    per: dict[str, int] = {}
    for name in names:
        module = name.rpartition(".")[0]
        per[module] = per.get(module, 0) + 1

    def weight(name: str) -> float:
        module = name.rpartition(".")[0]
        rest = 0.1 if module.startswith("jax.scipy.stats.") else 0.5
        return WEIGHTS.get(module, rest) / per[module]

    weights = [weight(name) for name in names]
    return names, [w / sum(weights) for w in weights]


def by_signature(module: str, function: Callable[..., Any]) -> Arguments | None:
    """Arguments by the names of a function's parameters; None where these are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    is_float = module.startswith(FLOAT_MODULES)
    operands = getattr(function, "nin", 2)

    def arguments(d: Draw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                args += [d.array() for _ in range(operands)]
            elif p.kind is p.VAR_KEYWORD:
                continue
            elif p.default is p.empty:
                made = (
                    d.array("float")
                    if is_float and p.name not in ("axis", "key")
                    else _made(d, p.name)
                )
                if p.kind is p.KEYWORD_ONLY:
                    kwargs[p.name] = made
                else:
                    args.append(made)
            elif p.kind is not p.POSITIONAL_ONLY and d.chance(OPTIONAL.get(p.name, 0)):
                kwargs[p.name] = _made(d, p.name)
        return tuple(args), kwargs

    return arguments


def _made(d: Draw, name: str) -> Any:
    maker = NAMED.get(name)
    return maker(d) if maker is not None else d.array()
