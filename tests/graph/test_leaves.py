"""A state and metrics are arrays, and the same ones for any number of environments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fragflow as ff
from fragflow.errors import PolicyError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment
from graph.toy import Drift


class State(NamedTuple):
    params: jax.Array
    extra: Any
    env: Any
    obs: jax.Array


@dataclass(frozen=True)
class Keeping(ff.Algorithm):
    """Keeps something besides its parameters, and reports something."""

    extra: Callable[[ff.Environments, jax.Array], Any] = lambda env, key: 0.0
    metrics: Callable[[ff.Environments, ff.Clock], dict[str, Any]] = lambda env, clock: {}

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.zeros(3), self.extra(env, key), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        env_state, t = env.step(state.env, self.act(state.obs))
        params = state.params + ff.all_mean(jnp.mean(t.obs, axis=0))
        return State(params, state.extra, env_state, t.obs), self.metrics(env, clock)

    @ff.component("actor")
    def act(self, obs: jax.Array) -> jax.Array:
        return jnp.zeros(obs.shape[0], jnp.int32)


def refusal(algorithm: Keeping, workers: int) -> str:
    source = tracer(algorithm, Drift(), 8)
    with pytest.raises(TraceError) as raised:
        cut(source, POLICIES["gpu-only"], Deployment(workers=workers))
    return str(raised.value)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "algorithm",
    [
        Keeping(extra=lambda env, key: env.keys(key)),
        Keeping(extra=lambda env, key: {"one": key}),
        Keeping(metrics=lambda env, clock: {"key": clock.key}),
    ],
    ids=["keys", "one key", "metric"],
)
def test_random_keys_are_not_kept(algorithm: Keeping, workers: int) -> None:
    message = refusal(algorithm, workers)
    assert "is a random key: draw from clock.key" in message
    assert "test_leaves.py" in message


@pytest.mark.parametrize(
    "algorithm",
    [
        Keeping(extra=lambda env, key: [jnp.float32(0.0) for _ in range(env.num_envs)]),
        Keeping(metrics=lambda env, clock: {f"of {i}": 1.0 for i in range(env.num_envs)}),
    ],
    ids=["state", "metrics"],
)
def test_an_array_for_each_environment_is_refused(algorithm: Keeping) -> None:
    message = refusal(algorithm, 2)
    assert "keep one array with a row for each environment" in message
    assert "test_leaves.py" in message


@pytest.mark.parametrize("name", [3, None, "Learner", "a+b"])
def test_names_of_components_are_words(name: Any) -> None:
    with pytest.raises(TraceError, match="expected dotted lower-case words"):
        ff.component(name)


@dataclass(frozen=True)
class Sending(Keeping):
    """Its actor hands something of another type to its learner."""

    dtype: Any = jnp.int8

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        env_state, t = env.step(state.env, self.act(state.obs))
        params = self.learn(state.params, self.told(state.obs))
        return State(params, state.extra, env_state, t.obs), {}

    @ff.component("actor.tell")
    def told(self, obs: jax.Array) -> jax.Array:
        return (obs > 0).astype(self.dtype)

    @ff.component("learner")
    def learn(self, params: jax.Array, told: jax.Array) -> jax.Array:
        return params + ff.all_mean(jnp.mean(told.astype(jnp.float32), axis=0))


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.uint2, jnp.int2, jnp.float4_e2m1fn])
def test_numbers_that_share_a_byte_are_not_sent(dtype: Any) -> None:
    coarse, two = POLICIES["single-learner-coarse"], Deployment(workers=2)
    with pytest.raises(PolicyError, match="several of which share a byte"):
        cut(tracer(Sending(dtype=dtype), Drift(), 8), coarse, two)
    cut(tracer(Sending(), Drift(), 8), coarse, two)
