"""Reductions inside of linear solves: replicas solve the equations of the undivided program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow._jax import contains_all_reduce, with_axis_reductions
from fragflow.policies import named_policy
from fragflow.run import Experiment, run
from graph.toy import Drift

pytestmark = pytest.mark.least_time


class State(NamedTuple):
    params: jax.Array
    env: Any
    obs: jax.Array


def by_conjugate_gradients(matrix: Any, b: jax.Array) -> jax.Array:
    return jax.scipy.sparse.linalg.cg(matrix, b)[0]


def by_hand(matrix: Any, b: jax.Array) -> jax.Array:
    def solve(matvec: Any, b: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 30, lambda _, x: x + 0.05 * (b - matvec(x)), jnp.zeros_like(b))

    return lax.custom_linear_solve(matrix, b, solve, symmetric=True)


SOLVERS = {"cg": by_conjugate_gradients, "custom_linear_solve": by_hand}


@dataclass(frozen=True)
class NaturalGradient(ff.Algorithm):
    """Moves along a direction that is solved for, with a matrix over all environments."""

    solver: str

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.full(3, 0.1), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        env_state, t = env.step(state.env, self.act(state.params, state.obs))
        return State(self.learn(state.params, t.obs), env_state, t.obs), {}

    @ff.component("actor")
    def act(self, w: jax.Array, obs: jax.Array) -> jax.Array:
        return (obs @ w > 0).astype(jnp.int32)

    @ff.component("learner.update")
    def learn(self, w: jax.Array, obs: jax.Array) -> jax.Array:
        def matrix(v: jax.Array) -> jax.Array:
            return ff.all_mean(jnp.mean(obs * (obs @ v)[:, None], axis=0)) + 0.5 * v

        def solved(w: jax.Array) -> jax.Array:
            return jnp.sum(SOLVERS[self.solver](matrix, w))

        return w + 0.1 * SOLVERS[self.solver](matrix, jnp.ones(3)) + 0.1 * jax.grad(solved)(w)


@pytest.mark.parametrize("policy", ["gpu-only", "multi-learner"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_replicas_solve_the_same_equations(solver: str, policy: str) -> None:
    experiment = Experiment(
        algorithm=NaturalGradient(solver), environment=Drift(), num_envs=8, total_steps=32
    )
    whole = run(experiment, named_policy("gpu-only"), workers=1).state.params
    parts = run(experiment, named_policy(policy), workers=2, learners=2).state.params
    np.testing.assert_allclose(parts, whole, rtol=2e-5)


def test_a_reduction_that_is_not_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the identity, and each replica would go on with its own part."""
    closed = jax.make_jaxpr(jax.jit(lambda x: ff.all_mean(x)))(1.0)
    (eqn,) = closed.jaxpr.eqns
    assert contains_all_reduce(eqn)
    assert not contains_all_reduce(with_axis_reductions(eqn, "replica", 2))
    monkeypatch.setattr("fragflow._jax._axis_eqns", lambda inner, *_: [inner])
    with pytest.raises(AssertionError, match="a reduction over replicas stays inside"):
        with_axis_reductions(eqn, "replica", 2)
