"""Rollouts out of order: the first environments that answer are acted on first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.algorithms.a3c import A3C
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ppo import PPO
from fragflow.algorithms.recurrent_ppo import RecurrentPPO
from fragflow.api.host import HostStep
from fragflow.environments import make_environment
from fragflow.errors import EnvironmentFault, FragflowError
from fragflow.graph import show
from fragflow.policies import Deployment, named_policy, synchronisation
from fragflow.run import Experiment, Outcome, plan_run, run
from fragflow.runtime.drivers.codegen import render
from fragflow.runtime.planning.plan import make_plan
from graph.toy import State, Toy
from runtime.test_host import HostDrift

pytestmark = pytest.mark.quick

COARSE = "single-learner-coarse"
SMALL_PPO = PPO(rollout_length=16, epochs=1, minibatches=2, hidden=(16,))


@dataclass(frozen=True)
class Shuffled(HostDrift):
    """Answers in an order of its own: of those under way, the latest come first."""

    answers_one_by_one: bool = True
    breaks_at: int = -1

    def open_one_by_one(self, ids: Sequence[int]) -> "ShuffledBatch":
        return ShuffledBatch(self, ids)


class ShuffledBatch:
    def __init__(self, environment: Shuffled, ids: Sequence[int]):
        self._breaks_at = environment.breaks_at
        self._batches = [environment.open([i]) for i in ids]
        self._under_way: list[tuple[int, HostStep]] = []
        self.largest_gap = 0
        self._made = [0] * len(self._batches)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        firsts = [b.reset(seeds[[k]]) for k, b in enumerate(self._batches)]
        return np.concatenate(firsts)

    def step(self, action: np.ndarray) -> HostStep:
        raise AssertionError("never all together")

    def send(self, rows: np.ndarray, action: np.ndarray) -> None:
        for row, one in zip(rows.tolist(), action, strict=True):
            self._under_way.append((row, self._batches[row].step(one[None])))
            self._made[row] += 1

    def receive(self, count: int) -> tuple[np.ndarray, HostStep]:
        chosen = [self._under_way.pop() for _ in range(count)]
        rows = np.array([row for row, _ in chosen])
        step = jax.tree.map(lambda *a: np.concatenate(a), *(s for _, s in chosen))
        if self._breaks_at in self._made:
            step.reward[0] = np.nan
        return rows, step

    def close(self) -> None:
        for batch in self._batches:
            batch.close()


def train(
    algorithm: Any,
    environment: Any,
    first: int | None,
    *,
    policy: str = COARSE,
    sync: str = "lockstep",
    workers: int = 1,
    iterations: int = 3,
    num_envs: int = 8,
    **more: Any,
) -> Outcome:
    steps = getattr(algorithm, "rollout_length", 4)
    experiment = Experiment(
        algorithm=algorithm,
        environment=environment,
        num_envs=num_envs,
        total_steps=iterations * num_envs * steps,
        seed=3,
    )
    chosen = replace(named_policy(policy), synchronisation=synchronisation(sync), first=first)
    return run(experiment, chosen, workers=workers, **more)


def assert_same(a: Outcome, b: Outcome, tolerance: float) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        a.state,
        b.state,
    )


@pytest.mark.parametrize("first", [1, 3])
def test_the_order_of_answers_changes_nothing(first: int) -> None:
    """Even where environments are several steps apart, and batches do not come out even."""
    in_order = train(SMALL_PPO, HostDrift(), None)
    shuffled = train(SMALL_PPO, Shuffled(), first)
    assert_same(in_order, shuffled, 1e-5)
    assert [r.episodes for r in in_order.rows] == [r.episodes for r in shuffled.rows]
    assert [r.return_sum for r in in_order.rows] == pytest.approx(
        [r.return_sum for r in shuffled.rows]
    )


class OneByOne(Toy):
    """Acts otherwise where there is one environment: no program of that size was compared."""

    def act(self, w: jax.Array, obs: jax.Array, keys: jax.Array) -> jax.Array:
        return super().act(w, obs, keys) ^ (obs.shape[0] == 1)


@pytest.mark.probed
def test_one_at_a_time_is_tried() -> None:
    train(Toy(), Shuffled(), 1, iterations=1)
    with pytest.raises(FragflowError, match=r"one environment at a time.*test_turns\.py"):
        train(OneByOne(), Shuffled(), 1, iterations=1)


def test_bits_are_equal_where_they_must_be() -> None:
    """Deterministic blocks do not depend on the batch, so not on who comes first."""
    in_order = train(SMALL_PPO, HostDrift(), None, deterministic=True)
    shuffled = train(SMALL_PPO, Shuffled(), 3, deterministic=True)
    assert in_order.start.equality == shuffled.start.equality == "bitwise"
    jax.tree.map(np.testing.assert_array_equal, in_order.state, shuffled.state)


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        (A3C(rollout_length=5, hidden=(16,)), "central"),
        (IMPALA(rollout_length=5, hidden=(16,)), COARSE),
        pytest.param(
            RecurrentPPO(rollout_length=8, chunk_length=4, epochs=1, minibatches=2, hidden=(8,)),
            COARSE,
            marks=pytest.mark.slow,
        ),
        (DQN(learning_starts=16, batch_size=16, buffer_size=64, hidden=(8,)), COARSE),
    ],
    ids=["a3c", "impala", "recurrent-ppo", "dqn"],
)
def test_other_algorithms_and_workers(algorithm: Any, policy: str) -> None:
    in_order = train(algorithm, HostDrift(), None, policy=policy, workers=2)
    shuffled = train(algorithm, Shuffled(), 3, policy=policy, workers=2)
    assert_same(in_order, shuffled, 1e-4)


def test_with_a_lag() -> None:
    algorithm = IMPALA(rollout_length=5, hidden=(16,))
    in_order = train(algorithm, HostDrift(), None, sync="lag=1")
    shuffled = train(algorithm, Shuffled(), 3, sync="lag=1")
    assert_same(in_order, shuffled, 1e-5)


class TestEnvpool:
    @pytest.fixture(autouse=True)
    def _needs_envpool(self) -> None:
        pytest.importorskip("envpool", reason="EnvPool is an extra")

    @pytest.mark.parametrize("wrap", [{}, {"frame_stack": 2, "time_limit": 7}])
    def test_the_first_that_answer(self, wrap: dict[str, Any]) -> None:
        """A short time limit makes restarts of our own."""
        environment = ff.wrap(make_environment("envpool:CartPole-v1", threads=2), **wrap)
        together = train(SMALL_PPO, environment, None, iterations=4)
        first = train(SMALL_PPO, environment, 3, iterations=4)
        assert_same(together, first, 1e-4)
        assert [r.episodes for r in together.rows] == [r.episodes for r in first.rows]
        assert sum(r.episodes for r in first.rows) > 0

    def test_asynchronous_workers_keep_their_bound(self) -> None:
        algorithm = IMPALA(rollout_length=5, hidden=(16,))
        environment = make_environment("envpool:CartPole-v1", threads=1)
        outcome = train(
            algorithm, environment, 2, sync="async=5", workers=2, iterations=10, num_envs=8
        )
        assert len(outcome.rows) == 10
        assert max(r.metrics["lag_max"] for r in outcome.rows) <= 5
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))

    def test_show_says_so(self) -> None:
        environment = make_environment("envpool:CartPole-v1")
        experiment = Experiment(
            algorithm=SMALL_PPO, environment=environment, num_envs=8, total_steps=1
        )
        fdg = plan_run(experiment, replace(named_policy(COARSE), first=3), Deployment()).fdg
        assert "the first 3 of them that have answered" in show.render(fdg, "text")
        assert "run_out_of_order(" in render(fdg, make_plan(fdg))
        assert "the first that answer: actor, environment.step" in render(fdg, make_plan(fdg))


def test_what_cannot_be_out_of_order_is_refused() -> None:
    def refusal(algorithm: Any, environment: Any, first: int, policy: str = COARSE, **more: Any):
        with pytest.raises(FragflowError) as error:
            train(algorithm, environment, first, policy=policy, **more)
        return str(error.value)

    assert "answers for all its environments at once" in refusal(SMALL_PPO, HostDrift(), 2)
    assert "a worker has only 4" in refusal(SMALL_PPO, Shuffled(), 5, workers=2)
    assert "expected at least 1" in refusal(SMALL_PPO, Shuffled(), 0)
    fine = refusal(SMALL_PPO, Shuffled(), 2, policy="single-learner-fine")
    assert "fragments exchange messages at every step" in fine
    shared = refusal(ByStep(), Shuffled(), 2)
    assert "takes a row of at every step something that all environments share" in shared
    assert "leave out first" in refusal(SMALL_PPO, Shuffled(), 2, runtime="eager")


class ByStep(Toy):
    """Acts by the number of the step, which all environments share."""

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def interact(carry: Any, number: jax.Array) -> tuple[Any, Any]:
            env_state, obs = carry
            keys = env.keys(jax.random.fold_in(clock.key, number))
            env_state, t = env.step(env_state, self.act(state.params["w"], obs, keys))
            return (env_state, t.obs), (obs, t.reward)

        carry, (seen, rewards) = lax.scan(
            interact, (state.env_state, state.obs), jnp.arange(self.length)
        )
        w = self.learn(state.params["w"], seen, (rewards > 0).astype(jnp.int32), rewards)
        return State({**state.params, "w": w}, *carry), {}


def test_an_environment_that_breaks_is_named() -> None:
    with pytest.raises(
        EnvironmentFault, match=r"environment \d returned NaN or infinity from step"
    ):
        train(SMALL_PPO, Shuffled(breaks_at=5), 3)
