"""Distribution does not change learning: PPO under every policy against one undivided program."""

import functools
from dataclasses import replace

import pytest

from equivalence.common import ONE_LEARNER, REPLICATED, digest, relative_error
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run

UNOPTIMISED = Optimisations(hoist=False, sink=False, coalesce=False)


@functools.cache
def train(
    policy: str,
    workers: int,
    *,
    num_envs: int = 64,
    hidden: tuple[int, ...] = (64, 64),
    optimisations: Optimisations = ALL_OPTIMISATIONS,
    deterministic: bool = False,
    iterations: int = 3,
    slots: tuple[tuple[str, int], ...] = (),
    flags: tuple[str, ...] = (),
) -> Outcome:
    algorithm = PPO(rollout_length=16, epochs=2, minibatches=2, hidden=hidden)
    algorithm = replace(algorithm, **{flag: not getattr(algorithm, flag) for flag in flags})
    experiment = Experiment(
        algorithm=algorithm,
        environment=make_environment("CartPole-v1"),
        num_envs=num_envs,
        total_steps=iterations * 16 * num_envs,
        seed=0,
    )
    return run(
        experiment,
        named_policy(policy),
        workers=workers,
        optimisations=optimisations,
        deterministic=deterministic,
        slots=dict(slots) or None,
    )


QUICK = [
    *(("single-learner-coarse", workers, ALL_OPTIMISATIONS) for workers in (1, 2)),
    *((policy, 2, ALL_OPTIMISATIONS) for policy in ONE_LEARNER[1:]),
    *((policy, 1, ALL_OPTIMISATIONS) for policy in ("multi-learner", "central")),
    ("single-learner-coarse", 2, UNOPTIMISED),
    ("central", 1, UNOPTIMISED),
]
SLOW = [
    ("single-learner-coarse", 4, ALL_OPTIMISATIONS),
    *((policy, workers, ALL_OPTIMISATIONS) for policy in ONE_LEARNER[1:] for workers in (1, 4)),
    *((policy, 2, UNOPTIMISED) for policy in ONE_LEARNER[1:]),
]
SAME_BITS = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("policy", "workers", "optimisations"), SAME_BITS)
def test_replicated_actors_and_environments_give_the_same_bits(policy, workers, optimisations):
    fused = train("gpu-only", 1)
    cut = train(policy, workers, optimisations=optimisations)
    assert cut.start.programs > 1
    assert cut.messages > 0
    assert cut.bytes_moved > 0
    assert fused.start.programs == 1
    assert fused.messages == 0
    assert cut.start.equality == "bitwise"
    assert digest(cut.state) == digest(fused.state)
    assert [r.metrics for r in cut.rows] == [r.metrics for r in fused.rows]


@pytest.mark.quick
@pytest.mark.parametrize("workers", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 4))])
@pytest.mark.parametrize("policy", REPLICATED)
def test_replicated_learners_agree_to_rounding(policy, workers):
    fused = train("gpu-only", 1, num_envs=24, iterations=5)
    cut = train(policy, workers, num_envs=24, iterations=5)
    assert cut.start.equality.startswith("rounding")
    assert relative_error(cut.state.params, fused.state.params) < 1e-4


FLAGS = ("scale_returns", "advantages_per_minibatch", "shuffle_each_env", "clip_value")


@pytest.mark.quick
@pytest.mark.parametrize("policy", ["single-learner-fine", *REPLICATED[::2]])
def test_so_do_the_textbooks_flags_and_statistics_of_observations(policy: str):
    flags = (*FLAGS, "normalise_observations")
    fused = train("gpu-only", 1, num_envs=24, flags=flags)
    cut = train(policy, 2, num_envs=24, flags=flags)
    assert relative_error(cut.state, fused.state) < 1e-4


@pytest.mark.parametrize(
    ("policy", "workers", "num_envs", "hidden"),
    [
        ("single-learner-coarse", 2, 8, (256, 256)),
        pytest.param("single-learner-fine", 4, 12, (64, 64), marks=pytest.mark.slow),
        pytest.param("single-learner-coarse", 4, 4, (64, 64), marks=pytest.mark.slow),
        pytest.param("single-learner-coarse", 3, 12, (200, 200), marks=pytest.mark.slow),
    ],
)
def test_deterministic_gives_the_same_bits_for_any_network_and_batch(
    policy, workers, num_envs, hidden
):
    same = {"num_envs": num_envs, "hidden": hidden, "deterministic": True}
    fused, cut = train("gpu-only", 1, **same), train(policy, workers, **same)
    assert cut.start.equality == "bitwise"
    assert digest(cut.state) == digest(fused.state)


def test_replicas_that_share_a_place_are_fused():
    """Four workers with two places: two replicas of twice the batch, and the same bits."""
    fused = train("single-learner-coarse", 4, slots=(("cpu", 2),))
    assert fused.start.fdg is not None
    rollout = fused.start.fdg.fragments["environment+actor"]
    assert (rollout.replicas, rollout.asked_replicas, rollout.num_envs) == (2, 4, 32)
    assert fused.messages == train("single-learner-coarse", 2).messages
    assert digest(fused.state) == digest(train("gpu-only", 1).state)


def test_the_self_test_tells_when_bits_differ():
    """A wide network, and one environment per worker: XLA rounds differently there."""
    cut = train("single-learner-coarse", 4, num_envs=4, hidden=(256, 256))
    fused = train("gpu-only", 1, num_envs=4, hidden=(256, 256))
    same = digest(cut.state) == digest(fused.state)
    assert same or "actor" in cut.start.equality
    assert relative_error(cut.state.params, fused.state.params) < 1e-3
