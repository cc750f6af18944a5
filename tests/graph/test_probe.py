"""Replicas are tried against the undivided program: right ones pass, wrong ones are caught."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

import fragflow as ff
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import ReplicaError
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG, Loop, Receive, Send
from fragflow.graph.probe.double_precision import DoubleContext, evaluate, in_double, wide
from fragflow.graph.probe.graph_hash import fingerprint
from fragflow.graph.probe.probe import Verdict, arranged, is_divided, probe
from fragflow.graph.probe.relation_to_whole import distance, relation
from fragflow.graph.probe.stand_in_environment import host_answer
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import Deployment, named_policy
from graph.toy import Drift, Toy
from graph.wrong import LATER, WRONG, Small


def graph(
    algorithm: ff.Algorithm,
    policy: str = "gpu-only",
    environment: Any = None,
    *,
    workers: int = 2,
    learners: int = 1,
    num_envs: int = 8,
) -> tuple[FDG, Tracer]:
    source = tracer(algorithm, environment or Drift(), num_envs)
    deployment = Deployment(workers=workers, learners=learners)
    return cut(source, named_policy(policy), deployment), source


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica check accepts everything."""
    monkeypatch.setattr("fragflow.graph.check.check_replicas", lambda *_: None)


@pytest.mark.parametrize(
    ("policy", "workers", "learners"),
    [
        ("gpu-only", 2, 1),
        ("single-learner-coarse", 2, 1),
        ("multi-learner", 2, 1),
        ("environments", 4, 2),
        ("central", 2, 1),
        pytest.param("single-learner-fine", 4, 1, marks=pytest.mark.slow),
        pytest.param("split-device", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_what_is_right_passes(policy: str, workers: int, learners: int) -> None:
    verdict = probe(*graph(Toy(), policy, workers=workers, learners=learners))
    assert verdict.states == 9
    assert verdict.worst < 1e-13


CASES = {
    "ppo": (PPO(rollout_length=4, epochs=1, minibatches=2, hidden=(8,)), "CartPole-v1"),
    "dqn": (DQN(batch_size=16, buffer_size=128, hidden=(8,)), "CartPole-v1"),
}


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        ("ppo", "single-learner-coarse"),
        pytest.param("ppo", "multi-learner", marks=pytest.mark.slow),
        ("dqn", "single-learner-coarse"),
        pytest.param("dqn", "gpu-only", marks=pytest.mark.slow),
    ],
)
def test_algorithms_pass(algorithm: str, policy: str) -> None:
    made, environment = CASES[algorithm]
    verdict = probe(*graph(made, policy, make_environment(environment)))
    assert verdict.worst < 1e-12


def test_learners_with_some_of_the_agents_pass() -> None:
    game = make_environment("Tag", agents=6, taggers=2, neighbours=3)
    algorithm = IPPO(rollout_length=4, epochs=1, minibatches=1, hidden=(8,))
    fdg, source = graph(algorithm, "agents", game, workers=2, learners=2)
    assert probe(fdg, source).worst < 1e-12


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_caught(name: str) -> None:
    with pytest.raises(ReplicaError, match=r"params is .* with replicas and .* without") as error:
        probe(*graph(Small(direction=WRONG[name])))
    if name not in LATER:
        code: Any = WRONG[name].__code__
        inner = [c for c in code.co_consts if isinstance(c, type(code))]
        lines = {int(n) for c in (code, *inner) for *_, n in c.co_lines() if n is not None}
        assert any(f"wrong.py:{line}" in str(error.value) for line in lines), str(error.value)
    assert jnp.zeros(1).dtype == jnp.float32


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_metric_is_caught() -> None:
    with pytest.raises(ReplicaError, match="the metric report is"):
        probe(*graph(Small(report=lambda x, n, key: jnp.max(x))))


@pytest.mark.usefixtures("unchecked")
def test_some_mistakes_show_in_general_position_only() -> None:
    hidden = Small(direction=WRONG["clipped too early"], start=0.0)
    with pytest.raises(ReplicaError, match="from a state in general position"):
        probe(*graph(hidden))


def test_what_crosses_is_tried_too() -> None:
    """Gradients that arrive as a sum, where their mean is announced."""

    def summed(node: Any) -> Any:
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(summed, node.body)))
        if not isinstance(node, Send | Receive):
            return node
        parcels = [
            replace(p, collective=p.collective.replace("reduce-mean", "reduce-sum"))
            for p in node.transfer.parcels
        ]
        return replace(node, transfer=replace(node.transfer, parcels=tuple(parcels)))

    fdg, source = graph(Toy(), "central")
    changed = {name: replace(f, loop=summed(f.loop)) for name, f in fdg.fragments.items()}
    assert changed != fdg.fragments
    with pytest.raises(ReplicaError, match=r"params\.w is .*toy\.py"):
        probe(replace(fdg, fragments=changed), source)


def test_one_replica_has_nothing_to_try() -> None:
    assert not is_divided(graph(Small(), workers=1)[0])
    assert is_divided(graph(Small())[0])


def test_it_is_tried_small_where_that_is_possible() -> None:
    fdg, source = graph(Small(), workers=8, num_envs=512)
    trial = arranged(fdg, source)
    assert (trial.num_envs, trial.actors[0].replicas) == (21, 3)  # there are axes of 3 and of 5

    @dataclass(frozen=True)
    class Choosy(Small):
        def init(self, env: ff.Environments, key: jax.Array) -> Any:
            if env.num_envs % 8:
                raise ValueError("by eights")
            return super().init(env, key)

    fdg, source = graph(Choosy(), num_envs=16)
    assert arranged(fdg, source).num_envs == 16
    assert probe(fdg, source).worst < 1e-13


def test_a_run_s_first_state_will_do() -> None:
    fdg, source = graph(Small(), num_envs=16)
    closed = source.init_at(source.extent)
    key = jax.random.key_data(jax.random.key(3))
    first = jax.jit(core.jaxpr_as_fun(closed))(key, jnp.arange(16, dtype=jnp.int32))
    assert probe(fdg, source, first=first).worst < 1e-13


class Absent:
    """An environment on the host that cannot be opened."""

    name = "absent"
    observation = ff.Box(shape=(3,), low=-2.0, high=3.0)
    action = ff.Discrete(n=2)
    has_mask = False
    draws_apart = True

    def open(self, ids: Any) -> Any:
        raise AssertionError(ids)


def test_environments_on_the_host_are_played_by_a_stand_in() -> None:
    fdg, source = graph(Toy(), "single-learner-coarse", Absent())
    assert probe(fdg, source).worst < 1e-13


def test_environments_in_jax_can_be_played_too() -> None:
    fdg, source = graph(Small())
    assert probe(fdg, source, environments="stand-in").worst < 1e-13


class WithNothing(Drift):
    """Its state has a leaf without entries, as physics have for contacts of what never touches."""

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place, obs = super().reset(key)
        return (place, jnp.zeros((0, 3))), obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        step = super().step(state[0], action, key)
        return step._replace(state=(step.state, state[1]))


def test_a_stand_in_answers_where_a_state_has_leaves_without_entries() -> None:
    fdg, source = graph(Toy(), environment=WithNothing())
    assert probe(fdg, source, environments="stand-in").worst < 1e-13


def test_a_stand_in_answers_row_by_row_within_its_spaces() -> None:
    space = ff.Box(shape=(3,), low=-2.0, high=3.0)
    scalar = jax.ShapeDtypeStruct((400,), np.float32)
    flag = jax.ShapeDtypeStruct((400,), np.bool_)
    seen = jax.ShapeDtypeStruct((400, 3), np.float32)
    record = jax.ShapeDtypeStruct((400, 5), np.float32)
    ticket = jax.ShapeDtypeStruct((400,), np.int32)
    types = [ticket, record, seen, seen, scalar, flag, flag]
    rng = np.random.default_rng(0)
    args = [np.zeros(400, np.int32), np.zeros((400, 5)), rng.integers(0, 2, 400).astype(np.int32)]
    ids = np.arange(400, dtype=np.int32)
    with in_double():
        whole = [np.asarray(x) for x in host_answer("step", args, ids, types, space)]
        some = [a[100:200] for a in args]
        part = [np.asarray(x) for x in host_answer("step", some, ids[100:200], types, space)]
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[100:200], b)
    _, _, obs, _, reward, terminated, truncated = whole
    assert obs.min() >= -2
    assert obs.max() <= 3
    assert len(np.unique(obs[:, 0])) == len(np.unique(reward)) == 400
    assert 0.1 < (terminated | truncated).mean() < 0.3
    assert not (terminated & truncated).any()


def test_numbers_are_compared_as_they_should_be() -> None:
    nan, inf = math.nan, math.inf
    assert distance(np.array([1.0, nan]), np.array([1.0, nan])) == 0
    assert distance(np.array([1.0, nan]), np.array([nan, 1.0])) == inf
    assert distance(np.array([1.0, inf]), np.array([1.0, -inf])) == inf
    assert distance(np.array([1, 2]), np.array([1, 3])) == inf
    assert distance(np.array([1e-16]), np.array([-1e-16])) < 1e-12  # what cancelled out
    assert distance(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 2e-9])) == pytest.approx(1e-9)
    parts = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert relation(np.array([4.0, 7.0]), parts) == "sum"
    assert relation(np.array([2.0, 3.5]), parts) == "mean"
    assert relation(np.array([3.0, 5.0]), parts) == "maximum"
    assert relation(np.array([1.0, 2.0, 3.0, 5.0]), parts) == "slices"
    assert relation(np.array([1.0, 3.0, 2.0, 5.0]), parts) == "slices"
    assert relation(np.array([1.0, 2.5]), parts) is None


FUNCTIONS = {
    "a loop": lambda x: lax.scan(lambda c, y: (c * 0.9 + y, c.sum()), x[0], x),
    "a while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
    "whiles in rows": jax.vmap(lambda x: lax.while_loop(lambda v: v.sum() < 5, lambda v: v + 1, x)),
    "a branch": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "scatters": lambda x: (x.at[1].add(2.0), x.at[0, 1].set(7.0), x.at[:, 0].max(0.5)),
    "a gradient": jax.grad(lambda x: jnp.sum(jax.nn.softplus(x) @ x.T)),
    "a solution": lambda x: jnp.linalg.solve(x.T @ x + jnp.eye(4), x[0]),
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32),
    "narrow types": lambda x: jnp.mean(x.astype(jnp.bfloat16), 0, dtype=jnp.float32),
    "complex": lambda x: jnp.abs(jnp.fft.fft(x)),
    "a reduction": lambda x: lax.reduce(x, np.float32(1), lax.mul, (0,)),
    "whole numbers": lambda x: jnp.argsort(x, 1).astype(jnp.int8),
    "a print": lambda x: (jax.debug.print("{}", x), x)[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_are_evaluated_in_double_precision(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    closed = jax.make_jaxpr(FUNCTIONS[name])(x)
    expected = jax.tree.leaves(FUNCTIONS[name](jnp.asarray(x)))
    with in_double():
        given = [
            np.asarray(r)
            for r in jax.jit(lambda x: evaluate(closed, [x], DoubleContext()))(wide(x))
        ]
    for a, b in zip(given, expected, strict=True):
        assert a.dtype == (np.float64 if b.dtype.kind == "f" else b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-2 if name == "narrow types" else 1e-4, atol=1e-5)
    assert jnp.zeros(1).dtype == jnp.float32


def test_a_fingerprint_is_of_what_is_computed_and_how_it_is_cut() -> None:
    weights = np.arange(3.0, dtype=np.float32)

    def by(values: np.ndarray, factor: float = 1.0) -> ff.Algorithm:
        return Small(direction=lambda x, n, key: ff.all_mean(jnp.mean(x, 0) * values) * factor)

    first = fingerprint(graph(by(weights))[0])
    assert first == fingerprint(graph(by(weights.copy()))[0])
    others = [
        fingerprint(graph(by(weights + 1))[0]),
        fingerprint(graph(by(weights, 2.0))[0]),
        fingerprint(graph(by(weights), workers=4)[0]),
        fingerprint(graph(by(weights), num_envs=16)[0]),
        fingerprint(graph(by(weights), "single-learner-coarse")[0]),
    ]
    assert len({first, *others}) == 6

    def call(x: jax.Array, n: int, key: jax.Array) -> Any:
        rows = jax.pure_callback(np.asarray, x, x, vmap_method="expand_dims")
        return ff.all_mean(jnp.mean(rows, 0))

    fdg, _ = graph(Small(direction=call), "single-learner-coarse")
    assert fingerprint(fdg) is None


def test_a_verdict_says_what_was_tried() -> None:
    verdict = Verdict(states=4, leaves=41, worst=2.4e-16)
    assert str(verdict) == "4 states, 41 leaves, worst 2e-16"
    assert str(replace(verdict, worst=0.0)) == "4 states, 41 leaves, worst 0"
