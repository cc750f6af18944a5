"""Asynchronous runs: a server that handles messages as they come, and a bound on their age."""

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import fragflow as ff
from fragflow.errors import PolicyError, RunError
from fragflow.policies import Asynchronous, named_policy, synchronisation
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.asynchrony.ledger import Ledger
from fragflow.runtime.asynchrony.server_queue import ServerQueue, Submission
from graph.toy import Drift, OneUpdate, State, Toy
from runtime.test_host import HostDrift
from runtime.test_lag import StopAfter

pytestmark = pytest.mark.quick
ITERATIONS = 10


def train(
    algorithm: Any, policy: str, sync: str = "async", workers: int = 1, **more: Any
) -> Outcome:
    experiment = Experiment(
        algorithm=algorithm,
        environment=more.pop("environment", None) or Drift(),
        num_envs=8,
        total_steps=more.pop("iterations", ITERATIONS) * 8 * 4,
        seed=7,
    )
    chosen = replace(named_policy(policy), synchronisation=synchronisation(sync))
    return run(experiment, chosen, workers=workers, **more)


@given(
    workers=st.integers(1, 5),
    ahead=st.integers(0, 2),
    extra=st.integers(0, 6),
    seed=st.integers(0, 2**16),
)
def test_no_message_is_ever_too_late_and_the_server_never_waits_for_itself(
    workers: int, ahead: int, extra: int, seed: int
) -> None:
    """Workers of very different speeds, in any order of events."""
    rng = random.Random(seed)
    bound = workers * (1 + ahead) - 1 + extra
    ledger = Ledger(bound=bound)
    waiting: list[int] = []
    is_busy = [False] * workers
    speeds = [rng.choice([1, 1, 1, 20]) for _ in range(workers)]
    for _ in range(200):
        can_begin = [w for w in range(workers) if not is_busy[w] and waiting.count(w) <= ahead]
        for w in can_begin:
            ledger = ledger.begin(w)
            is_busy[w] = True
        chosen = ledger.choose(waiting)
        busy = [w for w in range(workers) if is_busy[w]]
        assert busy or chosen is not None, "everyone waits"
        if chosen is not None and (not busy or rng.random() < 0.5):
            ledger, lag = ledger.handle(chosen)
            assert 0 <= lag <= bound
            waiting.remove(chosen)
        elif busy:
            done = rng.choices(busy, [1 / speeds[w] for w in busy])[0]
            is_busy[done] = False
            waiting.append(done)


def test_one_worker_that_waits_for_its_answer_is_lockstep() -> None:
    """With central, a single worker's gradients are always of the newest parameters."""
    alone = train(OneUpdate(), "central", "async")
    lockstep = train(OneUpdate(), "central", "lockstep")
    np.testing.assert_array_equal(alone.state.params["w"], lockstep.state.params["w"])
    np.testing.assert_array_equal(alone.state.obs, lockstep.state.obs)
    assert [r.metrics["lag_max"] for r in alone.rows] == [0.0] * ITERATIONS
    assert [r.return_sum for r in alone.rows] == [r.return_sum for r in lockstep.rows]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    ("policy", "algorithm"), [("central", OneUpdate()), ("single-learner-coarse", Toy())]
)
def test_lag_is_measured_and_bounded(policy: str, algorithm: Any, workers: int) -> None:
    chosen = named_policy(policy)
    least = workers * (1 + chosen.ahead) - 1
    outcome = train(algorithm, policy, f"async={least}", workers)
    assert len(outcome.rows) == ITERATIONS
    assert outcome.env_steps == ITERATIONS * 8 * 4
    assert max(row.metrics["lag_max"] for row in outcome.rows) <= least
    assert sum(row.metrics["lag"] for row in outcome.rows) > 0
    # A submission for each iteration, and an answer, but for those that begin before there is any.
    unanswered = 2 * ITERATIONS * workers - outcome.messages
    assert 1 <= unanswered <= workers * (1 + chosen.ahead)
    assert outcome.state.obs.shape == (8, 3)
    assert outcome.start.equality.startswith("different: messages are handled as they come")


def test_results_are_there_when_a_letter_counts_as_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ServerQueue.answer

    def slow_answer(self: ServerQueue, submission: Submission, payloads: Any) -> Any:
        found = answer(self, submission, payloads)
        time.sleep(0.1)  # others go on meanwhile
        return found

    monkeypatch.setattr(ServerQueue, "answer", slow_answer)
    assert len(train(OneUpdate(), "central", iterations=3).rows) == 3


def test_the_server_keeps_rows_by_sender() -> None:
    @jax.tree_util.register_pytree_node_class
    @dataclass(frozen=True)
    class Both:
        inner: State
        memory: jax.Array

        @property
        def params(self) -> Any:
            return self.inner.params

        def tree_flatten(self) -> Any:
            return (self.inner, self.memory), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    @dataclass(frozen=True)
    class Remembering(Toy):
        def init(self, env: ff.Environments, key: jax.Array) -> Any:
            inner = super().init(env, key)
            return Both(inner, jnp.zeros_like(inner.obs[:, 0]))

        def step(self, env: ff.Environments, state: Any, clock: ff.Clock) -> Any:
            inner, metrics = super().step(env, state.inner, clock)
            return Both(inner, self.note(state.memory, inner.obs)), metrics

        @ff.component("learner.note")
        def note(self, memory: jax.Array, obs: jax.Array) -> jax.Array:
            return memory + jnp.where(jnp.isfinite(obs[:, 0]), 1.0, 0.0)

    outcome = train(Remembering(), "single-learner-coarse", "async", 4)
    np.testing.assert_array_equal(outcome.state.memory, np.full(8, ITERATIONS))


def test_environments_on_the_host_too() -> None:
    outcome = train(Toy(), "single-learner-coarse", "async", 2, environment=HostDrift())
    assert len(outcome.rows) == ITERATIONS
    assert outcome.episodes > 0


def test_stopped_early_everything_begun_is_finished() -> None:
    observer = StopAfter(2)
    outcome = train(Toy(), "single-learner-coarse", "async", 2, iterations=4000, observer=observer)
    assert 2 <= len(outcome.rows) < 4000
    assert observer.seen == list(range(len(outcome.rows)))


@pytest.mark.parametrize(
    ("policy", "algorithm", "said"),
    [
        ("gpu-only", Toy(), "exactly one fragment with a single replica"),
        ("multi-learner", Toy(), "exactly one fragment with a single replica"),
        ("single-learner-fine", Toy(), "4 times per iteration"),
        ("central", Toy(), "4 times per iteration"),
    ],
)
def test_what_is_no_handler_is_refused(policy: str, algorithm: Any, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        train(algorithm, policy, "async", 2)


def test_a_bound_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(PolicyError, match="use async=7 or more"):
        train(Toy(), "single-learner-coarse", "async=6", 4)
    assert Asynchronous().bound_for(4, 1) == 16


def test_environments_must_divide() -> None:
    with pytest.raises(PolicyError, match="multiple of 3"):
        train(Toy(), "single-learner-coarse", "async", 3)


def test_a_failure_is_named_and_ends_the_run() -> None:
    def fail(rewards: jax.Array) -> jax.Array:
        def refuse(x: np.ndarray) -> np.ndarray:
            raise ValueError("no such luck")

        return jax.pure_callback(refuse, rewards.mean(), rewards).astype(rewards.dtype)

    with pytest.raises(RunError, match=r"(?s)no such luck.*fragment (environment|learner)"):
        train(Toy(report=fail), "single-learner-coarse", "async", 2)


def test_a_worker_that_hangs_is_noticed() -> None:
    def hang(rewards: jax.Array) -> jax.Array:
        def sleep(x: np.ndarray) -> np.ndarray:
            time.sleep(4.0)
            return np.asarray(np.mean(x))

        return jax.pure_callback(sleep, rewards.mean(), rewards).astype(rewards.dtype)

    began = time.monotonic()
    with pytest.raises(RunError, match="no message was handled for 1 seconds"):
        train(Toy(report=hang), "single-learner-coarse", "async", 2, stall_timeout_seconds=1.0)
    assert time.monotonic() - began < 60.0
