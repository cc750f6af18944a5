"""Replicas of a group in processes of their own: the same learning, and a clear end of it."""

import signal
import socket
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.algorithms.ppo import PPO
from fragflow.errors import RunError
from fragflow.remote.protocol import process_client
from fragflow.remote.protocol.join_group import free_endpoint
from fragflow.remote.transport.endpoint import Network
from fragflow.run import Silent
from graph.toy import Toy
from remote.plain_drift import PlainDrift
from remote.signals import Signalling, children
from remote.training import assert_same, train

SMALL = PPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,))


class Counting(Silent):
    """Counts the processes of a fragment while it runs."""

    def __init__(self, fragment: str):
        self._fragment = fragment
        self.found = 0

    def rows(self, rows: Any) -> None:
        del rows
        self.found = max(self.found, len(children(f"/{self._fragment}")))


@pytest.mark.parametrize(
    ("policy", "fragment"), [("multi-learner", "learner"), ("gpu-only", "loop")]
)
def test_two_processes_learn_what_two_devices_do(policy: str, fragment: str) -> None:
    observer = Counting(fragment)
    processes = train(SMALL, policy, observer=observer)
    assert observer.found == 2
    assert_same(train(SMALL, policy, runtime="local"), processes)


def test_environments_on_the_host() -> None:
    threads, processes = (
        train(SMALL, "environments", environment=PlainDrift(), runtime=r)
        for r in ("local", "processes")
    )
    assert_same(threads, processes)
    assert sum(r.episodes for r in processes.rows) > 0


@pytest.mark.slow
def test_four_processes_learn_the_same_up_to_rounding() -> None:
    """Sums of four are made in another order."""
    threads, processes = (
        train(SMALL, "gpu-only", workers=4, runtime=r) for r in ("local", "processes")
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        threads.state.params,
        processes.state.params,
    )


@pytest.mark.parametrize("lost", ["learner_0", pytest.param("learner_1", marks=pytest.mark.slow)])
def test_the_first_cause_is_named_when_a_member_is_lost(lost: str) -> None:
    """The others fail too: their collectives do."""
    observer = Signalling(f"/{lost}.", signal.SIGKILL)
    with pytest.raises(RunError, match=f"worker process {lost} was killed by signal 9") as error:
        train(Toy(), "multi-learner", iterations=100_000, observer=observer)
    assert error.value.exit_code == 3


@pytest.mark.slow
def test_a_stopped_member_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "SILENCE_SECONDS", 6.0)
    observer = Signalling("/learner_1.", signal.SIGSTOP)
    with pytest.raises(RunError, match="learner_1 has given no sign of life for 6 seconds"):
        train(Toy(), "multi-learner", iterations=100_000, observer=observer)


def test_a_port_in_use_is_not_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        network = Network(interface="127.0.0.1", first_port=port, last_port=port + 1)
        assert free_endpoint(network) == f"127.0.0.1:{port + 1}"
        only = Network(interface="127.0.0.1", first_port=port, last_port=port)
        with pytest.raises(RunError, match=f"no port of 127.0.0.1 .* between {port} and {port}"):
            free_endpoint(only)
