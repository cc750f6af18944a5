"""Numbers that are almost the same are other numbers; and so is what one environment alone does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from graph.telling import NUM_ENVS, Expression, refusal

MANY = NUM_ENVS // 2
"""as many are with one worker, and not with two"""


def if_many(a: Any, b: Any) -> Any:
    return lambda t: a if t.n > MANY else b


def of_type(dtype: str, many: float, few: float) -> Expression:
    number = if_many(many, few)
    return lambda t: t.weights.astype(dtype) * jnp.asarray(number(t), dtype)


def rows_of(marked: float, others: float) -> Expression:
    """The first environment has another constant."""
    return lambda t: ff.all_mean(
        jnp.copysign(t.x, jnp.where(np.arange(t.n) == 0, marked, others)[:, None]).mean()
    )


def narrow(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def in_half(x: jax.Array) -> jax.Array:
    return jnp.mean(x.astype(jnp.float16))


def narrowed(rows: Expression) -> Expression:
    """Digits are lost of a mean of rows that had more."""
    return lambda t: ff.all_mean(jnp.mean(rows(t)).astype(jnp.bfloat16))


ALMOST = {
    "a digit of bfloat16": of_type("bfloat16", 1.0, 1.0078125),
    "a digit of float16": of_type("float16", 1.0, 1.0009766),
    "a digit of float32": of_type("float32", 1.0, 1.0000001),
    "a byte": of_type("float8_e5m2", 1.0, 1.25),
    "a decay": lambda t: t.weights.astype(jnp.bfloat16) * (1 - 2e-3 * t.n),
    "an array": lambda t: t.weights[:4] * np.array([1, 1, 1, 1 + 1e-7 * (t.n > MANY)], np.float32),
    "a threshold": lambda t: jnp.round(t.m) >= np.float32(1 + 1e-7 * (t.n > MANY)),
    "a minus before nothing": lambda t: jnp.copysign(t.m, if_many(-0.0, 0.0)(t)),
    "a minus in an array": lambda t: jnp.copysign(
        t.weights[:2], np.array([0, if_many(-0.0, 0.0)(t)], np.float32)
    ),
    "a minus in a parameter": lambda t: (
        1 / jnp.pad(t.weights[:1] - t.weights[0], 1, constant_values=if_many(-0.0, 0.0)(t))
    ),
    "a minus in one row": rows_of(-0.0, 0.0),
    "no number, otherwise written": lambda t: lax.bitcast_convert_type(
        np.array(if_many(0x7FC00000, 0x7FC00001)(t), np.uint32).view(np.float32), jnp.int32
    ),
    "almost a count": lambda t: (
        t.weights.astype(jnp.bfloat16) * jnp.bfloat16(t.n * if_many(1.0, 1.01)(t)) / t.n
    ),
    "almost a count, by a power of two": lambda t: (
        t.weights.astype(jnp.bfloat16) * jnp.asarray(if_many(8.0, 3.984375)(t), jnp.bfloat16) / t.n
    ),
    "narrow, and kept wide": lambda t: (
        t.weights.astype(jnp.bfloat16) * (jnp.bfloat16(1) - jnp.bfloat16(2e-4) * jnp.bfloat16(t.n))
    ),
    "small in float16": lambda t: (
        1e4 * ff.all_mean((1e-7 * jnp.mean(narrow(t.x))).astype(jnp.float16))
    ),
    "small in float16 again": lambda t: (
        1e4 * ff.all_mean((1e-7 * in_half(t.x).astype(jnp.float32)).astype(jnp.float16))
    ),
    "scaled in float16": lambda t: ff.all_mean(
        jnp.mean(t.x.astype(jnp.float16), (0, 1)) * jnp.float16(1e-7)
    ),
    "narrow beside wide, added": narrowed(lambda t: t.x + 0 * narrow(t.x)),
    "narrow beside wide, chosen": narrowed(lambda t: jnp.where(t.x > 9, narrow(t.x), t.x)),
    "narrow beside wide, joined": narrowed(lambda t: jnp.concatenate([t.x, narrow(t.x)], -1)),
    "narrow beside wide, multiplied": narrowed(lambda t: t.x * narrow(t.x)),
    "a sum in a byte": lambda t: ff.all_sum(
        jnp.sum(t.x.astype("float8_e4m3fn"), (0, 1), dtype="float8_e4m3fn").astype(jnp.float32)
    ),
}
EXACT = {
    "one over their number": lambda t: ff.all_mean(jnp.sum(t.x) * (1.0 / t.n)),
    "one over it in float32": lambda t: ff.all_mean(jnp.sum(t.x) * (np.float32(1) / t.n)),
    "a third of it": lambda t: ff.all_mean(jnp.sum(t.x) / (t.n / 3.0)),
    "divided and multiplied": lambda t: t.m * (jnp.float32(0.1) / t.n * t.n),
    "a minus for all": lambda t: jnp.copysign(t.m, -0.0),
    "a scaled mean in bfloat16": narrowed(lambda t: 0.5 * narrow(t.x)),
    "a mean that is not differentiated": lambda t: ff.all_mean(lax.stop_gradient(jnp.mean(t.x))),
    "a maximum that is not differentiated": lambda t: ff.all_max(lax.stop_gradient(jnp.max(t.x))),
    "a mean put somewhere": lambda t: ff.all_mean(jax.device_put(jnp.mean(t.x))),
    "a mean in float16": lambda t: ff.all_mean(in_half(t.x)),
    "a mean over time and environments in float16": lambda t: ff.all_mean(
        jnp.mean(t.x.astype(jnp.float16), (0, 1))
    ),
    "a maximum in float16": lambda t: ff.all_max(jnp.max(t.x.astype(jnp.float16))),
    "a mean in bfloat16": lambda t: ff.all_mean(jnp.mean(t.x.astype(jnp.bfloat16), (0, 1))),
}


@pytest.mark.parametrize("place", ["glue", "component"])
@pytest.mark.parametrize("what", ALMOST)
def test_almost_the_same_is_not_the_same(what: str, place: Any) -> None:
    reason = refusal(ALMOST[what], place)
    assert reason is not None
    assert "test_numbers.py" in reason


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("what", EXACT)
def test_what_is_rounded_alike_is_accepted(what: str, workers: int) -> None:
    assert refusal(EXACT[what], workers=workers, num_envs=4 * workers) is None


def late(value: Any) -> Expression:
    """What no probe meets: it is taken in one iteration that is not tried."""
    return lambda t: jnp.where(t.m == 5.0, value(t), 0.0)


def alone(t: Any) -> bool:
    return t.n == 1


ALONE = {
    "a number": late(lambda t: 2.0 if alone(t) else 1.0),
    "an array": late(lambda t: t.weights[:2] * np.array([1, 2 if alone(t) else 1], np.float32)),
    "a direction": late(lambda t: lax.cumsum(t.weights, reverse=alone(t))),
    "operands": late(lambda t: lax.sub(*((t.m, t.weights) if alone(t) else (t.weights, t.m)))),
    "cases": late(lambda t: jnp.where(t.m > 0, *((t.m, -t.m) if alone(t) else (-t.m, t.m)))),
    "an entry": late(lambda t: t.weights[:1] if alone(t) else t.weights[1:2]),
    "a transposed broadcast": late(
        lambda t: jnp.cumsum(
            jnp.broadcast_to(t.weights[:2, None] if alone(t) else t.weights[None, :2], (2, 2)), 0
        )
    ),
    "a reshape before a broadcast": late(
        lambda t: jnp.cumsum(
            lax.broadcast_in_dim(
                lax.reshape(t.weights[:4], (4, 1) if alone(t) else (1, 4)), (4, 4), (0, 1)
            ),
            0,
        )
    ),
    "a row for a number": late(
        lambda t: ff.all_mean(
            jnp.mean(t.x * (t.x.reshape(-1, 3)[:4].reshape(4, 1, 3) if alone(t) else 1.0))
        )
    ),
    "a branch": late(
        lambda t: lax.cond(t.m > 0, *([jnp.sin, jnp.cos][:: -1 if alone(t) else 1]), t.m)
    ),
    "in a loop": late(
        lambda t: lax.fori_loop(0, 3, lambda _, c: c * (2.0 if alone(t) else 1.0), t.m)
    ),
    "a shorter loop": late(lambda t: lax.fori_loop(0, 2 + alone(t), lambda _, c: 1.1 * c, t.m)),
    "another axis of a table": late(
        lambda t: jnp.take(t.weights[:4].reshape(2, 2), jnp.array([0, 1, 1]), int(alone(t)))[0, 0]
    ),
    "all of them": late(lambda t: 2.0 if t.n == 3 else 1.0),
    "a comparison": late(lambda t: jnp.where(jnp.int32(t.n) > 1, 2.0, 1.0)),
    "a minimum": late(lambda t: jnp.minimum(t.n, 2).astype(jnp.float32)),
    "a branch by their number": late(lambda t: lax.cond(jnp.int32(t.n) > 1, jnp.sin, jnp.cos, t.m)),
    "a loop by their number": late(
        lambda t: lax.fori_loop(0, jnp.minimum(t.n, 2), lambda _, c: 1.1 * c, t.m)
    ),
    "a place in a table": late(lambda t: t.weights[jnp.minimum(t.n, 2)]),
}
RIGHT_ALONE = {
    "a mean": lambda t: ff.all_mean(jnp.mean(jnp.sin(t.x))),
    "a derivative": lambda t: ff.all_mean(
        jax.grad(lambda w: jnp.mean(jax.nn.log_softmax(t.x * w)[..., 0]))(t.m)
    ),
    "of layers": lambda t: ff.all_mean(
        jax.grad(lambda w: jnp.mean(jnp.tanh(t.x @ w + w[0])))(t.weights[:6].reshape(3, 2))
    ),
    "normalised": lambda t: ff.all_mean(jnp.mean((t.x - ff.all_mean(t.x.mean((0, 1)))) ** 2)),
    "by their number": lambda t: ff.all_mean(jnp.sum(t.x) / t.n),
    "taken along an axis": lambda t: ff.all_mean(
        jax.grad(
            lambda w: jnp.mean(
                jnp.take_along_axis(t.x * w, (t.x[..., :1] > 0).astype(jnp.int32), axis=-1)
            )
        )(t.m)
    ),
    "their entries": lambda t: ff.all_mean(
        jnp.mean(t.x[-1][jnp.arange(t.n), jnp.argmax(t.x[-1], axis=-1)])
    ),
}


@pytest.mark.parametrize("place", ["glue", "component"])
@pytest.mark.parametrize("what", ALONE)
def test_another_program_for_one_environment_is_refused(what: str, place: Any) -> None:
    reason = refusal(ALONE[what], place, workers=3, num_envs=3)
    assert reason is not None
    assert "test_numbers.py" in reason


@pytest.mark.parametrize("place", ["glue", "component"])
@pytest.mark.parametrize("what", RIGHT_ALONE)
def test_one_environment_each_may_be_the_same_program(what: str, place: Any) -> None:
    assert refusal(RIGHT_ALONE[what], place, workers=3, num_envs=3) is None


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int16, jnp.int32])
def test_a_mean_of_whole_numbers_is_refused_in_messages_too(dtype: Any) -> None:
    def of_actors(make: Any) -> Expression:
        return lambda t: ff.all_mean(ff.component("actor.count")(make)(t.x))

    def count(x: jax.Array) -> jax.Array:
        n = x.shape[1]
        return jnp.sum((x[..., 0] > -9).astype(dtype), dtype=dtype) * dtype(48 // n)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.mean(x)

    coarse = {"place": "glue", "policy": "single-learner-coarse"}
    reason = refusal(of_actors(count), **coarse)  # pyright: ignore[reportArgumentType]
    assert reason is not None
    assert "make them floats first" in reason
    assert refusal(of_actors(mean), **coarse) is None  # pyright: ignore[reportArgumentType]


def test_a_part_that_is_scaled_in_float16_is_refused_in_messages_too() -> None:
    def mean(x: jax.Array) -> jax.Array:
        return jnp.mean(x.astype(jnp.float16)) * jnp.float16(1e-6)

    reason = refusal(
        lambda t: ff.all_mean(ff.component("actor.mean")(mean)(t.x)),
        place="glue",
        policy="single-learner-coarse",
    )
    assert reason is not None
    assert "make it float32 first" in reason
