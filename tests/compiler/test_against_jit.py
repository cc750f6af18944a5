"""The heart: fragments give what plain jit gives, whatever the program and the cut."""

import functools
import random
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.random_programs import (
    FLOATS,
    INTEGERS,
    Arithmetic,
    NoEnvironment,
    RandomLoop,
    Step,
    placements,
    steps,
)
from fragflow.graph.cut import cut
from fragflow.graph.optimisations import OPTIMISATIONS, Optimisations
from fragflow.graph.tracing.trace import SOURCES, init_function, iteration_function, tracer
from fragflow.policies import Deployment, Place, Policy
from fragflow.runtime.drivers.thread_workers import ThreadWorkers
from fragflow.runtime.lockstep import LockstepRuntime
from fragflow.runtime.planning.plan import make_plan
from fragflow.runtime.planning.simulate import replicas_apart, simulate
from fragflow.runtime.programs.prepare_workers import Assembly

QUICK_COMPILE = {"xla_backend_optimization_level": 0}
"""programs run once here, so time spent on optimising them is lost"""
NUM_ENVS = 4
ITERATIONS = 2


def sources() -> dict[str, np.ndarray]:
    return {
        "env_ids": np.arange(NUM_ENVS, dtype=np.int32),
        "run_key": np.asarray(jax.random.key_data(jax.random.key(5))),
        "steps_per_iteration": np.asarray(1, np.int32),
        "total_iterations": np.asarray(ITERATIONS, np.int32),
    }


@functools.cache
def first_state(arithmetic: Arithmetic) -> Any:
    """The first state is the same for every program."""
    given_ = sources()
    init = init_function(RandomLoop(arithmetic=arithmetic), NoEnvironment(), NUM_ENVS)
    return jax.jit(init)(given_["run_key"], given_["env_ids"])


def plain_call(name: str, function: Any, args: Any) -> Any:
    """A component as an ordinary jitted function."""
    return jax.jit(function)(*args)


def undivided(algorithm: RandomLoop) -> tuple[list[np.ndarray], np.ndarray]:
    """The training loop under plain `jax.jit`."""
    given_ = sources()
    args = [given_[name] for name in SOURCES]
    state = first_state(algorithm.arithmetic)
    iteration = iteration_function(algorithm, NoEnvironment(), NUM_ENVS)

    def train(state, args):
        return jax.lax.scan(
            lambda s, i: iteration(s, i, *args), state, jnp.arange(ITERATIONS, dtype=jnp.int32)
        )

    with mock.patch("fragflow.api.component.component_call", plain_call):
        final, (metrics, _) = jax.jit(train, compiler_options=QUICK_COMPILE)(state, args)
    return [np.asarray(x) for x in jax.tree.leaves(final)], np.asarray(metrics["last"])


def divided(
    algorithm: RandomLoop, policy: Policy, optimisations: Optimisations
) -> tuple[list[np.ndarray], np.ndarray]:
    """The same loop, cut by a policy and run by the local runtime."""
    fdg = cut(tracer(algorithm, NoEnvironment(), NUM_ENVS), policy, Deployment(), optimisations)
    given_ = sources()
    leaves = jax.tree.leaves(first_state(algorithm.arithmetic))
    state = dict(zip((c.inside for c in fdg.program.loop.carries), leaves, strict=True))
    plan = make_plan(fdg, optimisations)
    workers = ThreadWorkers(fdg, stall_timeout_seconds=60)
    workers.start(Assembly(fdg, plan, state, given_, compiler_options=QUICK_COMPILE))
    runtime = LockstepRuntime(fdg, workers, stall_timeout_seconds=60)
    try:
        apart = replicas_apart(fdg, plan)
        for seed in (1, 2, 3):
            simulate(fdg, apart, ITERATIONS, choose=random.Random(seed).choice)
        rows = runtime.run(0, ITERATIONS)
        final = runtime.state()
    finally:
        runtime.close()
    return (
        [final[c.inside] for c in fdg.program.loop.carries],
        np.stack([row.metrics["last"] for row in rows]),
    )


def compare(
    program: tuple[Step, ...], policy: Policy, optimisations: Optimisations, arithmetic: Arithmetic
) -> None:
    # Every component occurs, so that the policy has something to place.
    program = (*program, Step("component", (0, 1, 0)))
    algorithm = RandomLoop(program=program, arithmetic=arithmetic)
    expected, expected_metric = undivided(algorithm)
    found, metric = divided(algorithm, policy, optimisations)
    for a, b in zip([*expected, expected_metric], [*found, metric], strict=True):
        assert a.dtype == b.dtype
        if arithmetic is INTEGERS:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


OPTIMISED = st.builds(Optimisations, **dict.fromkeys(OPTIMISATIONS, st.booleans()))


@pytest.mark.timeout(1200)
@given(steps(2), placements(), OPTIMISED)
@settings(max_examples=8)
def test_integer_programs_are_exact(program, policy, optimisations):
    compare(program, policy, optimisations, INTEGERS)


@pytest.mark.timeout(1200)
@given(steps(1), placements(), OPTIMISED)
@settings(max_examples=8)
def test_float_programs_agree_to_rounding(program, policy, optimisations):
    compare(program, policy, optimisations, FLOATS)


@pytest.mark.optimised
def test_one_buffer_as_two_operands_of_a_component():
    """XLA overwrites an operand that is still read, if components are calls of their own here."""
    inner = (Step("component", (4, 4, 1)), Step("component", (4, 4, 1)))
    program = (Step("loop", (7, 4, 1), (Step("loop", (7, 4, 1), inner),)),)
    together = Policy(
        name="together",
        places=(Place(name="all", components=(), optional=("a", "b", "c", "d")),),
    )
    compare(program, together, Optimisations(), INTEGERS)


@pytest.mark.slow
@pytest.mark.optimised
@given(steps(2), placements(), OPTIMISED)
@settings(max_examples=3000)
def test_integer_programs_are_exact_thousands(program, policy, optimisations):
    compare(program, policy, optimisations, INTEGERS)
