"""A small algorithm with one expression to be replaced, and expressions that replicas get wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import fragflow as ff

Expression = Callable[[jax.Array, int, jax.Array], Any]
"""(observations `[N, 3]`, N, key) -> three numbers"""


class State(NamedTuple):
    params: jax.Array
    env_state: Any
    obs: jax.Array


@dataclass(frozen=True)
class Small(ff.Algorithm):
    """One step of the environments, and parameters that move by an expression."""

    direction: Expression = lambda x, n, key: ff.all_mean(jnp.mean(x, 0))
    report: Expression = lambda x, n, key: ff.all_mean(jnp.mean(x))
    start: float = 1.0

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.full(3, self.start), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        action = self.act(state.params, state.obs)
        env_state, t = env.step(state.env_state, action)
        metrics = {"report": self.report(t.obs, env.num_envs, clock.key)}
        return State(self.update(state.params, t.obs, clock.key), env_state, t.obs), metrics

    @ff.component("actor")
    def act(self, params: jax.Array, obs: jax.Array) -> jax.Array:
        return (obs @ params > 0).astype(jnp.int32)

    @ff.component("learner.update")
    def update(self, params: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        return params * (1 + 0.1 * self.direction(x, x.shape[0], key))


def swapped(x: jax.Array, n: int, key: jax.Array) -> jax.Array:
    m = ff.all_mean(jnp.mean(x, 0))
    s, c = jnp.sin(m), jnp.cos(m)
    if n > 6:
        s, c = c, s
    return 2 * s + c


def as_long_as_any(x: jax.Array, n: int, key: jax.Array) -> jax.Array:
    v = lax.while_loop(lambda v: jnp.any(v < 1), lambda v: v + 0.3, x)
    return ff.all_mean(jnp.mean(v, 0))


def patterned(x: jax.Array, n: int, key: jax.Array) -> jax.Array:
    pattern = jnp.broadcast_to(jnp.arange(3.0), (n, 3)).reshape(-1)
    return ff.all_sum(jnp.sum(pattern * x.T.reshape(-1))) / 10


def stepwise(x: jax.Array, n: int, key: jax.Array) -> jax.Array:
    def one(total: jax.Array, k: jax.Array) -> Any:
        return total + jnp.tanh(jnp.mean(x, 0) * k), None

    return ff.all_mean(lax.scan(one, jnp.zeros(3), jnp.arange(3.0))[0])


WRONG: dict[str, Expression] = {
    "nothing reduced": lambda x, n, key: jnp.mean(x, 0),
    "clipped too early": lambda x, n, key: ff.all_mean(jnp.clip(jnp.mean(x, 0), -0.1, 0.1)),
    "the first": lambda x, n, key: x[0],
    "a sum as a mean": lambda x, n, key: ff.all_mean(jnp.sum(x, 0)),
    "sorted counts": lambda x, n, key: jnp.sort(jnp.arange(3.0) * n)[1] * jnp.ones(3) / 10,
    "a count": lambda x, n, key: ff.all_mean(jnp.mean(x, 0)) * n / 10,
    "a mean and a maximum": lambda x, n, key: ff.all_mean(jnp.mean(x, 0) + jnp.max(x, 0)),
    "cast too early": lambda x, n, key: ff.all_sum((9 * jnp.sum(x, 0)).astype(jnp.int16)) / 99,
    "filled": lambda x, n, key: ff.all_sum(
        jnp.take(jnp.sum(x, 0), jnp.array([1, 9, 0]), mode="fill", fill_value=1.0)
    ),
    "another order": patterned,
    "running sums": lambda x, n, key: ff.all_mean(jnp.mean(jnp.cumsum(x, 0), 0)) / 10,
    "a median": lambda x, n, key: ff.all_mean(jnp.median(x, 0)),
    "a power": lambda x, n, key: ff.all_mean(jnp.exp(jnp.mean(x, 0))) / 10,
    "a variance": lambda x, n, key: ff.all_mean(jnp.var(x, 0)),
    "a softmax": lambda x, n, key: ff.all_sum(jnp.sum(jax.nn.softmax(x, 0) * x, 0)),
    "a product": lambda x, n, key: ff.all_mean(jnp.mean(x, 0) * jnp.mean(x**2, 0)),
    "shared noise": lambda x, n, key: ff.all_mean(jnp.mean(jax.random.normal(key, (n, 3)) * x, 0)),
    "the best one": lambda x, n, key: jnp.argmax(x[:, 0]).astype(jnp.float32) * jnp.ones(3) / 9,
    "wired by size": swapped,
    "as long as any": as_long_as_any,
    "in a loop": stepwise,
    "not a number": lambda x, n, key: (
        ff.all_max(jnp.nanmax(jnp.sqrt(jnp.mean(x, 0)))) * jnp.ones(3)
    ),
}

LATER = frozenset({"a count", "sorted counts", "a sum as a mean"})
"""whose first operation is a multiple of what it should be: the one that is named comes after it"""
