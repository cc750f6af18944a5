"""A loop around one expression: tests ask whether two replicas would compute it rightly."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import fragflow as ff
from fragflow.errors import ReplicaError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment
from graph.toy import Drift

NUM_ENVS = 8
TIME = 4


class State(NamedTuple):
    params: jax.Array
    env: Any
    obs: jax.Array


class Told(NamedTuple):
    """What an expression is given."""

    env: ff.Environments
    n: int
    x: jax.Array
    """`[TIME, N, 3]`: observations"""
    m: jax.Array
    """one number that all replicas have"""
    weights: jax.Array
    """`[24]`, the same on all replicas"""
    key: jax.Array


Expression = Callable[[Told], Any]


@dataclass(frozen=True)
class Telling(ff.Algorithm):
    """Moves its parameters by what an expression says of a rollout."""

    expression: Expression
    place: Literal["glue", "component"] = "component"

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.full(3, 0.1), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def interact(carry: Any, _: None) -> Any:
            action = self.act(state.params, carry[1])
            env_state, t = env.step(carry[0], action)
            return (env_state, t.obs), t.obs

        carry, x = lax.scan(interact, (state.env, state.obs), None, length=TIME)
        if self.place == "glue":
            told = self.say(env, x, clock.key)
            return State(self.update(state.params, told), *carry), {}
        return State(self.learn(env, state.params, x, clock.key), *carry), {}

    def say(self, env: ff.Environments, x: jax.Array, key: jax.Array) -> jax.Array:
        m = ff.all_mean(jnp.mean(x))
        weights = jnp.cos(jnp.arange(24.0) + m)
        result = self.expression(Told(env, env.num_envs, x, m, weights, key))
        leaves = [jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(result)]
        return jnp.sum(jnp.stack(leaves))

    @ff.component("actor")
    def act(self, w: jax.Array, obs: jax.Array) -> jax.Array:
        return (obs @ w > 0).astype(jnp.int32)

    @ff.component("learner.update")
    def update(self, w: jax.Array, told: jax.Array) -> jax.Array:
        return w + 0.01 * jnp.arcsinh(told)  # which large numbers do not saturate

    @ff.component("learner.tell")
    def learn(self, env: ff.Environments, w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        return w + 0.01 * jnp.arcsinh(self.say(env, x, key))


def refusal(
    expression: Expression,
    place: Literal["glue", "component"] = "component",
    policy: str = "gpu-only",
    workers: int = 2,
    num_envs: int = NUM_ENVS,
    environment: Any = None,
) -> str | None:
    """Why the cut is refused, if it is."""
    source = tracer(Telling(expression, place), environment or Drift(), num_envs)
    try:
        cut(source, POLICIES[policy], Deployment(workers=workers, learners=1))
    except (ReplicaError, TraceError) as error:
        return str(error)
    return None


def named_in(message: str) -> set[tuple[str, int]]:
    """The files that a message names, and their lines; 0 where it names none."""
    found = re.findall(r"([\w./-]+\.py)\b(?::(\d+))?", message)
    return {(Path(file).name, int(line or 0)) for file, line in found}


def files_named_in(message: str) -> set[str]:
    return {file for file, _ in named_in(message)}


def lines_of(function: Callable[..., Any]) -> set[int]:
    """The lines of a function, with those of functions in it."""
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if hasattr(c, "co_positions")]
    return {line for c in codes for line, *_ in c.co_positions() if line}
