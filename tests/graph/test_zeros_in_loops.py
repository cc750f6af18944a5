"""Loops that begin with zeros, as derivatives of loops do: zeros are of any degree, at first."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import fragflow as ff
from graph.telling import refusal


def looped(body: Any, first: Any = 0.0) -> Any:
    """A loop over time of rows, to which rows divided by their number are added."""

    def expression(t: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return body(carry, x) + x / t.n, None

        rows = t.x[:, :, 0]
        last, _ = lax.scan(step, jnp.zeros_like(rows[0]) + first, rows)
        return ff.all_mean(jnp.sum(last))

    return expression


def gradient(t: Any) -> Any:
    """Of a model that is unrolled, by losses on the way."""

    def loss(w: Any) -> Any:
        def step(latent: Any, x: Any) -> Any:
            return jnp.tanh(w * latent + x), jnp.mean(jnp.square(latent - x))

        rows = t.x[:, :, 0]
        return jnp.mean(lax.scan(step, rows[0], rows)[1])

    return ff.all_mean(jax.grad(loss)(0.5))


RIGHT = {
    "a gradient": gradient,
    "a factor": looped(lambda c, x: 0.9 * c),
    "rows as factors": looped(lambda c, x: c * jnp.tanh(x)),
}
WRONG = {
    "not homogeneous": looped(lambda c, x: jnp.tanh(c) * x),
    "a product": looped(lambda c, x: c * c * x),
    "a sum of degrees": looped(lambda c, x: c * x + x),
    "another degree": looped(lambda c, x: c * x + jnp.sum(c) * x),
    "no zero": looped(lambda c, x: c * x, first=1.0),
    "a constant": looped(lambda c, x: c * x + 0.1),
    "a branch": looped(lambda c, x: jnp.where(c > 0.1, c, 2 * c) * x),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_made_of_zeros_may_have_a_degree(name: str) -> None:
    assert refusal(RIGHT[name]) is None


@pytest.mark.parametrize("name", WRONG)
def test_what_a_loop_does_not_keep_is_refused(name: str) -> None:
    reason = refusal(WRONG[name])
    assert reason is not None
    assert "how many environments a replica holds" in reason
    assert "test_zeros_in_loops.py" in reason
