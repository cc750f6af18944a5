"""Wrapped environments: the same bits wherever they run, and episodes counted after cutting."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.api.host import HostStep
from fragflow.environments import make_environment
from fragflow.errors import EnvironmentFault
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run
from runtime.test_host import HostDrift, train

pytestmark = pytest.mark.quick

WRAPPED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "compiled": ("CartPole-v1", {}, {"frame_stack": 2, "time_limit": 10}),
    "one by one": (
        "gymnasium:Pendulum-v1",
        {"vectorization": "sync"},
        {"scale_actions": True, "time_limit": 10, "frame_stack": 3, "scale_rewards": 0.1},
    ),
    "threads": (
        "envpool:HalfCheetah-v4",
        {"threads": 1},
        {"frame_stack": 2, "clip_actions": True, "time_limit": 10},
    ),
}


@functools.cache
def train_ppo(case: str, policy: str, workers: int) -> Outcome:
    name, arguments, wrappers = WRAPPED[case]
    experiment = Experiment(
        algorithm=PPO(rollout_length=16, epochs=1, minibatches=2),
        environment=ff.wrap(make_environment(name, **arguments), **wrappers),
        num_envs=32,
        total_steps=2 * 16 * 32,
        seed=1,
    )
    return run(experiment, named_policy(policy), workers=workers)


@pytest.mark.parametrize(
    ("case", "policy", "workers"),
    [
        ("compiled", "single-learner-coarse", 2),
        pytest.param("compiled", "single-learner-fine", 4, marks=pytest.mark.slow),
        ("one by one", "single-learner-fine", 2),
        pytest.param("one by one", "single-learner-coarse", 4, marks=pytest.mark.slow),
        ("threads", "single-learner-coarse", 2),
    ],
)
def test_the_same_bits_with_any_number_of_workers(case, policy, workers):
    alone, other = train_ppo(case, "single-learner-coarse", 1), train_ppo(case, policy, workers)
    assert other.start.equality == "bitwise"
    for a, b in zip(
        jax.tree.leaves(alone.state.params), jax.tree.leaves(other.state.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert [r.return_sum for r in alone.rows] == [r.return_sum for r in other.rows]


@pytest.mark.parametrize("case", WRAPPED)
def test_episodes_end_at_the_limit(case):
    rows = train_ppo(case, "single-learner-coarse", 1).rows
    episodes, length = sum(r.episodes for r in rows), sum(r.length_sum for r in rows)
    assert episodes >= 32 * 2
    assert length / episodes <= 10.0
    if case != "compiled":  # poles may fall earlier
        assert length / episodes == 10.0


def test_a_fault_inside_a_wrapper_names_the_environment():
    def not_a_number(step: int, answer: HostStep) -> HostStep:
        if step == 6:
            answer.next_obs[1, 2] = np.nan
        return answer

    environment = ff.wrap(HostDrift(disturb=not_a_number), frame_stack=1, scale_rewards=2)
    with pytest.raises(EnvironmentFault, match=r"host drift: environment 1 returned NaN .* step 6"):
        train("single-learner-coarse", environment=environment)
