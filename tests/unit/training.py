"""What tests of algorithms share: some iterations as one program, and what it is made of."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fragflow.api as ff
from fragflow._jax import Jaxpr, component_of, inner_jaxprs
from fragflow.environments import make_environment


class EqnPair:
    """Two agents that stand still."""

    name = "pair"
    num_agents = 2
    observation = ff.Box(shape=(1,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(()), jnp.zeros((2, 1))

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> ff.Step:
        no = jnp.zeros(2, bool)
        return ff.Step(state, jnp.zeros((2, 1)), jnp.zeros(2), no, no)


def environments(env: Any, num_envs: int) -> ff.Environments:
    """Some environments of one kind, by name or as an object."""
    made = make_environment(env) if isinstance(env, str) else env
    return ff.Environments(made, jnp.arange(num_envs), num_envs)


def iterate(
    algorithm: Any, env: Any, num_envs: int, iterations: int, seed: int = 0
) -> tuple[Any, Any, ff.Metrics]:
    """The state before and after, and the metrics of every iteration."""
    batch = environments(env, num_envs)

    def step(state: Any, i: jax.Array):
        clock = ff.Clock(
            key=jax.random.fold_in(jax.random.key(seed + 1), i),
            iteration=i,
            env_steps=i * num_envs * algorithm.rollout_length,
            progress=i / iterations,
        )
        return algorithm.step(batch, state, clock)

    state = jax.jit(lambda key: algorithm.init(batch, key))(jax.random.key(seed))
    steps = jnp.arange(iterations, dtype=jnp.int32)
    return state, *jax.jit(lambda state: jax.lax.scan(step, state, steps))(state)


def assert_all_learned(before: Any, after: Any, metrics: ff.Metrics) -> None:
    """Every parameter has changed, and nothing became infinite."""
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert all(np.isfinite(value).all() for value in metrics.values())
    for old, new in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        assert not np.array_equal(old, new)


def components(algorithm: Any, env: Any) -> set[str]:
    """The components of an algorithm's iteration."""
    batch = environments(env, 2)
    state = jax.eval_shape(lambda key: algorithm.init(batch, key), jax.random.key(0))
    clock = ff.Clock(jax.random.key(1), jnp.int32(0), jnp.int32(0), jnp.float32(0.0))
    tracer = jax.make_jaxpr(lambda s, c: algorithm.step(batch, s, c))(state, clock)
    return set(_components(tracer.jaxpr))


def _components(jaxpr: Jaxpr) -> Iterable[str]:
    for eqn in jaxpr.eqns:
        component = component_of(eqn)
        if component is not None:
            yield component
        else:
            for inner in inner_jaxprs(eqn):
                yield from _components(inner)
