"""Kernels that are computed in several ways: one meaning, who picks, and what a run says of it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow._jax import bind, kernels_in, with_kernels
from fragflow.algorithms.a3c import A2C
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ppo import PPO
from fragflow.api.kernel import KERNELS, kernel
from fragflow.environments import make_environment
from fragflow.errors import ConfigError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.ops.kernels import native
from fragflow.policies import Deployment
from fragflow.policies.named import named_policy
from fragflow.run import Experiment, Outcome, run
from fragflow.runtime.planning.plan import make_plan
from fragflow.runtime.programs.implementations import (
    Way,
    as_compiled,
    in_words,
    kernel_programs,
    pick,
)
from fragflow.runtime.programs.kernels_in_program import read_off
from graph.toy import Drift
from graph.wrong import Small

needs_cpp = pytest.mark.skipif(native.absent() is not None, reason=f"cpp: {native.absent()}")

SHAPES = [(1, 1), (2, 3), (128, 16), (33, 130), (16, 4, 5), (7,)]


def rewards(shape: tuple[int, ...], seed: int = 0) -> tuple[jax.Array, jax.Array]:
    a, b = jax.random.split(jax.random.key(seed))
    is_last = jax.random.uniform(b, shape) < 0.1
    return jax.random.normal(a, shape), jnp.where(is_last, 0.0, 0.97)


def by(implementation: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function` compiled with another implementation of the kernel in it."""
    eqn = jax.make_jaxpr(jax.jit(function))(*args).jaxpr.eqns[0]
    other = kernel_programs({"discounted_sums": Way(implementation)}, "cpu")
    return jax.jit(lambda *leaves: bind(with_kernels(eqn, other), leaves))(*args)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("implementation", [pytest.param("cpp", marks=needs_cpp), "pallas"])
def test_every_implementation_is_the_reference(implementation: str, shape: tuple[int, ...]) -> None:
    args = rewards(shape)
    expected = jax.jit(KERNELS["discounted_sums"].reference)(*args)
    (got,) = by(implementation, ops.discounted_sums, *args)
    if implementation == "cpp":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@needs_cpp
def test_gae_and_vtrace_are_computed_by_it() -> None:
    reward, _ = rewards((64, 8))
    value, next_value = rewards((64, 8), 1)[0], rewards((64, 8), 2)[0]
    ended = rewards((64, 8), 3)[1] == 0.0

    def gae(reward: Any, value: Any, next_value: Any, ended: Any) -> Any:
        return ops.gae(
            reward=reward,
            value=value,
            next_value=next_value,
            terminated=ended,
            done=ended,
            gamma=0.99,
            gae_lambda=0.95,
        )

    def vtrace(reward: Any, value: Any, next_value: Any, ended: Any) -> Any:
        return ops.vtrace(
            log_ratio=value - next_value,
            reward=reward,
            value=value,
            next_value=next_value,
            terminated=ended,
            done=ended,
            gamma=0.99,
        )

    for function in (gae, vtrace):
        args = (reward, value, next_value, ended)
        eqns = jax.make_jaxpr(function)(*args).jaxpr.eqns
        assert [name for eqn in eqns for name, _ in kernels_in(eqn)] == ["discounted_sums"]
        expected = jax.tree.leaves(jax.jit(function)(*args))
        for got, want in zip(by("cpp", function, *args), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@needs_cpp
def test_what_is_mapped_or_differentiated_stays_the_reference() -> None:
    reward, discount = rewards((8, 3, 2))

    def mapped(reward: Any, discount: Any) -> Any:
        return jax.vmap(ops.discounted_sums, in_axes=1, out_axes=1)(reward, discount)

    (got,) = by("cpp", mapped, reward, discount)
    expected = ops.discounted_sums(reward, discount)
    np.testing.assert_allclose(got, expected, rtol=1e-6)

    gradient = jax.grad(lambda r, d: jnp.sum(ops.discounted_sums(r, d) ** 2))
    (got,) = by("cpp", gradient, reward, discount)
    np.testing.assert_allclose(got, gradient(reward, discount), rtol=1e-5)


@needs_cpp
def test_the_compiled_program_calls_it() -> None:
    eqn = jax.make_jaxpr(ops.discounted_sums)(*rewards((4, 4))).jaxpr.eqns[0]
    other = kernel_programs({"discounted_sums": Way("cpp")}, "cpu")
    assert "ffi_call" in str(with_kernels(eqn, other))
    assert "ffi_call" not in str(with_kernels(eqn, kernel_programs({}, "cpu")))


def test_a_kernel_of_your_own() -> None:
    @kernel("tests.double")
    def double(x: jax.Array) -> jax.Array:
        return x + x

    double.implementation("twice")(lambda x, platform: 2.0 * x)
    try:
        assert double(jnp.float32(3)) == 6.0
        closed = jax.make_jaxpr(double)(jnp.float32(3))
        other = kernel_programs({"tests.double": Way("twice")}, "cpu")
        assert "mul" in str(with_kernels(closed.jaxpr.eqns[0], other))
        with pytest.raises(TraceError, match="already one of"):
            kernel("discounted_sums")(double.reference)
        with pytest.raises(TraceError, match="kernel name"):
            kernel("Not A Name")
    finally:
        del KERNELS["tests.double"]


@pytest.mark.parametrize(
    ("twice", "message"),
    [
        (lambda x, platform: x + jnp.roll(x, 1, 0), "of the largest number from the kernel's ref"),
        (lambda x, platform: 2.0 * x[:1], "has results of other shapes"),
    ],
)
def test_an_implementation_of_your_own_is_compared_with_its_reference(twice, message) -> None:
    """The replica check reads the reference alone."""

    @kernel("tests.double")
    def double(x: jax.Array) -> jax.Array:
        return x + x

    doubling = Small(direction=lambda x, n, key: ff.all_mean(jnp.mean(double(x), 0)))
    experiment = Experiment(algorithm=doubling, environment=Drift(), num_envs=8, total_steps=16)

    def run_by(call: Any) -> Outcome:
        double.implementation("twice", picked_on=["cpu"])(call)
        return run(experiment, named_policy("gpu-only"), workers=2)

    try:
        assert run_by(lambda x, platform: 2.0 * x).start.implementations == {
            "tests.double": "twice"
        }
        with pytest.raises(ConfigError, match=message):
            run_by(twice)
    finally:
        del KERNELS["tests.double"]


@functools.cache
def trained(
    env: str,
    policy: str = "single-learner-coarse",
    workers: int = 1,
    asked: tuple[tuple[str, str], ...] = (),
    algorithm: ff.Algorithm | None = None,
) -> Outcome:
    experiment = Experiment(
        algorithm=algorithm or PPO(rollout_length=16, epochs=2, hidden=(32, 32)),
        environment=make_environment(env),
        num_envs=8,
        total_steps=6 * 8 * 16,
        seed=1,
    )
    return run(experiment, named_policy(policy), workers=workers, implementations=dict(asked))


@needs_cpp
@pytest.mark.parametrize(
    ("policy", "workers"),
    [
        ("single-learner-coarse", 2),
        pytest.param("gpu-only", 1, marks=pytest.mark.slow),
        pytest.param("gpu-only", 2, marks=pytest.mark.slow),
        pytest.param("multi-learner", 2, marks=pytest.mark.slow),
    ],
)
def test_it_is_picked_and_changes_no_bit(policy: str, workers: int) -> None:
    picked = trained("CartPole-v1", policy, workers)
    plain = trained("CartPole-v1", policy, workers, (("discounted_sums", "xla"),))
    assert picked.start.implementations == {"discounted_sums": "cpp"}
    assert plain.start.implementations == {"discounted_sums": "xla"}
    assert picked.start.equality == plain.start.equality
    jax.tree.map(np.testing.assert_array_equal, picked.state, plain.state)


def test_pallas_is_interpreted_on_a_cpu() -> None:
    plain = trained("CartPole-v1", "gpu-only", 1, (("discounted_sums", "xla"),))
    pallas = trained("CartPole-v1", "gpu-only", 1, (("discounted_sums", "pallas"),))
    assert pallas.start.equality == "rounding: discounted_sums=pallas"
    for a, b in zip(jax.tree.leaves(pallas.state), jax.tree.leaves(plain.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "env", "policy", "message"),
    [
        (("discounted_sum", "cpp"), "CartPole-v1", "gpu-only", "Did you mean 'discounted_sums'"),
        (
            ("discounted_sums", "cuda"),
            "CartPole-v1",
            "gpu-only",
            "expected one of xla, cpp, pallas",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    asked: tuple[str, str], env: str, policy: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(env, policy, 1, (asked,))


def test_absent_implementations_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", native.LIBRARY.with_name("missing.so"))
    native._load.cache_clear()
    try:
        with pytest.raises(ConfigError, match="no C\\+\\+ compiler"):
            trained("CartPole-v1", "gpu-only", 1, (("discounted_sums", "cpp"),))
        outcome = trained.__wrapped__("CartPole-v1", "gpu-only")
        said = outcome.start.implementations["discounted_sums"]
        assert said.startswith("xla (cpp is absent: it was not built")
    finally:
        native._load.cache_clear()


FOREIGN = 'custom_call_target="fragflow_discounted_sums"'


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What XLA has made of every program that is compiled meanwhile."""
    found: list[str] = []

    def keep(lowered: Any, text: str, expected: Any) -> Any:
        found.append(text)
        return read_off(lowered, text, expected)

    monkeypatch.setattr("fragflow.runtime.programs.compile.read_off", keep)
    return found


@needs_cpp
@pytest.mark.parametrize("algorithm", [PPO, A2C, IMPALA])
def test_a_run_that_names_it_calls_it(algorithm: Any, texts: list[str]) -> None:
    made = algorithm(rollout_length=4, hidden=(8,))
    for how in ("cpp", "xla"):
        texts.clear()
        asked = () if how == "cpp" else (("discounted_sums", how),)
        outcome = trained.__wrapped__("CartPole-v1", "single-learner-coarse", 2, asked, made)
        assert outcome.start.implementations == {"discounted_sums": how}
        assert any(FOREIGN in text for text in texts) == (how == "cpp")


@needs_cpp
def test_one_that_is_not_in_the_program_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: here nothing is replaced."""
    monkeypatch.setattr(
        "fragflow.runtime.programs.trace_nodes.with_kernels", lambda eqn, other: eqn
    )
    outcome = trained.__wrapped__("CartPole-v1", "gpu-only")
    assert outcome.start.implementations == {
        "discounted_sums": "xla (cpp is not in the compiled program)"
    }


def way_of(direction: Callable[..., Any], asked: dict[str, str] | None = None) -> dict[str, str]:
    fdg = cut(
        tracer(Small(direction=direction), Drift(), 8), named_policy("gpu-only"), Deployment()
    )
    return in_words(pick(make_plan(fdg), asked))


@needs_cpp
def test_why_it_does_not_fit_is_said() -> None:
    def once(x: jax.Array) -> jax.Array:
        return ff.all_mean(jnp.mean(ops.discounted_sums(x[None], x[None])[0], 0))

    def mapped(x: jax.Array) -> jax.Array:
        sums = jax.vmap(ops.discounted_sums)(x[:, None], x[:, None])
        return ff.all_mean(jnp.mean(sums[:, 0], 0))

    def half(x: jax.Array) -> jax.Array:
        return once(x.astype(jnp.float16)).astype(x.dtype)

    assert way_of(lambda x, n, key: once(x)) == {"discounted_sums": "cpp"}
    (way,) = way_of(lambda x, n, key: mapped(x)).values()
    assert way.startswith("xla (cpp did not fit: the call was mapped, differentiated or cut down")
    (way,) = way_of(lambda x, n, key: half(x)).values()
    assert way.startswith("xla (cpp did not fit: it cannot take float16[1,8")
    (way,) = way_of(lambda x, n, key: once(x) + mapped(x)).values()
    assert way.startswith("cpp (in 1 of 2 calls; it did not fit: ")
    with pytest.raises(ConfigError, match="discounted_sums=cpp: cpp did not fit: the call was"):
        way_of(lambda x, n, key: mapped(x), {"discounted_sums": "cpp"})


def test_fragments_that_compute_differently_are_told_apart() -> None:
    picks = {"a": {"k": Way("cpp")}, "b": {"k": Way("xla", "cpp did not fit: so")}}
    found = as_compiled(picks, {"a": frozenset({("k", "cpp")})})
    assert in_words(found) == {"k": "cpp in a, xla (cpp did not fit: so) in b"}
    assert in_words(as_compiled(picks, {}))["k"].startswith("xla (cpp is not in the compiled")
