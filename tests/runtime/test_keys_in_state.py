"""Environments that keep a random key in their state, as many libraries' do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.api.sendable_state import with_keys, without_keys
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run


class Walk:
    """A random walk, whose randomness is its own."""

    name = "walk"
    observation = ff.Box(shape=(1,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        position = jnp.zeros(1)
        return (position, key), position

    def step(
        self, state: tuple[jax.Array, jax.Array], action: jax.Array, key: jax.Array
    ) -> ff.Step:
        own, drawn = jax.random.split(state[1])
        position = state[0] + 0.1 * (2 * action - 1) + 0.1 * jax.random.normal(drawn, (1,))
        far = jnp.abs(position[0])
        return ff.Step((position, own), position, -far, far > 0.3, jnp.bool_(False))


class WithNothing(Walk):
    """Its state has a leaf without entries, as physics have for what never touches."""

    def reset(self, key: jax.Array) -> Any:
        state, obs = super().reset(key)
        return (state, jnp.zeros((0, 3))), obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = super().step(state[0], action, key)
        return step._replace(state=(step.state, state[1]))


def trained(policy: str, workers: int, runtime: str = "local", environment: Any = None) -> Outcome:
    experiment = Experiment(
        algorithm=PPO(rollout_length=4, epochs=1, minibatches=1, hidden=(4,)),
        environment=environment or Walk(),
        num_envs=4,
        total_steps=32,
    )
    return run(experiment, named_policy(policy), workers=workers, runtime=runtime)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_become_numbers_and_keys_again(impl: str) -> None:
    tree = {"key": jax.random.key(3, impl=impl), "other": jnp.ones(2), "number": 1.0}
    raw = without_keys(tree)
    assert all(
        not jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) for x in jax.tree.leaves(raw)
    )
    again = with_keys(raw)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    assert again["key"] == tree["key"]
    assert again["key"].dtype == tree["key"].dtype


@pytest.mark.quick
@pytest.mark.parametrize("runtime", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_they_are_cut_with_their_environments(runtime: str) -> None:
    one = trained("single-learner-coarse", 1)
    two = trained("single-learner-coarse", 2, runtime)
    assert one.episodes == two.episodes > 0
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.quick
def test_replicas_of_one_program_may_hold_leaves_without_entries() -> None:
    outcome = trained("central", 2, environment=WithNothing())
    assert len(outcome.rows) == 2
