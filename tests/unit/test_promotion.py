"""Algorithms and environments of fragflow say what they broadcast, and which types they mean."""

from collections.abc import Callable
from typing import Any

import optax
import pytest

from fragflow.algorithms.a3c import A3C
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.mappo import MAPPO
from fragflow.algorithms.ppo import PPO
from fragflow.algorithms.recurrent_ppo import RecurrentPPO
from fragflow.algorithms.sac import SAC
from fragflow.api import Algorithm
from fragflow.environments import make_environment
from fragflow.environments.classic import names
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.tracing.trace import trace, trace_init
from shapes import as_others_write

pytestmark = pytest.mark.usefixtures("explicit_promotion", "adam_promotes")

NUM_ENVS = 4


@pytest.fixture
def adam_promotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optax takes a float to the power of an int32."""
    correction: Callable[..., Any] = optax.tree.bias_correction

    def loosely(*args: Any) -> Any:
        with as_others_write():
            return correction(*args)

    monkeypatch.setattr(optax.tree, "bias_correction", loosely)


def traced(algorithm: Algorithm, environment: str) -> None:
    made = make_environment(environment)
    trace(algorithm, made, NUM_ENVS, Extent(NUM_ENVS))
    trace_init(algorithm, made, NUM_ENVS, Extent(NUM_ENVS))


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [
        (PPO(advantages_per_minibatch=True), "CartPole-v1"),
        (PPO(normalise_observations=True, clip_value=True), "Pendulum-v1"),
        (PPO(shuffle_each_env=True), "CartPole-v1"),
        (A3C(), "CartPole-v1"),
        (IMPALA(), "CartPole-v1"),
        (DQN(), "CartPole-v1"),
        (DQN(prioritised=True, dueling=True), "CartPole-v1"),
        (SAC(), "Pendulum-v1"),
        (RecurrentPPO(), "Pendulum-v1"),
        (IPPO(), "Tag"),
        (MAPPO(), "Tag"),
        (MAPPO(units=8), "Tag"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_algorithms_leave_no_promotion_to_jax(algorithm: Algorithm, environment: str):
    traced(algorithm, environment)


@pytest.mark.parametrize("environment", names())
def test_environments_leave_no_promotion_to_jax(environment: str):
    traced(PPO(rollout_length=4), environment)
