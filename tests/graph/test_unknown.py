"""What has no rule, and no batching rule that makes its equation: refused by its name.

Most of these primitives no program of a user's has. The check is asked of each all the same, by an
equation with its name, and nothing else of it.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

import fragflow as ff
from fragflow._jax import CALLS
from fragflow.graph.fragment_extent import environments_axis
from fragflow.graph.replicas.interpret import Context
from fragflow.graph.replicas.kinds import EXACT, UNIFORM, Kind, Tag, partial, varying
from fragflow.graph.replicas.rules.table import TABLE
from graph.families import doubled
from graph.telling import lines_of, named_in, refusal
from hunt.primitives import NOT_DRAWN

SIZES = (6, 3)
OPERANDS: dict[str, tuple[Kind, tuple[tuple[int, ...], ...]]] = {
    "rows": (varying(0), ((6, 2), (3, 2))),
    "a part of a sum": (partial("", degree=1), ((2,), (2,))),
    "a count": (Kind(tag=Tag.UNIFORM, degree=1), ((2,), (2,))),
}
PRIMITIVES = {p.name: p for p in gc.get_objects() if isinstance(p, core.Primitive)}
UNKNOWN = {name: p for name, p in PRIMITIVES.items() if name in NOT_DRAWN and name not in TABLE}


def of_user(x: Any) -> Any:
    return jnp.sin(x)


def said_of(primitive: Any, kind: Kind, shapes: Sequence[tuple[int, ...]]) -> Kind:
    """What the check says of an equation with this name."""
    a, b = (
        jax.make_jaxpr(of_user)(jnp.zeros(shape))
        .jaxpr.eqns[0]
        .replace(primitive=primitive, params={})
        for shape in shapes
    )
    return Context(axis=environments_axis(*SIZES)).apply(a, b, [kind])[0]


@pytest.mark.parametrize("operand", OPERANDS)
def test_nothing_is_believed_of_a_name(operand):
    assert UNKNOWN
    for name, primitive in UNKNOWN.items():
        said = said_of(primitive, *OPERANDS[operand])
        assert said.tag is Tag.MIXED, name
        assert name in said.reason, name
        assert named_in(said.line) <= {("test_unknown.py", n) for n in lines_of(of_user)}, name


@pytest.mark.parametrize("name", sorted(CALLS & PRIMITIVES.keys()))
def test_a_call_is_read_whatever_its_name(name):
    """Of some of these no function of JAX makes an equation."""

    def said(function):
        eqns = [
            jax.make_jaxpr(jax.jit(function))(jnp.zeros(shape)).jaxpr.eqns[0]
            for shape in ((6, 2), (3, 2))
        ]
        a, b = (
            eqn.replace(primitive=PRIMITIVES[name], params={"jaxpr": eqn.params["jaxpr"]})
            for eqn in eqns
        )
        return Context(axis=environments_axis(*SIZES)).apply(a, b, [varying(0)])[0]

    assert replace(said(jnp.sin), digits=EXACT) == varying(0)
    assert said(lambda x: jnp.cumsum(x, 0)).tag is Tag.MIXED


def test_what_is_the_same_everywhere_stays_so():
    """A function of what all replicas have, whichever it is."""
    assert said_of(UNKNOWN["geqp3"], UNIFORM, ((2,), (2,))) == UNIFORM


def mean(x: Any) -> Any:
    return ff.all_mean(jnp.mean(x))


def one_device() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID")


UNPROVEN = {
    "approx_max_k": lambda t: mean(lax.approx_max_k(t.x[0], 2)[0]),
    "cholesky_update": lambda t: mean(
        lax.linalg.cholesky_update(3 * jnp.eye(3), jnp.mean(t.x, (0, 1)))
    ),
    "custom_vmap": lambda t: mean(doubled(t.x)),
    "ffi_call": lambda t: mean(
        jax.ffi.ffi_call("unheard_of", jax.ShapeDtypeStruct(t.x.shape, t.x.dtype))(t.x)
    ),
    "linear_call": lambda t: mean(
        jax.custom_derivatives.linear_call(
            lambda a, x: a * x, lambda a, g: a * g, jnp.cos(t.x), t.x
        )
    ),
    "ragged_dot": lambda t: mean(
        lax.ragged_dot(t.x[0], jnp.ones((2, 3, 3)), jnp.array([1, t.n - 1]))
    ),
    "reduce": lambda t: mean(lax.reduce(t.x[0], np.float32(1), lambda a, b: a + 2 * b, (1,))),
    "reduce_window": lambda t: mean(
        lax.reduce_window(t.x[0], 1.0, lax.mul, (1, 2), (1, 1), "VALID")
    ),
    "rng_bit_generator": lambda t: ff.all_sum(
        lax.rng_bit_generator(jnp.full(4, jnp.sum(t.x > 0, dtype=jnp.uint32)), (2,))[1] / 7.0
    ),
    "select_and_gather_add": lambda t: mean(jax.jvp(pooled, (t.x[0],), (t.x[1],))[1]),
    "shard_map": lambda t: mean(
        jax.shard_map(
            jnp.sin, mesh=one_device(), in_specs=PartitionSpec(), out_specs=PartitionSpec()
        )(t.x[0])
    ),
    "sharding_constraint": lambda t: mean(
        lax.with_sharding_constraint(t.x, NamedSharding(one_device(), PartitionSpec()))
    ),
}


@pytest.mark.parametrize("expression", UNPROVEN.values(), ids=UNPROVEN)
def test_what_nothing_proves_is_refused_at_the_line_of_the_user(expression):
    reason = refusal(expression)
    assert reason is not None
    lines = {("test_unknown.py", n) for f in (expression, pooled) for n in lines_of(f)}
    assert named_in(reason) <= lines, reason
    assert named_in(reason)


def test_what_all_replicas_have_may_enter_it():
    assert refusal(lambda t: lax.approx_max_k(t.weights, 2)[0]) is None
