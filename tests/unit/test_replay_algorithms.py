"""DQN and SAC as one program: they run, they learn, and they refuse what cannot work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow.algorithms import algorithm_class
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.sac import SAC
from fragflow.environments import make_environment
from fragflow.errors import ConfigError

SMALL: dict[str, Any] = {"rollout_length": 4, "updates": 2, "batch_size": 8, "buffer_size": 64}
SMALL |= {"learning_starts": 32, "hidden": (8,)}
IMPROVED: dict[str, Any] = {"prioritised": True, "dueling": True, "n_step": 3, "target_period": 1}
CASES: dict[str, tuple[Any, str]] = {
    "dqn": (DQN(**SMALL, n_step=1, target_period=1), "CartPole-v1"),
    "improved dqn": (DQN(**SMALL, **IMPROVED), "CartPole-v1"),
    "sac": (SAC(**SMALL), "Pendulum-v1"),
}


def environments(environment: Any, num_envs: int) -> ff.Environments:
    if isinstance(environment, str):
        environment = make_environment(environment)
    return ff.Environments(environment, jnp.arange(num_envs), num_envs)


def first_state(algorithm: Any, env: ff.Environments) -> Any:
    return jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0))


def iterate(algorithm: Any, name: Any, num_envs: int, iterations: int) -> list[Any]:
    """The states before and after each iteration, and the metrics of all."""
    env = environments(name, num_envs)

    @jax.jit
    def step(state: Any, i: jax.Array):
        clock = ff.Clock(
            key=jax.random.fold_in(jax.random.key(1), i),
            iteration=i,
            env_steps=i * num_envs * algorithm.rollout_length,
            progress=i / iterations,
        )
        return algorithm.step(env, state, clock)

    state = first_state(algorithm, env)
    results = [(state, {})]
    for i in range(iterations):
        results.append(step(results[-1][0], jnp.int32(i)))
    return results


@pytest.mark.parametrize("case", CASES)
def test_learning_starts_when_asked_and_then_changes_every_parameter(case: str) -> None:
    algorithm, env = CASES[case]
    states = [state for state, _ in iterate(algorithm, env, 4, 4)]
    learners = [(s.params, s.target, s.optimiser) for s in states]
    # 16 steps per iteration: two of them fill the buffer.
    for leaves in zip(*map(jax.tree.leaves, learners[:3]), strict=True):
        np.testing.assert_array_equal(leaves[0], leaves[2])
    before, after = jax.tree.leaves(states[2].params), jax.tree.leaves(states[4].params)
    same = [np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
    assert sum(same) == (1 if case == "sac" else 0)  # the bounds of actions
    moved = [
        not np.array_equal(old, new)
        for old, new in zip(
            jax.tree.leaves(states[2].target), jax.tree.leaves(states[4].target), strict=True
        )
    ]
    assert all(moved)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[4])


class Counting:
    """The observation is the step's number; an episode has seven, every other one is cut."""

    name = "counting"
    observation = ff.Box(shape=(2,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        start = jnp.stack([jnp.float32(0.0), jax.random.uniform(key)])
        return start, start

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        after = state + jnp.array([1.0, 0.0])
        last = after[0] == 7
        cut = state[1] > 0.5
        return ff.Step(after, after, after[0], last & ~cut, last & cut)


@pytest.mark.parametrize("n", [1, 3])
def test_the_buffer_holds_what_happened(n: int) -> None:
    algorithm = DQN(**SMALL, n_step=n, gamma=0.5)
    state = iterate(algorithm, Counting(), 2, 9)[-1][0]
    rows = state.buffer.ring.rows
    happened = np.asarray(rows.weight) > 0
    # The ring has room for 32 of 36 steps; those without n - 1 successors are not in it yet.
    assert happened.all()
    assert int(state.buffer.ring.added) == 36
    start, cut = np.asarray(rows.obs[..., 0]), np.asarray(rows.obs[..., 1]) > 0.5
    steps = np.minimum(n, 7 - start)
    reward = sum(np.where(k < steps, 0.5**k * (start + k + 1), 0.0) for k in range(n))
    np.testing.assert_allclose(rows.reward, reward)
    np.testing.assert_allclose(rows.next_obs[..., 0], start + steps)
    np.testing.assert_array_equal(rows.next_obs[..., 1], rows.obs[..., 1])
    ended = start + steps == 7
    np.testing.assert_allclose(rows.discount, np.where(ended & ~cut, 0.0, 0.5**steps))
    assert (ended & cut).any()
    assert (ended & ~cut).any()


def test_steps_that_did_not_happen_are_not_learned_from() -> None:
    """The gradient is that of the other steps, and prioritised draws leave them out."""
    algorithm = CASES["dqn"][0]
    env = environments("CartPole-v1", 4)
    params = first_state(algorithm, env).params
    transition = ops.Transition(
        obs=jax.random.normal(jax.random.key(1), (4, 2, 4)),
        action=jnp.ones((4, 2), jnp.int32),
        reward=jnp.array([[1.0, 1e6]] * 4),
        discount=jnp.full((4, 2), 0.9),
        next_obs=jax.random.normal(jax.random.key(2), (4, 2, 4)),
        weight=jnp.array([[1.0, 0.0]] * 4),
    )
    gradient = jax.jit(algorithm.gradient)
    grads, _, _ = gradient(params, params, transition)
    first = jax.tree.map(lambda x: x[:, :1], transition)
    alone, _, _ = gradient(params, params, first)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(2 * a, b, rtol=1e-4), grads, alone)

    algorithm = CASES["improved dqn"][0]
    buffer = first_state(algorithm, env).buffer
    zero = jnp.zeros((4, 4))
    no = zero.astype(bool)
    steps = ops.Steps(
        jnp.ones((4, 4, 4)), no * 1, zero, jnp.ones((4, 4, 4)), no, no, no.at[1].set(True)
    )
    add = jax.jit(algorithm.add)
    buffer = add(add(buffer, steps), steps)
    keys = env.keys(jax.random.key(0), 50)
    sample = jax.jit(algorithm.sample, static_argnums=2)
    places = sample(buffer, keys, 2, jnp.float32(1.0)).places
    # Two steps late: those whose successors are known.
    assert set(np.unique(places)) == {3, 7}


def test_double_learning_asks_the_target_about_the_learners_choice() -> None:
    obs = jnp.zeros((1, 1, 4))
    transition = ops.Transition(
        obs, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1)), jnp.ones((1, 1)), obs, jnp.ones((1, 1))
    )

    class Table:
        def init(self, key: jax.Array, observation: Any, action: Any) -> Any:
            return jnp.zeros(2)

        def values(self, params: Any, obs: jax.Array) -> jax.Array:
            return jnp.broadcast_to(params, (*obs.shape[:-1], 2))

    learning, target = jnp.array([3.0, 2.0]), jnp.array([5.0, 7.0])
    for double, goal in ((True, 1.0 + 5.0), (False, 1.0 + 7.0)):
        algorithm = DQN(double=double, network=Table())
        _, error, _ = algorithm.gradient(learning, target, transition)
        np.testing.assert_allclose(error, [[goal - 3.0]])


def test_actions_follow_epsilon() -> None:
    algorithm = CASES["dqn"][0]
    env = environments("CartPole-v1", 2_000)
    params = ops.MLPQNetwork((8,)).init(jax.random.key(0), env.observation, ff.Discrete(n=2))
    keys = env.keys(jax.random.key(1))
    act = jax.jit(algorithm.act)
    greedy = act(params, jnp.ones((2_000, 4)), keys, jnp.float32(0.0))
    assert len(np.unique(greedy)) == 1
    anything = act(params, jnp.ones((2_000, 4)), keys, jnp.float32(1.0))
    np.testing.assert_allclose(anything.mean(), 0.5, atol=0.05)
    some = act(params, jnp.ones((2_000, 4)), keys, jnp.float32(0.2))
    np.testing.assert_allclose((some != greedy).mean(), 0.1, atol=0.03)


def test_soft_actions_are_uniform_at_first_and_within_bounds() -> None:
    algorithm = CASES["sac"][0]
    env = environments("Pendulum-v1", 4_000)
    params = first_state(algorithm, environments("Pendulum-v1", 4)).params
    bounds = (np.array([-2.0], np.float32), np.array([2.0], np.float32))
    keys = env.keys(jax.random.key(1))
    action, bounded = algorithm.act(
        params["actor"], jnp.zeros((4_000, 3)), keys, jnp.array(True), bounds
    )
    np.testing.assert_allclose(bounded, 2.0 * action, atol=1e-6)
    counts, _ = np.histogram(action, bins=10, range=(-1.0, 1.0))
    np.testing.assert_allclose(counts / 4_000, 0.1, atol=0.02)
    greedy, _ = algorithm.policy(params, jnp.zeros(3), None, jax.random.key(0))
    noisy, _ = algorithm.policy(params, jnp.zeros(3), None, jax.random.key(0), explore=True)
    assert greedy.shape == noisy.shape == (1,)
    assert not np.array_equal(greedy, noisy)


def test_each_loss_moves_its_own_part() -> None:
    """The actor's loss does not reach the critics, nor the critics' the actor."""
    algorithm = CASES["sac"][0]
    env = environments("Pendulum-v1", 4)
    state = first_state(algorithm, env)
    params = {name: state.params[name] for name in ("actor", "critic", "temperature")}
    key = jax.random.key(3)
    transition = ops.Transition(
        obs=jax.random.normal(key, (4, 2, 3)),
        action=jnp.zeros((4, 2, 1)),
        reward=jnp.ones((4, 2)),
        discount=jnp.zeros((4, 2)),
        next_obs=jnp.zeros((4, 2, 3)),
        weight=jnp.ones((4, 2)),
    )
    gradient = jax.jit(algorithm.gradient)
    grads, _ = gradient(params, state.target, transition, env.keys(key))

    def critic_loss(critic: Any) -> jax.Array:
        obs, action = transition.obs.reshape(-1, 3), transition.action.reshape(-1, 1)
        values = ops.MLPSoftNetwork((8,)).values(critic, obs, action)
        return 0.5 * jnp.mean(sum((value - 1.0) ** 2 for value in values))

    expected = jax.grad(critic_loss)(params["critic"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        grads["critic"],
        expected,
    )
    # With an entropy above its goal the temperature falls.
    assert float(grads["temperature"]) > 0.0


@pytest.mark.optimised
def test_dqn_learns_to_balance_a_pole() -> None:
    algorithm = DQN(learning_starts=512, buffer_size=8_192)
    state, _ = iterate(algorithm, "CartPole-v1", 16, 80)[-1]
    episodes = state.env_state.finished
    # A random policy balances it for about 22 steps.
    assert float(episodes.length_sum.sum() / episodes.episodes.sum()) > 30.0


@pytest.mark.parametrize("cls", [DQN, SAC])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rollout_length": 0}, "rollout_length = 0: expected at least 1"),
        ({"updates": 0}, "updates = 0: expected at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate = nan"),
        ({"gamma": 1.5}, "gamma = 1.5: expected between 0 and 1"),
        ({"target_rate": 0.0}, "target_rate = 0.0: expected above 0"),
        ({"learning_starts": -1}, "learning_starts = -1: expected 0 or more"),
        ({"hidden": (64, 0)}, "hidden"),
    ],
)
def test_impossible_hyperparameters_are_told(cls: Any, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**wrong)


@pytest.mark.parametrize(
    ("algorithm", "env", "num_envs", "message"),
    [
        (DQN(), "Pendulum-v1", 16, "DQN is for a choice among actions"),
        (SAC(), "CartPole-v1", 16, "SAC is for continuous actions"),
        (DQN(), "CartPole-v1", 48, "batch_size of 128 cannot be divided among 48 environments"),
        (SAC(), "Pendulum-v1", 300, "batch_size of 256 cannot be divided among 300 environments"),
    ],
)
def test_what_cannot_work_is_refused(algorithm, env, num_envs, message) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm.init(environments(env, num_envs), jax.random.key(0))


def test_soft_actions_need_bounds() -> None:
    class Unbounded(Counting):
        action = ff.Box(shape=(1,))

    with pytest.raises(ConfigError, match="SAC needs bounds for actions"):
        SAC().init(environments(Unbounded(), 8), jax.random.key(0))


def test_algorithms_are_found_by_name() -> None:
    assert algorithm_class("DQN") is DQN
    assert algorithm_class("sac") is SAC
