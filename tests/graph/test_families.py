"""Families of functions, by environment: accepted, and equal; across environments: refused.

A refusal names the line of the user's, never one of fragflow's or JAX's.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.policies import POLICIES
from fragflow.run import Experiment, run
from graph.families import BY_ALL, FAMILIES, LEFT_OUT, MODULES, Function, Row
from graph.telling import Telling, Told, files_named_in, lines_of, named_in, refusal
from graph.toy import Drift
from hunt.judge import double_precision

family = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="the functions of the oldest JAX")
def test_every_public_function_is_here():
    listed = {name for functions in FAMILIES.values() for name in functions}
    for module in MODULES:
        public = {
            f"{module.__name__}.{name}"
            for name, function in vars(module).items()
            if callable(function)
            and not isinstance(function, type)
            and not name.startswith("_")
            and not name.endswith("_p")
        }
        missing = public - listed - LEFT_OUT.keys()
        assert not missing, f"neither in families.py nor left out for a reason: {sorted(missing)}"


def of_rows(functions: dict[str, Function], x: jax.Array, keys: jax.Array) -> list[jax.Array]:
    """What functions make of rows, as real numbers."""
    made = [jax.vmap(lambda x, key, f=f: f(Row(x, key)))(x, keys) for f in functions.values()]
    return [
        (jnp.abs(a) if jnp.iscomplexobj(a) else a).astype(x.dtype) for a in jax.tree.leaves(made)
    ]


def told(functions: dict[str, Function], t: Told) -> Any:
    return ff.all_mean([jnp.mean(a) for a in of_rows(functions, t.x[0], t.env.keys(t.key))])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=[pytest.mark.slow] if f == "special functions" else [])
        for f in FAMILIES
    ],
)
def test_accepted(family):
    """The error names the line of the function that is refused."""
    assert refusal(functools.partial(told, FAMILIES[family])) is None


@pytest.mark.parametrize("function", BY_ALL.values(), ids=BY_ALL)
def test_accepted_of_all(function):
    assert refusal(lambda t: mean(function(t.x[0]))) is None


LONG = ("linear algebra", "special functions", "random numbers")
"""families that take long to compile"""


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.slow] if f in LONG else []) for f in FAMILIES],
)
def test_equal_in_parts(family):
    """Functions of all rows at once, and of two halves."""
    with double_precision():
        x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
        keys = jax.random.split(jax.random.key(1), 4)
        function = jax.jit(functools.partial(of_rows, FAMILIES[family]))
        whole, halves = function(x, keys), [function(x[i : i + 2], keys[i : i + 2]) for i in (0, 2)]
        for a, *parts in zip(whole, *halves, strict=True):
            np.testing.assert_allclose(a, np.concatenate(parts), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@family
def test_equal(family):
    experiment = Experiment(
        algorithm=Telling(functools.partial(told, FAMILIES[family])),
        environment=Drift(),
        num_envs=8,
        total_steps=3 * 32,
    )
    whole, parts = (run(experiment, POLICIES["gpu-only"], workers=w).state.params for w in (1, 2))
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-7)


@jax.custom_jvp
def centred(x: Any) -> Any:
    return x - jnp.mean(x, 0)


@centred.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return centred(*primals), tangents[0]


@jax.custom_vjp
def turned(x: Any) -> Any:
    """The identity, whose gradient goes to other environments."""
    return x


turned.defvjp(lambda x: (x, None), lambda _, g: (g[::-1],))


@jax.custom_vjp
def clipped(w: Any) -> Any:
    return w


clipped.defvjp(lambda w: (w, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@jax.custom_vjp
def counted(x: Any) -> Any:
    return x


counted.defvjp(lambda x: (x, None), lambda _, g: (g / (1 + g.size),))


def until(t: Told, test: Callable[[Any], Any]) -> Any:
    return lax.while_loop(test, lambda x: x + 0.5, t.x[0])


def mean(x: Any) -> Any:
    return ff.all_mean(jnp.mean(x))


WRONG: dict[str, dict[str, Callable[[Told], Any]]] = {
    "linear algebra": {
        "a product of environments": lambda t: mean(
            jnp.linalg.cholesky(jnp.eye(t.n) + t.x[0] @ t.x[0].T)
        ),
        "a basis of all": lambda t: mean(jnp.linalg.qr(t.x[0])[0]),
        "singular values of all": lambda t: mean(jnp.linalg.svd(t.x[0], compute_uv=False)),
        "pivots of all": lambda t: mean(lax.linalg.lu(t.x[0])[0]),
        "an inverse before the mean": lambda t: mean(
            jnp.linalg.inv(jnp.eye(3) + t.x[0].T @ t.x[0])
        ),
        "directions before the mean": lambda t: mean(jnp.linalg.eigh(t.x[0].T @ t.x[0])[1]),
        "a determinant of a mean": lambda t: mean(jnp.linalg.det(jnp.eye(3) + jnp.mean(t.x[0], 0))),
        "least squares": lambda t: mean(jnp.linalg.lstsq(t.x[0], t.x[1])[0]),
        "a norm of all": lambda t: mean(jnp.linalg.norm(t.x[0])),
        "a solution for all": lambda t: mean(
            lax.linalg.triangular_solve(jnp.eye(t.n) + jnp.sum(t.m), t.x[0], left_side=True)
        ),
    },
    "special functions": {
        "of a sum": lambda t: ff.all_sum(jax.scipy.special.gammaln(jnp.sum(t.x**2))),
        "over all": lambda t: ff.all_mean(jax.scipy.special.logsumexp(t.x[0, :, 0])),
        "shares of all": lambda t: mean(jax.scipy.special.softmax(t.x[0], axis=0)),
        "of a mean": lambda t: ff.all_mean(jax.scipy.special.entr(jnp.mean(jnp.abs(t.x)))),
        "of a count": lambda t: jax.scipy.special.zeta(jnp.float32(t.n) + 1, 1.0 + t.m**2),
        "without a rule": lambda t: ff.all_mean(
            jax.scipy.special.zeta(2.0 + jnp.mean(t.x) ** 2, 1.5)
        ),
        "a loop for all": lambda t: ff.all_mean(jax.scipy.special.bessel_jn(jnp.mean(t.x), v=2)[2]),
    },
    "Fourier transforms": {
        "along environments": lambda t: mean(jnp.abs(jnp.fft.fft(t.x[0], axis=0))),
        "of all axes": lambda t: mean(jnp.abs(jnp.fft.fft2(t.x[0]))),
        "of real numbers": lambda t: mean(jnp.abs(jnp.fft.rfft(t.x[0, :, 0]))),
        "and back": lambda t: mean(jnp.fft.irfft(t.x[0], axis=0)),
        "a spectrum before the mean": lambda t: mean(jnp.abs(jnp.fft.fft(jnp.mean(t.x[0], 0)))),
        "a convolution": lambda t: mean(jax.scipy.signal.fftconvolve(t.x[0], t.x[1], axes=[0])),
        "of cosines": lambda t: mean(jax.scipy.fft.dct(t.x[0], axis=0)),
        "shifted": lambda t: mean(jnp.fft.fftshift(t.x[0], axes=0)[0]),
    },
    "custom derivatives": {
        "custom_jvp": lambda t: mean(centred(t.x[0]) ** 2),
        "its gradient": lambda t: mean(jax.grad(lambda x: mean(centred(x) ** 2))(t.x[0]) ** 2),
        "custom_vjp": lambda t: mean(jax.grad(lambda x: jnp.sum(turned(x) ** 3))(t.x[0]) * t.x[1]),
        "a gradient clipped before the mean": lambda t: mean(
            jax.grad(lambda w: jnp.mean((clipped(w) * t.x[0]) ** 2))(t.m)
        ),
        "a gradient with a count": lambda t: mean(
            jax.grad(lambda x: jnp.sum(counted(x) ** 3))(t.x[0])
        ),
        "a solution for all": lambda t: mean(
            lax.custom_linear_solve(lambda v: v + jnp.mean(v), t.x[0], lambda _, b: b - jnp.mean(b))
        ),
        "no mean": lambda t: jax.grad(lambda w: jnp.mean(jnp.sin(w * t.x[0])))(t.m),
    },
    "while": {
        "until one has ended": lambda t: mean(until(t, lambda x: jnp.all(x < 2))),
        "until all have ended": lambda t: mean(until(t, lambda x: jnp.any(x < 2))),
        "until their mean is large": lambda t: mean(until(t, lambda x: jnp.mean(x) < 2)),
        "until the first has ended": lambda t: mean(until(t, lambda x: x[0, 0] < 2)),
        "as often as there are environments": lambda t: lax.fori_loop(
            0, t.n, lambda _, m: jnp.sin(m), t.m
        ),
        "a mean in every turn": lambda t: mean(
            lax.fori_loop(0, 3, lambda _, x: x - jnp.mean(x), t.x[0])
        ),
        "one environment after the other": lambda t: mean(
            lax.associative_scan(jnp.add, t.x[0], axis=0)[-1]
        ),
        "a turn for each": lambda t: lax.scan(
            lambda c, row: (0.9 * c + row, None), t.m, t.x[0, :, 0]
        )[0],
    },
    "cond": {
        "if their mean is large": lambda t: lax.cond(jnp.mean(t.x) > 0, jnp.sin, jnp.cos, t.m),
        "if one is large": lambda t: lax.cond(jnp.any(t.x > 1), jnp.sin, jnp.cos, t.m),
        "by the first": lambda t: lax.switch(jnp.int32(t.x[0, 0, 0] > 0), (jnp.sin, jnp.cos), t.m),
        "by their number": lambda t: lax.switch((t.m > 9) + t.n // 8, (jnp.sin, jnp.cos), t.m),
        "a branch that sorts": lambda t: mean(
            lax.cond(t.m > 0, lambda x: jnp.sort(x, 0)[:2], lambda x: x[:2], t.x[0])
        ),
        "a branch with a mean": lambda t: mean(
            lax.cond(t.m > 0, lambda x: x - jnp.mean(x), lambda x: x, t.x[0])
        ),
    },
    "random numbers": {
        "one key": lambda t: mean(jax.random.normal(t.key, (t.n, 3)) * t.x[0]),
        "one key for loops": lambda t: mean(jax.random.gamma(t.key, jnp.abs(t.x[0]))),
        "one key for chances": lambda t: mean(jax.random.bernoulli(t.key, 0.5, (t.n,)) * 1.0),
        "one key for actions": lambda t: mean(jax.random.categorical(t.key, t.x[0]) * 1.0),
        "as many keys": lambda t: mean(jax.vmap(jax.random.normal)(jax.random.split(t.key, t.n))),
        "an order": lambda t: mean(jax.random.permutation(t.key, t.x[0])[0]),
        "a choice": lambda t: mean(jax.random.choice(t.key, t.x[0], (2,))),
        "a number of each": lambda t: mean(
            jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(t.key, i)))(jnp.arange(t.n))
        ),
        "no mean": lambda t: jnp.mean(jax.vmap(jax.random.normal)(t.env.keys(t.key))),
        "a seed": lambda t: jax.random.normal(jax.random.key(t.n)),
        "one key for all rows": lambda t: mean(jax.random.orthogonal(t.key, 3, (t.n,))),
    },
}
MISTAKES = [
    pytest.param(expression, id=f"{name}: {what}")
    for name, members in WRONG.items()
    for what, expression in members.items()
]


def test_every_family_has_mistakes():
    assert WRONG.keys() == FAMILIES.keys() - {"others"}


@pytest.mark.parametrize("expression", MISTAKES)
def test_refused_at_the_line_of_the_user(expression):
    """Or at that of a function that it has called, in this file."""
    reason = refusal(expression)
    assert reason is not None
    named = named_in(reason)
    assert named, reason
    assert files_named_in(reason) == {"test_families.py"}, reason
    functions = (expression, centred.fun, until, mean)
    assert {line for _, line in named} <= {n for f in functions for n in lines_of(f)}, reason
