"""Workers that are lost together, late, or only seem to be."""

import signal
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.algorithms.a3c import A3C
from fragflow.remote.coordinator.remote_driver import RemoteCalls
from fragflow.remote.protocol import process_client
from fragflow.runtime.traffic import Sent
from graph.toy import Toy
from remote.signals import KillingAll, Signalling
from remote.training import assert_same, in_threads, train


@pytest.mark.slow
def test_a_replacement_sends_through_shared_memory_too() -> None:
    """Its messages go on with the numbers of its predecessor, in memory of its own."""
    observer = Signalling("_1.", signal.SIGKILL, at=(20,))
    disturbed = train(
        Toy(), iterations=300, observer=observer, stall_timeout_seconds=20.0, large_bytes=64
    )
    assert_same(in_threads(Toy(), iterations=300), disturbed)
    assert disturbed.replacements == 1


def test_workers_that_are_lost_at_once_are_all_replaced() -> None:
    """As those of one node: each asks where the others are while these start."""
    disturbed = train(Toy(), iterations=300, observer=KillingAll("environment_actor", at=20))
    assert_same(in_threads(Toy(), iterations=300), disturbed)
    assert disturbed.replacements == 2


def test_time_in_which_nobody_listens_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z, what has come meanwhile is yet to be heard."""
    words = [None, ("done", 5)]
    line: Any = SimpleNamespace(hear=lambda _: words.pop(0), is_silent=bool, say=lambda *_: None)
    handle: Any = SimpleNamespace(how_it_ended=lambda: None, last_words=str)
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(process_client, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert process_client.RemoteProcess("learner", line, handle).call("run") == 5


def test_an_asynchronous_worker_lost_when_all_is_done_takes_nothing_with_it() -> None:
    algorithm = A3C(rollout_length=4, hidden=(8,))
    observer = KillingAll("worker_1.", at=19)
    outcome = train(algorithm, "central", sync="async=4", iterations=20, observer=observer)
    assert len(outcome.rows) == 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))


def test_state_that_is_asked_for_while_the_next_iteration_begins_is_not_kept() -> None:
    """Fragments that run ahead do not wait for who looks at them."""

    class Process:
        made = 0

        def call(self, word: str, content: Any = None, on_point: Any = None) -> Any:
            if word == "state":
                state = {"learner": {"params": self.made}}, Sent()
                if self.made == 1:
                    calls.run(1, 1)  # another thread's, when the answer is on its way
                return state
            self.made += 1
            return {}, {}, Sent()

    calls = RemoteCalls(Process())  # pyright: ignore[reportArgumentType]
    calls.run(0, 1)
    assert calls.state() == {"learner": {"params": 1}}
    assert calls.state() == {"learner": {"params": 2}}
