"""Recurrent PPO: what is remembered, when it is forgotten, and that learning sees the same."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow.algorithms import algorithm_class
from fragflow.algorithms.recurrent_ppo import RecurrentPPO
from fragflow.errors import ConfigError
from unit.training import EqnPair, assert_all_learned, components, environments, iterate

SMALL = RecurrentPPO(
    rollout_length=24, chunk_length=6, epochs=1, minibatches=1, units=8, hidden=(8,)
)
NETWORK = ops.GRUActorCritic(units=8, hidden=(8,))


def params(observation: ff.Space) -> Any:
    return NETWORK.init(jax.random.key(0), observation, ff.Discrete(n=2))


@pytest.mark.parametrize(
    "observation", [ff.Box(shape=(3,)), ff.Box(shape=(5, 5, 2)), ff.Discrete(n=4)]
)
def test_all_observations_at_once_equal_one_after_the_other(observation: ff.Space) -> None:
    actor = params(observation)["actor"]
    if isinstance(observation, ff.Discrete):
        obs = jax.random.randint(jax.random.key(1), (9, 2), 0, observation.n)
    else:
        obs = jax.random.normal(jax.random.key(1), (9, 2, *observation.shape))
    first = jnp.zeros((9, 2), bool).at[4, 0].set(True)
    memory = jax.random.normal(jax.random.key(2), (2, 8))
    together = NETWORK.observe_all(actor, memory, first, obs)
    for t in range(9):
        memory = NETWORK.observe(actor, ops.forget(memory, first[t]), obs[t])
        np.testing.assert_allclose(together[t], memory, rtol=1e-4, atol=1e-6)


def test_an_episode_knows_nothing_of_the_one_before() -> None:
    actor = params(ff.Box(shape=(3,)))["actor"]
    obs = jax.random.normal(jax.random.key(1), (6, 2, 3))
    first = jnp.zeros((6, 2), bool).at[3, 0].set(True)
    zero = jnp.zeros((2, 8))
    memories = NETWORK.observe_all(actor, zero, first, obs)
    other = NETWORK.observe_all(actor, zero + 0.5, first, obs.at[:3].add(1.0))
    np.testing.assert_array_equal(memories[3:, 0], other[3:, 0])
    assert not np.allclose(memories[3:, 1], other[3:, 1])


def test_the_memory_is_the_gated_unit_of_the_literature() -> None:
    """Against flax's, with the same weights."""
    from flax import linen

    cell = linen.GRUCell(8)
    memory, obs = jax.random.normal(jax.random.key(1), (2, 5, 8))
    theirs = cell.init(jax.random.key(2), memory, obs)
    weights: Any = theirs["params"]
    mine = {
        "kernel": jnp.concatenate([weights[f"i{g}"]["kernel"] for g in "zrn"], axis=1),
        "recurrent": jnp.concatenate([weights[f"h{g}"]["kernel"] for g in "zrn"], axis=1),
        "bias": jnp.concatenate([weights[f"i{g}"]["bias"] for g in "zrn"]),
        "candidate_bias": weights["hn"]["bias"],
    }
    expected, _ = cell.apply(theirs, memory, obs)
    found = NETWORK.observe({"gru": mine}, memory, obs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_iteration_changes_every_parameter() -> None:
    before, after, metrics = iterate(SMALL, "Pendulum-v1", num_envs=4, iterations=2)
    assert_all_learned(before, after, metrics)


def test_learning_sees_the_memory_with_which_the_actor_acted() -> None:
    """Over ends of episodes, chunks and iterations: what was likely then is just as likely now."""
    # So small a step that the policy stays the same.
    algorithm = RecurrentPPO(
        learning_rate=1e-12, rollout_length=48, chunk_length=6, epochs=1, minibatches=1, units=8
    )
    _, after, metrics = iterate(algorithm, "CartPole-positions", num_envs=4, iterations=3)
    assert float(after.env_state.finished.episodes.sum()) > 10
    np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


def random_rollout(truncated_at: tuple[int, int, int]) -> tuple[jax.Array, ops.Rollout]:
    """4 chunks of 6 steps of 2 environments, of which one is truncated once: firsts, and steps."""
    obs = jax.random.normal(jax.random.key(3), (25, 2, 3))
    flat = jnp.zeros((4, 6, 2))
    truncated = flat.astype(bool).at[truncated_at].set(True)
    ended = truncated.reshape(24, 2)
    first = jnp.concatenate([jnp.zeros((1, 2), bool), ended[:-1]])
    successor = jnp.where(ended[..., None], obs[1:] + 1.0, obs[1:])

    def in_chunks(x: jax.Array) -> jax.Array:
        return x.reshape(4, 6, *x.shape[1:])

    return in_chunks(first), ops.Rollout(
        obs=in_chunks(obs[:-1]),
        action=flat.astype(jnp.int32),
        log_prob=flat,
        next_obs=in_chunks(successor),
        reward=flat,
        terminated=flat.astype(bool),
        truncated=truncated,
        mask=None,
    )


def test_the_successors_value_is_that_of_this_episode_also_where_it_is_cut() -> None:
    critic = params(ff.Box(shape=(3,)))["critic"]
    start = jax.random.normal(jax.random.key(4), (2, 8))
    cut = (1, 5, 0)  # the last step of a chunk
    first, rollout = random_rollout(cut)
    values = jax.jit(SMALL.values)
    value, next_value, memory, _ = values(critic, start, first, rollout)
    now, later = value.reshape(24, 2), next_value.reshape(24, 2)
    # Within an episode the successor is the next step, also from one chunk to the next.
    np.testing.assert_allclose(later[:-1, 1], now[1:, 1], rtol=1e-4, atol=1e-5)
    # The same episode without the cut: its next step is the true successor.
    uncut = rollout._replace(obs=rollout.obs.at[2, 0, 0].set(rollout.next_obs[cut]))
    expected = values(critic, start, jnp.zeros_like(first), uncut)[0].reshape(24, 2)
    assert float(later[11, 0]) == pytest.approx(float(expected[12, 0]), rel=1e-4)
    assert float(now[12, 0]) != pytest.approx(float(expected[12, 0]), rel=1e-2)
    np.testing.assert_array_equal(memory[0], start)


class Position(NamedTuple):
    step: jax.Array


class Resting:
    """Ends at every third step, and spends the step after that on starting again."""

    name = "resting"
    observation = ff.Box(shape=(1,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[Position, jax.Array]:
        return Position(jnp.int32(0)), jnp.zeros(1)

    def step(self, state: Position, action: jax.Array, key: jax.Array) -> ff.Step:
        step = (state.step + 1) % 4
        obs = jnp.full(1, step, jnp.float32)
        # The episode's end is not one to the batch: it would start the next one by itself.
        no = jnp.bool_(False)
        return ff.Step(Position(step), obs, jnp.float32(1.0), no, no, mask=step != 0)


@pytest.mark.parametrize(("steps", "begins"), [(3, False), (4, True), (5, False)])
def test_memory_begins_anew_after_a_step_at_which_nothing_happened(steps: int, begins: bool):
    algorithm = RecurrentPPO(rollout_length=steps, chunk_length=steps, minibatches=1, units=8)
    _, after, metrics = iterate(algorithm, Resting(), num_envs=2, iterations=1)
    np.testing.assert_array_equal(after.first, begins)
    assert np.isfinite(metrics["value_loss"]).all()


def test_a_trained_agent_remembers_as_the_actor_did() -> None:
    everything = params(ff.Box(shape=(3,)))
    key, obs = jax.random.key(1), jax.random.normal(jax.random.key(5), (4, 3))
    memory, batch = None, jnp.ones((1, 8))
    for t in range(4):
        first = jnp.array([t == 0])
        keys = jax.random.split(key, 1)
        batch, action, _, _ = SMALL.act(
            everything["actor"], batch, first, obs[t][None], keys, ff.Discrete(n=2)
        )
        mine, memory = SMALL.policy(everything, obs[t], memory, keys[0], explore=True)
        assert int(mine) == int(action[0])
        np.testing.assert_allclose(memory, batch[0], rtol=1e-5, atol=1e-6)


def test_its_components() -> None:
    learner = {f"learner.{name}" for name in ("value", "advantages", "gradient", "update", "track")}
    assert components(SMALL, "CartPole-v1") == {"environment.step", "actor", *learner}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chunk_length": 5}, "chunk_length = 5 does not divide rollout_length = 128"),
        ({"minibatches": 3}, "minibatches = 3 does not divide the number of chunks"),
        ({"units": 0}, "units = 0: expected at least 1"),
        ({"gamma": 1.5}, "gamma = 1.5: expected between 0 and 1"),
    ],
)
def test_impossible_hyperparameters_are_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RecurrentPPO(**wrong)


def test_several_agents_are_refused() -> None:
    env = environments(EqnPair(), 2)
    with pytest.raises(ConfigError, match="RecurrentPPO is for one agent, but there are 2"):
        algorithm_class("recurrent-ppo")().init(env, jax.random.key(0))
