"""What one environment may do by itself: functions of a row, family by family.

All public functions of linear algebra, of special functions, of Fourier transforms and of random
numbers are here, with the ways to write loops, branches and derivatives of one's own.
"""

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import jax.scipy.fft
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
from jax import lax


class Row(NamedTuple):
    """What a function is given of one environment."""

    x: jax.Array
    """`[3]`"""
    key: jax.Array

    @property
    def positive(self) -> jax.Array:
        return 1.0 + jnp.abs(self.x)

    @property
    def chance(self) -> jax.Array:
        return jax.nn.sigmoid(self.x)

    @property
    def matrix(self) -> jax.Array:
        return jnp.diag(jnp.arange(1.0, 4.0)) + 0.1 * jnp.outer(self.x, jnp.cos(self.x))

    @property
    def symmetric(self) -> jax.Array:
        return jnp.diag(jnp.arange(1.0, 4.0)) + 0.1 * jnp.outer(self.x, self.x)


Function = Callable[[Row], Any]
Call = Callable[[Any, Row], Any]


def _of(module: ModuleType, calls: Mapping[str, Call]) -> dict[str, Function]:
    """Functions of a module, by their names, as far as this JAX has them."""
    return {
        f"{module.__name__}.{name}": functools.partial(call, getattr(module, name))
        for names, call in calls.items()
        for name in names.split()
        if hasattr(module, name)
    }


LINEAR_ALGEBRA = {
    **_of(
        jax.lax.linalg,
        {
            "cholesky eigh tridiagonal": lambda f, r: f(r.symmetric),
            "eig hessenberg lu qr schur svd qdwh": lambda f, r: f(r.matrix),
            "householder_product": lambda f, r: f(r.matrix, r.x),
            "lu_pivots_to_permutation": lambda f, r: f(lax.linalg.lu(r.matrix)[1], 3),
            "ormqr": lambda f, r: f(r.matrix, r.x, r.symmetric),
            "symmetric_product": lambda f, r: f(r.matrix, r.symmetric),
            "triangular_solve": lambda f, r: f(r.matrix, r.symmetric, left_side=True),
            "tridiagonal_solve": lambda f, r: f(r.x, 9 + r.x, r.x, r.matrix),
        },
    ),
    **_of(
        jax.numpy.linalg,
        {
            "cholesky eigh eigvalsh": lambda f, r: f(r.symmetric),
            "cond det eig eigvals inv matrix_norm matrix_rank norm pinv qr": lambda f, r: f(
                r.matrix
            ),
            "slogdet svd svdvals diagonal matrix_transpose trace": lambda f, r: f(r.matrix),
            "cross outer vecdot": lambda f, r: f(r.x, r.positive),
            "lstsq solve tensorsolve": lambda f, r: f(r.matrix, r.x),
            "matmul tensordot": lambda f, r: f(r.matrix, r.symmetric),
            "matrix_power": lambda f, r: f(r.matrix, 3),
            "multi_dot": lambda f, r: f([r.matrix, r.symmetric, r.x]),
            "tensorinv": lambda f, r: f(r.matrix, ind=1),
            "vector_norm": lambda f, r: f(r.x),
        },
    ),
    "jax.scipy.linalg.qr_multiply": lambda r: jax.scipy.linalg.qr_multiply(r.matrix, r.symmetric),
    "with pivots": lambda r: lax.linalg.qr(r.matrix, pivoting=True),
    "a gradient of a solution": lambda r: jax.grad(lambda x: jnp.linalg.solve(r.matrix, x).sum())(
        r.x
    ),
}

SPECIAL_FUNCTIONS = {
    **_of(
        jax.scipy.special,
        {
            "dawsn digamma entr erf erfc erfcx exp1 expi expit factorial fresnel gamma gammaln": (
                lambda f, r: f(r.positive)
            ),
            "gammasgn i0 i0e i1 i1e log_ndtr loggamma ndtr sici spence": lambda f, r: f(r.positive),
            "log_softmax logsumexp softmax": lambda f, r: f(r.x),
            "erfinv logit ndtri": lambda f, r: f(r.chance),
            "beta betaln boxcox boxcox1p comb gammainc gammaincc kl_div owens_t poch rel_entr": (
                lambda f, r: f(r.positive, r.chance)
            ),
            "xlog1py xlogy": lambda f, r: f(r.positive, r.chance),
            "bessel_jn": lambda f, r: f(r.positive, v=3),
            "betainc": lambda f, r: f(r.positive, r.positive, r.chance),
            "expn polygamma": lambda f, r: f(2, r.positive),
            "hyp1f1": lambda f, r: f(r.positive, 2.5, r.chance),
            "hyp2f1": lambda f, r: f(r.positive, 1.5, 2.5, 0.5 * r.chance),
            "multigammaln": lambda f, r: f(2 + r.positive, 2),
            "sph_harm_y": lambda f, r: f(
                jnp.array([2]), jnp.array([1]), r.x[:1], r.chance[:1], n_max=3
            ),
            "wofz": lambda f, r: f(r.x + 1j * r.chance),
            "zeta": lambda f, r: f(1 + r.positive, 1.5),
        },
    ),
    "a gradient by the parameter": lambda r: jax.grad(
        lambda a: jax.scipy.special.gammainc(a, r.chance).sum()
    )(r.positive),
}

FOURIER_TRANSFORMS = {
    **_of(
        jax.numpy.fft,
        {
            "fft fftn fftshift hfft ifft ifftn ifftshift ihfft": lambda f, r: f(r.x),
            "irfft irfftn rfft rfftn": lambda f, r: f(r.x),
            "fft2 ifft2 irfft2 rfft2": lambda f, r: f(r.matrix),
        },
    ),
    **_of(
        jax.scipy.fft,
        {"dct idct": lambda f, r: f(r.x), "dctn idctn": lambda f, r: f(r.matrix)},
    ),
}


def _numbers(keys: jax.Array) -> jax.Array:
    return jax.random.key_data(keys)


RANDOM_NUMBERS = _of(
    jax.random,
    {
        "bits cauchy exponential gumbel laplace logistic maxwell normal": (
            lambda f, r: f(r.key, (2,))
        ),
        "rademacher uniform": lambda f, r: f(r.key, (2,)),
        "ball": lambda f, r: f(r.key, 2),
        "bernoulli geometric": lambda f, r: f(r.key, r.chance),
        "beta": lambda f, r: f(r.key, r.positive, r.positive),
        "binomial": lambda f, r: f(r.key, 10.0, r.chance),
        "categorical permutation": lambda f, r: f(r.key, r.x),
        "chisquare gamma loggamma pareto poisson rayleigh t wald": lambda f, r: f(
            r.key, r.positive
        ),
        "choice": lambda f, r: f(r.key, r.x, (2,)),
        "clone split": lambda f, r: _numbers(f(r.key)),
        "dirichlet": lambda f, r: f(r.key, r.positive),
        "double_sided_maxwell": lambda f, r: f(r.key, r.x, 1.0, (3,)),
        "f": lambda f, r: f(r.key, r.positive, 2 * r.positive),
        "fold_in": lambda f, r: _numbers(f(r.key, 3)),
        "generalized_normal": lambda f, r: f(r.key, 2.0, (2,)),
        "lognormal": lambda f, r: f(r.key, 0.5, (2,)),
        "key_data": lambda f, r: f(r.key),
        "multinomial": lambda f, r: f(r.key, 10.0, r.chance),
        "multivariate_normal": lambda f, r: f(r.key, r.x, r.symmetric),
        "orthogonal": lambda f, r: f(r.key, 3),
        "randint": lambda f, r: f(r.key, (2,), 0, 9),
        "triangular": lambda f, r: f(r.key, 0.0, 0.5, 1.0, (2,)),
        "truncated_normal": lambda f, r: f(r.key, -1.0, 1.0, (2,)),
        "weibull_min": lambda f, r: f(r.key, r.positive, 2.0),
        "wrap_key_data": lambda f, r: jax.random.uniform(f(jax.random.key_data(r.key))),
        "key": lambda f, r: _numbers(f((9 * r.positive[0]).astype(jnp.int32))),
    },
)


@jax.custom_jvp
def halved(x: Any) -> Any:
    return x / 2


@halved.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return halved(*primals), jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def clipped(x: Any) -> Any:
    """The identity, whose gradient is clipped."""
    return x


clipped.defvjp(lambda x: (x, x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * jnp.cos(x),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied(function: Any, x: Any) -> Any:
    return function(x)


applied.defvjp(lambda f, x: (f(x), x), lambda f, x, g: (g * f(x),))


@jax.custom_gradient
def squared(x: Any) -> Any:
    return x**2, lambda g: 3 * g * x


@jax.custom_batching.custom_vmap
def doubled(x: Any) -> Any:
    return 2 * x


@doubled.def_vmap
def _(_size: Any, _batched: Any, rows: Any) -> Any:
    return 2 * rows, True


def _root(x: Any) -> Any:
    def solve(f: Any, start: Any) -> Any:
        return lax.fori_loop(0, 9, lambda _, y: y - f(y) / (2 * y), start)

    return lax.custom_root(lambda y: y**2 - x, x, solve, lambda g, y: y / g(1.0))


def _of_gradient(function: Any) -> Function:
    """The gradient by a row, and that by what all rows share."""
    return lambda r: jax.grad(lambda x, w: jnp.sum(jnp.sin(function(x * w))), (0, 1))(r.x, 0.5)


CUSTOM_DERIVATIVES: dict[str, Function] = {
    "custom_jvp": lambda r: halved(r.x),
    "custom_vjp": lambda r: clipped(r.x),
    "custom_vjp with a function": lambda r: applied(jnp.sin, r.x),
    "custom_gradient": lambda r: squared(r.x),
    "custom_root": lambda r: _root(r.positive[0]),
    "custom_linear_solve": lambda r: lax.custom_linear_solve(
        lambda v: r.positive * v, r.x, lambda _, b: b / r.positive, symmetric=True
    ),
    "custom_vmap": lambda r: doubled(r.x),
    "stop_gradient": lambda r: lax.stop_gradient(r.x),
    "checkpoint": lambda r: jax.checkpoint(jnp.sin)(r.x),
    "jax.nn": lambda r: [f(r.x) for f in (jax.nn.relu, jax.nn.relu6, jax.nn.silu)],
    "a gradient of custom_jvp": _of_gradient(halved),
    "a gradient of custom_vjp": _of_gradient(clipped),
    "a gradient of custom_vjp with a function": _of_gradient(lambda x: applied(jnp.sin, x)),
    "a gradient of custom_gradient": _of_gradient(squared),
    "a gradient of custom_root": lambda r: jax.grad(_root)(r.positive[0]),
    "a gradient of checkpoint": _of_gradient(jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)))),
    "a tangent": lambda r: jax.jvp(halved, (r.x,), (r.positive,)),
    "a Hessian": lambda r: jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3))(r.x),
}


def _ends_by_itself(r: Row) -> Any:
    return lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: 1.1 * x + 0.1, r.positive)


def _rejected(r: Row) -> Any:
    def again(state: Any) -> Any:
        key, _ = jax.random.split(state[0])
        return key, jax.random.normal(key)

    return lax.while_loop(lambda s: s[1] > r.chance[0], again, (r.key, jnp.full((), 9.0)))[1]


WHILE: dict[str, Function] = {
    "while_loop": _ends_by_itself,
    "rejection": _rejected,
    "a length that all share": lambda r: lax.while_loop(
        lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, r.x)
    )[1],
    "fori_loop": lambda r: lax.fori_loop(0, 4, lambda i, x: jnp.sin(x + i), r.x),
    "a length of its own": lambda r: lax.fori_loop(
        0, (5 * r.chance[0]).astype(jnp.int32), lambda i, x: jnp.sin(x + i), r.x
    ),
    "one in another": lambda r: lax.fori_loop(
        0, 2, lambda _, x: _ends_by_itself(Row(x, r.key)), r.x
    ),
    "scan": lambda r: lax.scan(lambda c, x: (c * jnp.cos(x), c), r.x[0], r.x),
    "associative_scan": lambda r: lax.associative_scan(jnp.multiply, r.x),
    "map": lambda r: lax.map(lambda x: jnp.sin(x) + r.x, r.x),
}

BRANCHES: tuple[Callable[[Any], Any], ...] = (jnp.sin, jnp.cos, jnp.flip)

COND: dict[str, Function] = {
    "cond": lambda r: lax.cond(r.x[0] > 0, jnp.sin, jnp.cos, r.x),
    "switch": lambda r: lax.switch((3 * r.chance[0]).astype(jnp.int32), BRANCHES, r.x),
    "a choice that all share": lambda r: lax.cond(
        np.pi * jnp.ones(()) > 3, lambda x: jnp.sort(x), lambda x: x, r.x
    ),
    "select": lambda r: lax.select(r.x > 0, r.x, r.positive),
    "select_n": lambda r: lax.select_n(r.x > 0, r.x, r.positive),
    "piecewise": lambda r: jnp.piecewise(r.x, [r.x < 0, r.x > 1], [jnp.sin, 1.0, jnp.cos]),
    "by platform": lambda r: lax.platform_dependent(r.x, cpu=jnp.sin, default=jnp.cos),
    "a gradient of cond": _of_gradient(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)),
}

OTHERS: dict[str, Function] = {
    "searchsorted": lambda r: jnp.searchsorted(jnp.sort(r.x), r.chance),
    "searchsorted from the right": lambda r: jnp.searchsorted(
        jnp.sort(r.x), r.chance, side="right"
    ),
    "searchsorted of complex numbers": lambda r: jnp.searchsorted(
        jnp.sort(r.x + 1j), r.chance + 1j
    ),
    "random_seed": lambda r: jax.random.key_data(jax.random.key((10 * r.positive[0]).astype(int))),
    "device_put": lambda r: jax.device_put(r.x),
    "a key of numbers": lambda r: jax.extend.random.threefry_2x32(
        jax.random.key_data(r.key), jnp.arange(4, dtype=jnp.uint32)
    ),
}

BY_ALL: dict[str, Callable[[jax.Array], Any]] = {
    "closed_call": lambda x: jax.closure_convert(jnp.sin, x)[0](x),
    "composite": lambda x: lax.composite(lambda x: jnp.sin(x), "my.sine")(x),
    "debug_print": lambda x: (jax.debug.print("{}", x), x)[1],
    "debug_callback": lambda x: (jax.debug.callback(lambda x: None, x), x)[1],
}
"""functions of all rows at once, which are not vmapped"""

FAMILIES: dict[str, dict[str, Function]] = {
    "linear algebra": LINEAR_ALGEBRA,
    "special functions": SPECIAL_FUNCTIONS,
    "Fourier transforms": FOURIER_TRANSFORMS,
    "random numbers": RANDOM_NUMBERS,
    "custom derivatives": CUSTOM_DERIVATIVES,
    "while": WHILE,
    "cond": COND,
    "others": OTHERS,
}
MODULES = (
    jax.lax.linalg,
    jax.numpy.linalg,
    jax.scipy.special,
    jax.numpy.fft,
    jax.scipy.fft,
    jax.random,
)
"""all of whose public functions are here, but for these"""
LEFT_OUT: Mapping[str, str] = {
    "jax.lax.linalg.cholesky_update": "is of one matrix: JAX does not batch it",
    "jax.scipy.special.bernoulli": "takes no array",
    "jax.numpy.fft.fftfreq": "takes no array",
    "jax.numpy.fft.rfftfreq": "takes no array",
    "jax.random.PRNGKey": "makes a key of the old kind, which wrap_key_data makes too",
    "jax.random.key_impl": "says of which kind a key is",
    "jax.random.key_dtype": "says of which type a key is",
}
