"""What is written as an ONNX graph computes what JAX does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow.errors import ConfigError
from fragflow.runtime import onnx_engine

pytestmark = pytest.mark.skipif(onnx_engine.absent() is not None, reason="ONNX Runtime is an extra")


def through_onnx(function: Callable[..., Any], *args: Any) -> list[Any]:
    closed = jax.make_jaxpr(function)(*args)
    return list(onnx_engine.through_onnx(closed, "actor", jax.devices()[0], {})(*args))


def actor(function: Callable[..., Any]) -> Callable[..., Any]:
    return ff.component("actor")(function)


X = jax.random.normal(jax.random.key(0), (5, 4))
W = jax.random.normal(jax.random.key(1), (4, 3))
IMAGE = jax.random.normal(jax.random.key(2), (2, 9, 8, 3))

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "log_softmax": jax.nn.log_softmax,
    "softmax": jax.nn.softmax,
    "softplus of exp": lambda y: jnp.log(1.0 + jnp.exp(y)),
    "clip": lambda y: jnp.clip(y, -0.5, 0.5),
    "norm": lambda y: y / jnp.sqrt(jnp.sum(jnp.square(y), -1, keepdims=True) + 1e-6),
    "layer norm": lambda y: (
        (y - jnp.mean(y, -1, keepdims=True)) * jax.lax.rsqrt(jnp.var(y, -1, keepdims=True) + 1e-5)
    ),
    "power": lambda y: y**3,
    "transpose": lambda y: y.T,
    "slices": lambda y: jnp.concatenate([y[:, 1:], y[:, :1]], axis=1),
    "stack": lambda y: jnp.stack([y[:, 0], y[:, 1]], axis=-1),
    "reshape": lambda y: y.reshape(3, 5),
    "max": lambda y: jnp.max(y, axis=0) - jnp.min(y, axis=1).sum(),
    "where": lambda y: jnp.where((y > 0) & (y < 1), y, -y),
    "one hot": lambda y: jax.nn.one_hot((y > 0).astype(jnp.int32)[:, 0], 3),
    "einsum": lambda y: jnp.einsum("bi,ci->bc", y, y),
    "broadcast": lambda y: jnp.broadcast_to(y[:, None, :], (5, 2, 3)) * jnp.ones((2, 1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_after_a_layer(name: str) -> None:
    operation = OPERATIONS[name]

    def function(x: Any, w: Any) -> Any:
        return actor(lambda x, w: operation(x @ w))(x, w)

    (got,) = through_onnx(function, X, W)
    np.testing.assert_allclose(got, jax.jit(function)(X, W), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 2), (0, 1))])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution(padding: Any, stride: int) -> None:
    kernel = jax.random.normal(jax.random.key(3), (3, 2, 3, 4))

    @actor
    def function(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    (got,) = through_onnx(function, IMAGE, kernel)
    np.testing.assert_allclose(got, jax.jit(function)(IMAGE, kernel), rtol=1e-4, atol=1e-5)


def test_what_an_engine_cannot_do_stays_around_it() -> None:
    """Sorting before, random numbers after, and other components on both sides."""

    @ff.component("learner.track")
    def environment(x: Any) -> Any:
        return x * 2.0

    @actor
    def act(x: Any, w: Any, key: Any) -> tuple[Any, Any]:
        logits = jnp.sort(x) @ w
        action = jax.random.categorical(key, logits)
        return action, jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)

    def function(x: Any, w: Any, raw: Any) -> Any:
        action, log_prob = act(environment(x), w, jax.random.wrap_key_data(raw))
        return environment(action.astype(jnp.float32)), log_prob, x

    raw = jax.random.key_data(jax.random.key(7))
    got = through_onnx(function, X, W, raw)
    for a, b in zip(got, jax.jit(function)(X, W, raw), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_actor_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer was found in 'actor'"):
        through_onnx(actor(lambda x: jnp.tanh(x)), X)
