"""What is no function of its operands: nothing of it can be proven, and it is refused."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import fragflow as ff
from graph.telling import files_named_in, refusal
from graph.toy import Drift


def python(function, *args):
    """What Python code on the host makes of arrays."""
    shape = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
    return jax.pure_callback(function, shape, *args, vmap_method="sequential")


class Times:
    """A function that looks the same whatever it multiplies with."""

    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return np.asarray(x * self.n)

    def __repr__(self):
        return "Times"


def stored_in(value):
    store = jax.new_ref(jnp.zeros(()))
    store[...] = value
    return store


def stored(value):
    return stored_in(value)[...]


def stored_in_loop(value):
    store = jax.new_ref(jnp.zeros(3))

    def write(i, carry):
        store[i] = value
        return carry

    lax.fori_loop(0, 3, write, 0)
    return jnp.sin(store[...])


# What is no function of its operands: two functions of Python's may look alike and know different
# things, and what is stored is in no equation.
OUTSIDE = {
    "a closure": lambda t: python(lambda m: np.asarray(m * t.n), t.m),
    "an object": lambda t: python(Times(t.n), t.m),
    "with effects": lambda t: io_callback(
        lambda m: np.float32(m), jax.ShapeDtypeStruct((), jnp.float32), t.m
    ),
    "of rows": lambda t: ff.all_mean(jnp.mean(python(Times(t.n), t.x))),
    "in env.map": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda r: python(Times(t.n), r), t.x[0]))
    ),
    "in a loop": lambda t: lax.fori_loop(0, 2, lambda _, y: python(Times(t.n), y), t.m),
    "a store": lambda t: stored(jnp.mean(t.x)),
    "a store, frozen": lambda t: jax.freeze(stored_in(jnp.mean(t.x))),
    "a store in a loop": lambda t: stored_in_loop(t.n * t.m),
    "what memory holds": lambda t: t.m + lax.empty((3,), jnp.float32),
    "numbers of the device's": lambda t: lax.rng_uniform(jnp.float32(0), jnp.float32(1), (3,)),
}


@pytest.mark.parametrize("place", ["component", "glue"])
@pytest.mark.parametrize("expression", OUTSIDE.values(), ids=OUTSIDE)
def test_refused_at_its_own_line(expression, place):
    reason = refusal(expression, place)
    assert reason is not None
    assert files_named_in(reason) == {"test_outside.py"}


def test_printing_is_allowed():
    def printed(t):
        jax.debug.print("{}", t.m)
        return ff.all_mean(jnp.mean(t.x))

    assert refusal(printed) is None


@dataclass(frozen=True)
class AsksPython(Drift):
    """An environment may: each asks for itself."""

    def step(self, state, action, key):
        step = super().step(state, action, key)
        return step._replace(reward=python(np.asarray, step.reward))


def test_environments_may_ask():
    assert refusal(lambda t: ff.all_mean(jnp.mean(t.x)), environment=AsksPython()) is None


def test_one_learner_may_ask():
    assert refusal(OUTSIDE["a closure"], policy="single-learner-coarse") is None
