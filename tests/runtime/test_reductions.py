"""Reductions over replicas give what the undivided program has, whatever the numbers are."""

import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow._all_reduce import reduce_over_axis
from fragflow.errors import TraceError
from fragflow.policies import named_policy
from fragflow.run import Experiment, run
from graph.toy import Drift
from graph.wrong import Small

pytestmark = pytest.mark.least_time


def large_in_half(x, n, key):
    return ff.all_mean((0 * x + 4e4).astype(jnp.float16).mean(0)).astype(jnp.float32) * 1e-4


def some_are_no_number(x, n, key):
    return jnp.isnan(ff.all_max(jnp.where(x > 1, jnp.nan, x).max(0))) + 0.5


def whole_number(x, n, key):
    return ff.all_mean(jnp.uint8(200)).astype(jnp.float32) * 1e-2


@pytest.mark.parametrize("policy", ["gpu-only", "central"])
@pytest.mark.parametrize("direction", [large_in_half, some_are_no_number, whole_number])
def test_as_undivided(direction, policy):
    algorithm = Small(direction=direction)
    experiment = Experiment(
        algorithm=algorithm, environment=Drift(), num_envs=8, total_steps=16, seed=3
    )
    one, two = (
        np.asarray(run(experiment, named_policy(policy), workers=w).state.params) for w in (1, 2)
    )
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert direction is not some_are_no_number or len(set(one.round(4))) > 1  # some had NaN


def test_narrow_floats_are_summed_in_wide_ones():
    import jax

    parts = jnp.asarray([4e4, 3e4], jnp.float16)
    for operation, expected in (("mean", 3.5e4), ("max", 4e4)):
        made = jax.vmap(lambda x, how=operation: reduce_over_axis(how, [x], "r")[0], axis_name="r")(
            parts
        )
        assert made.dtype == jnp.float16
        np.testing.assert_array_equal(made, np.full(2, expected, np.float16))


def test_complex_numbers_have_no_maximum():
    algorithm = Small(direction=lambda x, n, key: abs(ff.all_max((x + 1j).max(0))))
    experiment = Experiment(algorithm=algorithm, environment=Drift(), num_envs=8, total_steps=16)
    with pytest.raises(TraceError, match="all_max of complex64: complex numbers have no order"):
        run(experiment, named_policy("gpu-only"), workers=1)
