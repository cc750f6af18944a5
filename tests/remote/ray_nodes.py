"""A Ray cluster of several nodes on one machine."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fragflow.remote.launch.cluster import Cluster, Need
from fragflow.remote.launch.ray_connect import read_token_again

WARNINGS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:os.fork"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Nodes:
    """A cluster of three nodes on this machine: two with room for workers, one for learners."""

    def __init__(self, token: Path, cpus: int = 2):
        self.token = token
        self._cpus = cpus
        head = {"num_cpus": 0, "include_dashboard": False}
        from ray.cluster_utils import Cluster as RayCluster

        self._cluster: Any = RayCluster(initialize_head=True, head_node_args=head)
        self.workers = [self.add("worker"), self.add("worker")]
        self.learner = self.add("learner")

    def add(self, kind: str) -> Any:
        return self._cluster.add_node(num_cpus=self._cpus, resources={kind: 2})

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        self._cluster.shutdown()

    @property
    def here(self) -> Cluster:
        return Cluster(
            address=self._cluster.address,
            token_file=str(self.token),
            needs={
                "environment": Need(resources={"worker": 1}),
                "learner": Need(resources={"learner": 1}),
            },
        )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    yield from _started(tmp_path_factory.mktemp("ray") / "token", cpus=2)


@pytest.fixture(scope="module")
def wide_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """With room for more than there are cores."""
    yield from _started(tmp_path_factory.mktemp("ray") / "token", cpus=4)


def _started(token: Path, cpus: int) -> Iterator[Nodes]:
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "RAY_AUTH_TOKEN_PATH": str(token)}.items():
            patch.setenv(name, value)
        read_token_again()
        cluster = Nodes(token, cpus)
        yield cluster
        cluster.shutdown()
