"""Every policy with 1, 2 and 4 workers: processes and a Ray cluster give the results of threads."""

from typing import Any

import jax
import numpy as np
import pytest

from fragflow.algorithms.a3c import A3C
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.mappo import MAPPO
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import PolicyError, TraceError
from fragflow.policies.named import POLICIES
from fragflow.policies.policy import Deployment
from fragflow.remote.launch.cluster import Cluster
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.programs.devices import needed_devices
from remote.ray_nodes import WARNINGS, Nodes

pytestmark = WARNINGS
FEW: dict[str, Any] = {"agents": 5, "taggers": 2, "neighbours": 2}
ALGORITHMS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ppo": (PPO(rollout_length=8, epochs=2, minibatches=2, hidden=(8,)), "CartPole-v1", {}),
    "a3c": (A3C(rollout_length=4, hidden=(8,)), "CartPole-v1", {}),
    "impala": (IMPALA(rollout_length=4, hidden=(8,)), "CartPole-v1", {}),
    "ippo": (IPPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,)), "Tag", {}),
    "mappo": (
        MAPPO(rollout_length=8, chunk_length=4, epochs=1, minibatches=2, hidden=(8,), units=8),
        "Tag",
        FEW,  # what a critic sees grows with their number
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_results_are_those_of_threads(
    request: pytest.FixtureRequest, algorithm: str, policy: str, workers: int, runtime: Any
) -> None:
    more: dict[str, Any] = {}
    if runtime == "ray":
        pytest.importorskip("ray", reason="Ray is an extra")
        nodes: Nodes = request.getfixturevalue("wide_nodes")
        more["cluster"] = Cluster(address=nodes.here.address, token_file=str(nodes.token))
    learner, environment, arguments = ALGORITHMS[algorithm]
    experiment = Experiment(
        algorithm=learner,
        environment=make_environment(environment, **arguments),
        num_envs=8,
        total_steps=3 * 8 * learner.rollout_length,
        seed=3,
    )
    chosen = POLICIES[policy]
    numbers: dict[str, Any] = {
        "workers": workers,
        "learners": workers if policy == "agents" else 1,
    }
    if needed_devices(chosen, Deployment(**numbers)) > len(jax.devices()):
        pytest.skip("needs more devices than tests have")
    try:
        threads = run(experiment, chosen, **numbers)
    except (PolicyError, TraceError) as error:
        pytest.skip(f"makes no sense: {error}")
    elsewhere = run(experiment, chosen, runtime=runtime, **numbers, **more)
    assert_alike(threads, elsewhere, is_exact=not _has_large_group(threads))


def _has_large_group(outcome: Outcome) -> bool:
    """Sums over more than two replicas of a group are made in another order."""
    fdg = outcome.start.fdg
    assert fdg is not None
    return any(f.group and f.replicas > 2 for f in fdg.fragments.values())


def assert_alike(a: Outcome, b: Outcome, is_exact: bool) -> None:
    def compare(x: Any, y: Any) -> None:
        if is_exact:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)

    jax.tree.map(compare, a.state.params, b.state.params)
