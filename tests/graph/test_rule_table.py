"""The table of replica rules: one entry for each primitive, and a trial of every proof in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from fragflow.graph.replicas.rules.elementwise import elementwise
from fragflow.graph.replicas.rules.table import TABLE, add

SHAPE = (3, 4)
IMAGE = (1, 3, 4, 1)


def test_a_second_entry_is_an_error():
    for name in ("conv_general_dilated", "optimization_barrier", "scan"):
        with pytest.raises(ValueError, match=f"{name}.*has a replica rule already"):
            add(name, elementwise)


def numbers(seed: int, dtype=np.float32, shape=SHAPE):
    """Small whole numbers: sums and products of them are exact in every type."""
    drawn = np.random.default_rng(seed).integers(-6, 7, shape)
    if np.dtype(dtype).kind == "c":
        drawn = drawn + 1j * np.random.default_rng(seed + 99).integers(-6, 7, shape)
    if np.dtype(dtype).kind == "u":
        drawn = np.abs(drawn)
    return jnp.asarray(drawn.astype(dtype))


def u(x, seed=7):
    """Something uniform, of the type and shape of `x`, without zeros."""
    return jnp.abs(numbers(seed, np.float32, x.shape)).astype(x.dtype) + jnp.ones_like(x)


def at(x):
    return jnp.zeros_like(x), jnp.array([[0], [2]])


def convolved(x):
    numbers_ = ("NHWC", "HWIO", "NHWC")
    kernel = u(jnp.zeros((2, 2, 1, 1), x.dtype))
    return lax.conv_general_dilated(
        x.reshape(IMAGE), kernel, (1, 1), "SAME", dimension_numbers=numbers_
    )


FLOATS = (np.float32,)
REALS = (np.float32, np.int32)
ALL = (np.float32, np.int32, np.complex64)
MOVES = {
    "copy": lambda x: lax.full_like(x, 0) + x,
    "copy_p": lambda x: x,
    "name": lambda x: checkpoint_name(x, "here"),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, *SHAPE), (1, 2)),
    "reshape": lambda x: lax.reshape(x, (4, 3)),
    "squeeze": lambda x: lax.squeeze(x.reshape(1, 12), (0,)),
    "transpose": lambda x: lax.transpose(x, (1, 0)),
    "rev": lambda x: lax.rev(x, (0,)),
    "slice": lambda x: lax.slice(x, (0, 1), (3, 4), (2, 1)),
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "split": lambda x: lax.split(x, (1, 3), axis=1)[1],
    "unstack": lambda x: jnp.unstack(x)[1],
    "optimization_barrier": lambda x: lax.optimization_barrier(x),
    "stop_gradient": lambda x: lax.stop_gradient(x),
    "device_put": lambda x: jax.device_put(x),
    "pad": lambda x: lax.pad(x, jnp.zeros((), x.dtype), ((1, 0, 1), (0, -1, 0))),
    "concatenate": lambda x: lax.concatenate([x, x, jnp.zeros_like(x)], 0),
    "stack": lambda x: jnp.stack([x, x]),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 1), (2, 2)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(
        jnp.zeros((5, 5), x.dtype), x, (1, 1)
    ),
    "gather": lambda x: jnp.take(x, jnp.array([2, 0, 9]), axis=0, mode="fill", fill_value=0),
    "scatter": lambda x: at(x)[0].at[jnp.array([2, 0])].set(x[:2]),
    "select_n": lambda x: lax.select_n(numbers(3) > 0, x, jnp.zeros_like(x)),
}
LINEAR = {
    **{name: (case, ALL) for name, case in MOVES.items()},
    "neg": (lax.neg, ALL),
    "convert_element_type": (
        lambda x: x.astype(jnp.complex64 if x.dtype == jnp.complex64 else jnp.float32),
        ALL,
    ),
    "real": (lax.real, (np.complex64,)),
    "imag": (lax.imag, (np.complex64,)),
    "conj": (lax.conj, (np.complex64,)),
    "complex": (lambda x: lax.complex(x, 2 * x), FLOATS),
    "add": (lambda x: x + 2 * x, ALL),
    "add_any": (lambda x: x + x, ALL),
    "sub": (lambda x: x - 3 * x, ALL),
    "mul": (lambda x: x * u(x), ALL),
    "div": (lambda x: x / 2, (np.float32, np.complex64)),
    "scatter-add": (lambda x: at(x)[0].at[jnp.array([0, 0])].add(x[:2]), ALL),
    "scatter-sub": (lambda x: x.at[jnp.array([0, 0])].subtract(x[:2]), ALL),
    "reduce_sum": (lambda x: jnp.sum(x, 1), ALL),
    "cumsum": (lambda x: lax.cumsum(x, 1), ALL),
    "fft": (lambda x: jnp.fft.fft(x), (np.float32, np.complex64)),
    "dot_general": (lambda x: x @ u(x).T, ALL),
    "conv_general_dilated": (convolved, FLOATS),
}
MONOTONE = {
    **{
        name: (case, REALS)
        for name, case in MOVES.items()
        if name not in ("pad", "scatter", "select_n")
    },
    "pad": (lambda x: lax.pad(x, jnp.ones((), x.dtype), ((1, 0, 1), (0, -1, 0))), REALS),
    "scatter": (lambda x: jnp.ones_like(x).at[jnp.array([2, 0])].set(x[:2]), REALS),
    "select_n": (lambda x: lax.select_n(numbers(3) > 0, x, u(x)), REALS),
    "convert_element_type": (lambda x: (x / 3).astype(jnp.int32).astype(jnp.bfloat16), REALS),
    "add": (lambda x: x + u(x), REALS),
    "add_any": (lambda x: x + u(x), REALS),
    "sub": (lambda x: x - u(x), REALS),
    "max": (lambda x: lax.max(x, u(x)), REALS),
    "reduce_max": (lambda x: jnp.max(x, 1), REALS),
    "cummax": (lambda x: lax.cummax(x, 1), REALS),
}
"""of maxima; those of minima are their mirror images"""
MIRRORED = {"min": "max", "reduce_min": "reduce_max", "cummin": "cummax"}
HOMOGENEOUS = {
    **{name: (case, 1, ALL) for name, case in MOVES.items()},
    **{name: (*entry[:1], 1, entry[1]) for name, entry in LINEAR.items() if name not in MOVES},
    "mul": (lambda x: x * x, 2, ALL),
    "div": (lambda x: u(x) / jnp.where(x == 0, jnp.inf, x), -1, FLOATS),
    "dot_general": (lambda x: x @ x.T, 2, ALL),
    "max": (lambda x: lax.max(x, x[::-1]), 1, REALS),
    "min": (lambda x: lax.min(x, x[::-1]), 1, REALS),
    "reduce_max": (lambda x: jnp.max(x, 1), 1, REALS),
    "reduce_min": (lambda x: jnp.min(x, 1), 1, REALS),
    "cummax": (lambda x: lax.cummax(x, 1), 1, REALS),
    "cummin": (lambda x: lax.cummin(x, 1), 1, REALS),
    "reduce_window_sum": (
        lambda x: lax.reduce_window(x, np.array(0, x.dtype), lax.add, (2, 2), (1, 1), "SAME"),
        1,
        REALS,
    ),
    "reduce_window_max": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
        1,
        FLOATS,
    ),
    "reduce_window_min": (
        lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 1), "SAME"),
        1,
        FLOATS,
    ),
    "select_and_scatter_add": (
        lambda x: jax.grad(
            lambda y: jnp.sum(
                x[1:, 1:] * lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID")
            )
        )(u(x)),
        1,
        FLOATS,
    ),
}
ELSEWHERE = {"all_reduce"}
"""the reduction itself: what it makes of every kind is tried in test_sound.py"""


def cases(table):
    return [(name, dtype) for name, entry in table.items() for dtype in entry[-1]]


def test_every_proof_is_tried():
    for fact, tried in (("linear", LINEAR), ("homogeneous", HOMOGENEOUS), ("monotone", MONOTONE)):
        claimed = {name for name, entry in TABLE.items() if getattr(entry, fact)} - ELSEWHERE
        tried_too = {*tried, *(MIRRORED if fact == "monotone" else ())}
        assert claimed - tried_too - {"neg"} == set(), fact
        assert set(tried) - claimed == set(), fact


@pytest.mark.parametrize(("name", "dtype"), cases(LINEAR))
def test_linear(name, dtype):
    case = LINEAR[name][0]
    for seed in range(0, 9, 3):
        x, y = numbers(seed, dtype), numbers(seed + 1, dtype)
        np.testing.assert_allclose(case(x + y), case(x) + case(y), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(("name", "dtype"), cases(MONOTONE))
def test_monotone(name, dtype):
    case = MONOTONE[name][0]
    for seed in range(0, 9, 3):
        x, y = numbers(seed, dtype), numbers(seed + 1, dtype)
        np.testing.assert_array_equal(case(jnp.maximum(x, y)), jnp.maximum(case(x), case(y)))


def test_the_negative_of_a_maximum_is_a_minimum():
    x, y = numbers(1), numbers(2)
    np.testing.assert_array_equal(-jnp.maximum(x, y), jnp.minimum(-x, -y))


@pytest.mark.parametrize(("name", "dtype"), cases(HOMOGENEOUS))
def test_homogeneous(name, dtype):
    case, degree, _ = HOMOGENEOUS[name]
    for seed in range(3):
        x = numbers(seed, dtype)
        expected = np.asarray(case(x)) * (2.0**degree if degree < 0 else 2**degree)
        np.testing.assert_allclose(case(2 * x), expected, rtol=1e-6, atol=1e-4)
