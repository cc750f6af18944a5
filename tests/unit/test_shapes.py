"""Signatures of `fragflow.ops` state shapes; tests run with checks of them, and users without."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from fragflow import ops

T, N = 5, 3


def estimates(**other: jax.Array) -> jax.Array:
    given: dict[str, Any] = {name: jnp.ones((T, N)) for name in ("reward", "value", "next_value")}
    given |= {name: jnp.zeros((T, N), bool) for name in ("terminated", "done")}
    return ops.gae(**(given | other), gamma=0.99, gae_lambda=0.95)


def test_environments_before_time_are_refused():
    assert estimates().shape == (T, N)
    with pytest.raises(TypeCheckError, match="value"):
        estimates(value=jnp.ones((N, T)))


def test_a_shape_that_would_be_broadcast_is_refused():
    with pytest.raises(TypeCheckError, match="value"):
        estimates(value=jnp.ones((T, 1)))


def test_a_float_for_a_flag_is_refused():
    with pytest.raises(TypeCheckError, match="terminated"):
        estimates(terminated=jnp.zeros((T, N)))


def test_shapes_are_checked_while_a_program_is_traced():
    with pytest.raises(TypeCheckError, match="value"):
        jax.make_jaxpr(lambda value: estimates(value=value))(jnp.ones((N, T)))


def test_users_and_workers_run_without_checks():
    code = "import sys, fragflow.ops, fragflow.algorithms; print('beartype' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
