"""A network of flax nnx modules learns like any other, cut or not."""

import jax
import numpy as np
from flax import nnx

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.ops.networks.nnx import NnxActorCritic
from fragflow.policies import named_policy
from fragflow.run import Experiment, run


def small(outputs: int):
    def make(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Sequential(
            nnx.Linear(4, 8, rngs=rngs), nnx.tanh, nnx.Linear(8, outputs, rngs=rngs)
        )

    return make


def test_ppo_trains_nnx_modules_under_two_policies():
    network = NnxActorCritic(actor=small(2), critic=small(1))
    algorithm = PPO(rollout_length=8, epochs=1, minibatches=2, network=network)
    environment = make_environment("CartPole-v1")
    experiment = Experiment(
        algorithm=algorithm,
        environment=environment,
        num_envs=8,
        total_steps=128,
        seed=0,
    )
    whole = run(experiment, named_policy("gpu-only"))
    cut = run(experiment, named_policy("single-learner-coarse"), workers=2)
    first = network.init(
        jax.random.key(0), experiment.environment.observation, experiment.environment.action
    )
    assert jax.tree.structure(first) == jax.tree.structure(whole.state.params)
    for a, b in zip(
        jax.tree.leaves(whole.state.params), jax.tree.leaves(cut.state.params), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    changed = zip(jax.tree.leaves(first), jax.tree.leaves(whole.state.params), strict=True)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in changed)
