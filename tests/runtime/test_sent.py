"""What a run says it has sent is what was sent, whatever the plan says."""

from typing import Any

import numpy as np
import pytest

from fragflow.graph.passes import collectives
from fragflow.run import Outcome
from fragflow.runtime.asynchrony.server_queue import ServerQueue, Submission
from fragflow.runtime.drivers import assign_workers
from fragflow.runtime.drivers.channels import QueueChannel, QueueChannels
from fragflow.runtime.protocols import Payload
from graph.toy import OneUpdate, Toy
from remote.training import COARSE, train

pytestmark = pytest.mark.quick

Seen = list[int]
"""the bytes of each message that went by"""


def size(payload: Payload) -> int:
    return sum(np.asarray(array).nbytes for array in payload if array is not None)


def said(outcome: Outcome) -> tuple[int, int]:
    return outcome.messages, outcome.bytes_moved


def in_threads(policy: str = COARSE, algorithm: Any = None, **options: Any) -> Outcome:
    options = {"runtime": "local", "probe": False, **options}
    return train(algorithm or Toy(), policy, **options)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What is put into any channel."""
    found: Seen = []
    opened = QueueChannels.open

    class Watched:
        def __init__(self, channel: QueueChannel):
            self.queue, self._channel = channel.queue, channel

        def put(self, payload: Payload) -> None:
            found.append(size(payload))
            self._channel.put(payload)

        def get(self, what: str) -> Payload:
            return self._channel.get(what)

    monkeypatch.setattr(QueueChannels, "open", lambda *args: Watched(opened(*args)))
    return found


@pytest.mark.parametrize("policy", [COARSE, "single-learner-fine", "multi-learner"])
def test_in_lockstep(policy: str, seen: Seen) -> None:
    outcome = in_threads(policy)
    assert said(outcome) == (len(seen), sum(seen))
    assert 0 < outcome.messages < outcome.bytes_moved


def test_first_values_of_late_messages_are_sent_too(seen: Seen) -> None:
    late = in_threads(sync="lag=2", iterations=5)
    assert said(late) == (len(seen), sum(seen))
    # Two workers, there and back; and two answers each that nothing preceded.
    assert late.messages == 5 * 2 * 2 + 2 * 2


@pytest.mark.parametrize("policy", [COARSE, "single-learner-fine"])
def test_within_a_thread_it_is_the_same(
    policy: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = in_threads(policy, workers=1)
    assert not seen
    monkeypatch.setattr(
        assign_workers, "fragments_by_thread", lambda fdg, _: [(name,) for name in fdg.fragments]
    )
    apart = in_threads(policy, workers=1)
    assert said(together) == said(apart) == (len(seen), sum(seen))


def test_asynchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Seen = []
    submit, begin = ServerQueue.submit, ServerQueue.begin

    def watched_submit(self: ServerQueue, submission: Submission) -> None:
        seen.extend(map(size, submission.payloads.values()))
        submit(self, submission)

    def watched_begin(self: ServerQueue, worker: int) -> Any:
        newest = begin(self, worker)
        seen.extend(map(size, (newest or {}).values()))
        return newest

    monkeypatch.setattr(ServerQueue, "submit", watched_submit)
    monkeypatch.setattr(ServerQueue, "begin", watched_begin)
    outcome = in_threads("central", OneUpdate(), sync="async", iterations=6)
    assert said(outcome) == (len(seen), sum(seen))


def test_one_asynchronous_worker_begins_without_an_answer() -> None:
    outcome = in_threads("central", OneUpdate(), sync="async", workers=1, iterations=6)
    assert outcome.messages == 6 + 5


def test_a_plan_that_reckons_wrongly_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = said(in_threads())
    reckoned = collectives.transfers_in
    monkeypatch.setattr(collectives, "parcel_bytes", lambda *_: 1)
    monkeypatch.setattr(
        collectives, "transfers_in", lambda loop: [(t, 7 * n) for t, n in reckoned(loop)]
    )
    assert said(in_threads()) == right


def test_what_is_not_sent_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that sends everything twice, to somebody who takes every other message."""
    right = said(in_threads(iterations=3))
    put, get = QueueChannel.put, QueueChannel.get

    def twice(self: QueueChannel, payload: Payload) -> None:
        put(self, payload)
        put(self, payload)

    def every_other(self: QueueChannel, what: str) -> Payload:
        get(self, what)
        return get(self, what)

    monkeypatch.setattr(QueueChannel, "put", twice)
    monkeypatch.setattr(QueueChannel, "get", every_other)
    assert said(in_threads(iterations=3)) == (2 * right[0], 2 * right[1])
