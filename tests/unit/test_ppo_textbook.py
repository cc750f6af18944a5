"""PPO beside one written from the paper: with the textbook's flags, the first update is the same.

Nothing of the reference comes from `fragflow.ops`: its networks, advantages, loss and Adam are
written here, from Schulman et al. 2017 (eq. 7, 9, 11), Kingma & Ba 2015 and the authors' code. It
learns from the same steps of the same environments, in the same minibatches.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow.algorithms.ppo import PPO
from unit.training import environments

TEXTBOOK = PPO(
    learning_rate=5e-2,
    rollout_length=16,
    epochs=3,
    minibatches=2,
    scale_returns=False,
    advantages_per_minibatch=True,
    shuffle_each_env=True,
    clip_value=True,
    hidden=(8,),
)
"""steps so large that ratios leave the range in which they pay"""
ENVS = 8
CLOCK = ff.Clock(jax.random.key(3), jnp.int32(0), jnp.int32(0), jnp.float32(0.25))


def tower(part: Any, x: Any) -> Any:
    """Tanh layers."""
    *hidden, last = part["layers"]
    for layer in hidden:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ last["kernel"] + last["bias"]


def log_prob_and_entropy(actor: Any, obs: Any, action: Any) -> tuple[Any, Any]:
    """Of a choice, or of a normal distribution."""
    output = tower(actor, obs)
    if "log_std" not in actor:
        log_p = output - jnp.log(jnp.sum(jnp.exp(output), -1, keepdims=True))
        chosen = jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]
        return chosen, -jnp.sum(jnp.exp(log_p) * log_p, -1)
    std = jnp.exp(actor["log_std"])
    density = jnp.exp(-(((action - output) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    entropy = jnp.log(std * np.sqrt(2 * np.pi * np.e))
    return jnp.sum(jnp.log(density), -1), jnp.sum(jnp.broadcast_to(entropy, output.shape), -1)


def advantages(t: Any, value: np.ndarray, next_value: np.ndarray, gamma: float, lam: float):
    """Equation 11, back in time; what a time limit cut is worth what the critic says."""
    out, later = np.zeros_like(value), 0.0
    for k in reversed(range(len(value))):
        following = np.where(t.terminated[k], 0.0, next_value[k])
        delta = t.reward[k] + gamma * following - value[k]
        later = delta + gamma * lam * np.where(t.terminated[k] | t.truncated[k], 0.0, later)
        out[k] = later
    return out


def paper(algorithm: PPO, params: Any, t: Any, minibatches: list[Any]) -> Any:
    """Parameters after the first update, from the steps `t` `[T, N, ...]`."""
    value, next_value = (
        np.asarray(tower(params["critic"], x)[..., 0], np.float64) for x in (t.obs, t.next_obs)
    )
    advantage = advantages(t, value, next_value, algorithm.gamma, algorithm.gae_lambda)
    target = advantage + value
    old_log_prob, _ = log_prob_and_entropy(params["actor"], t.obs, t.action)

    def loss(params: Any, chosen: Any) -> jax.Array:
        a = advantage[chosen]
        a = (a - a.mean()) / a.std()
        obs, low, high = t.obs[chosen], 1 - algorithm.clip, 1 + algorithm.clip
        log_prob, entropy = log_prob_and_entropy(params["actor"], obs, t.action[chosen])
        ratio = jnp.exp(log_prob - old_log_prob[chosen])
        surrogate = jnp.minimum(ratio * a, jnp.clip(ratio, low, high) * a)
        now, before, goal = tower(params["critic"], obs)[..., 0], value[chosen], target[chosen]
        near = before + jnp.clip(now - before, -algorithm.clip, algorithm.clip)
        error = jnp.maximum((now - goal) ** 2, (near - goal) ** 2) / 2
        bonus = algorithm.entropy_coef * entropy
        return -jnp.mean(surrogate - algorithm.value_coef * error + bonus)

    first = second = jax.tree.map(jnp.zeros_like, params)
    rate = algorithm.learning_rate * (1 - float(CLOCK.progress))
    for step, chosen in enumerate(minibatches, 1):
        grads = jax.grad(loss)(params, chosen)
        norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g, n=norm: g * min(1.0, algorithm.max_grad_norm / n), grads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, grads)
        params = jax.tree.map(
            lambda p, m, v, k=step: (
                p - rate * (m / (1 - 0.9**k)) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-5)
            ),
            *(params, first, second),
        )
    return params


def collected(algorithm: PPO, env: ff.Environments, state: Any, keys: jax.Array) -> Any:
    """The steps that the algorithm's actor makes from `state`, as numpy arrays."""

    @jax.jit
    def one(env_state: Any, obs: jax.Array, keys: jax.Array) -> Any:
        action, env_action, _ = algorithm.act(state.params["actor"], None, obs, keys, env.action)
        env_state, t = env.step(env_state, env_action)
        return env_state, t.obs, ops.transition(obs, action, t)

    env_state, obs, steps = state.env_state, state.obs, []
    for row in keys:
        env_state, obs, step = one(env_state, obs, row)
        steps.append(step)
    return jax.tree.map(lambda *x: np.stack(x), *steps)


def both(algorithm: PPO, name: str) -> tuple[Any, Any]:
    """Parameters after an update by the algorithm, and by the reference."""
    env = environments(name, ENVS)
    state = jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0))
    # A critic that is wrong by far, so that its output moves by more than the clip range too.
    state.params["critic"]["layers"][-1]["bias"] += 1.0
    after, metrics = jax.jit(lambda state: algorithm.step(env, state, CLOCK))(state)
    assert float(metrics["clip_fraction"]) > 0.02, metrics
    act_key, shuffle_key = jax.random.split(CLOCK.key)
    t = collected(algorithm, env, state, env.keys(act_key, algorithm.rollout_length))
    sizes = (algorithm.rollout_length, algorithm.epochs, algorithm.minibatches)
    time_idx = np.asarray(ops.env_minibatches(env.keys(shuffle_key, algorithm.epochs), *sizes))
    minibatches = [(rows, np.arange(ENVS)) for rows in time_idx]
    return after.params, paper(algorithm, state.params, t, minibatches)


def distance(a: Any, b: Any) -> float:
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), a, b)))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_first_update_is_that_of_the_paper(name: str) -> None:
    found, expected = both(TEXTBOOK, name)
    assert distance(found, expected) < 1e-5


@functools.cache
def after_two(algorithm: PPO) -> Any:
    """Parameters after two updates: returns are scaled from the second one on."""
    env = environments("CartPole-v1", ENVS)
    step = jax.jit(lambda state: algorithm.step(env, state, CLOCK)[0])
    state = jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0))
    return step(step(state)).params


@pytest.mark.parametrize(
    "flag", ["scale_returns", "advantages_per_minibatch", "shuffle_each_env", "clip_value"]
)
def test_every_flag_of_the_textbook_matters(flag: str) -> None:
    other = replace(TEXTBOOK, **{flag: not getattr(TEXTBOOK, flag)})
    assert distance(after_two(TEXTBOOK), after_two(other)) > 1e-4
