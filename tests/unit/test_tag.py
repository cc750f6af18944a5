"""Tag: who is near, who is tagged, who is rewarded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragflow.algorithms.ippo import IPPO
from fragflow.environments import library_of, make_environment
from fragflow.environments.tag import FARTHEST, REACH, TagState, _index_of, nearest
from fragflow.errors import ConfigError
from fragflow.policies import named_policy
from fragflow.run import Experiment, mean_return, run


def game(**settings):
    return make_environment("Tag", **settings)


def state_of(positions, alive=None, step=0) -> TagState:
    position = jnp.asarray(positions, jnp.float32)
    alive = jnp.ones(len(position), bool) if alive is None else jnp.asarray(alive)
    return TagState(position, jnp.zeros_like(position), alive, jnp.int32(step))


STILL = jnp.zeros((4, 2))


@pytest.mark.parametrize("count", [5, 100, 1000])
def test_nearest_opponents_are_those_of_all_pairs(count: int) -> None:
    a, b, c = jax.random.split(jax.random.key(count), 3)
    position = jax.random.uniform(a, (count // 5, 2), maxval=50.0)
    others = jax.random.uniform(b, (count, 2), maxval=50.0)
    there = jax.random.uniform(c, (count,)) < 0.8
    found = np.asarray(_index_of(jax.jit(nearest, static_argnums=3)(position, others, there, 3)))
    distances = np.linalg.norm(np.asarray(position)[:, None] - np.asarray(others), axis=-1)
    distances[:, ~np.asarray(there)] = np.inf
    expected = np.sort(distances, axis=1)[:, :3]
    # The last bits of a distance hold the index: neighbours equally far may swap.
    np.testing.assert_allclose(np.take_along_axis(distances, found, 1), expected, rtol=2e-4)


def test_there_may_be_fewer_opponents_left_than_are_seen() -> None:
    env = game(agents=4, taggers=1, neighbours=3)
    state = state_of([[0, 0], [1, 0], [2, 0], [3, 0]], alive=[True, True, False, False])
    tagger, runners = state.position[:1], state.position[1:]
    found = nearest(tagger, runners, state.alive[1:], 3)
    assert (np.asarray(found) == FARTHEST).tolist() == [[False, True, True]]
    obs = np.asarray(env._observe(state, env._threats(state.position)))
    np.testing.assert_allclose(obs[0, 6:11], [0.5, 0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(obs[0, 11:], 0.0)
    np.testing.assert_allclose(obs[1, 6:11], [-0.5, 0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(obs[1, 11:], 0.0)  # one tagger is all there is


def test_the_nearest_tagger_is_rewarded_and_the_runner_is_out() -> None:
    env = game(agents=4, taggers=2, neighbours=2)
    close = 0.5 * REACH
    state = state_of([[0, 0], [3, 3], [close, 0], [1.5, 1.5]])
    step = env.step(state, STILL, jax.random.key(0))
    np.testing.assert_array_equal(step.reward, [1.0, 0.0, -1.0, 0.0])
    np.testing.assert_array_equal(step.terminated, [False, False, True, False])
    np.testing.assert_array_equal(step.mask, [True] * 4)
    after = env.step(step.state, jnp.ones((4, 2)), jax.random.key(0))
    np.testing.assert_array_equal(after.mask, [True, True, False, True])
    np.testing.assert_array_equal(after.reward, 0.0)  # nobody is tagged twice
    np.testing.assert_array_equal(after.state.position[2], state.position[2])


def test_a_game_ends_when_no_runner_is_left_and_is_cut_at_its_length() -> None:
    env = game(agents=4, taggers=3, neighbours=3, length=7)
    caught = env.step(state_of([[0, 0], [1, 0], [2, 0], [0, 0.1]]), STILL, jax.random.key(0))
    assert np.all(caught.terminated)
    assert not np.any(caught.truncated)
    late = env.step(state_of([[0, 0], [1, 0], [2, 0], [3, 3]], step=6), STILL, jax.random.key(0))
    assert np.all(late.truncated)
    assert not np.any(late.terminated)


def test_agents_stay_on_the_square_and_keep_their_speed() -> None:
    env = game(agents=50)
    state, obs = env.reset(jax.random.key(1))
    assert obs.shape == (50, env.observation.shape[0])
    step = jax.jit(env.step)
    for k in range(30):
        action = jax.random.normal(jax.random.key(k), (50, 2)) * 5.0
        answer = step(state, action, jax.random.key(k))
        moved = np.linalg.norm(answer.state.position - state.position, axis=1)
        limits = np.asarray(env._speed)
        assert np.all(moved <= limits * (1 + 1e-5))
        state = answer.state
        assert np.all((state.position >= 0.0) & (state.position <= env.side))


def test_a_picture_shows_who_is_left() -> None:
    env = game(agents=4, taggers=1, neighbours=2)
    picture = env.draw(state_of([[1, 1], [3, 3], [1, 3], [3, 1]], alive=[True, True, False, True]))
    assert picture.shape == (360, 360, 3)
    quarter = 90
    assert picture[quarter, quarter].tolist() == [200, 40, 40]
    assert picture[3 * quarter, 3 * quarter].tolist() == [40, 80, 200]
    assert picture[3 * quarter, quarter].tolist() == [250, 250, 250]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": 4, "neighbours": 4}, "no agent has more than 3 opponents: use neighbours=3"),
        ({"agents": 4, "taggers": 2, "neighbours": 3}, "no agent has more than 2 opponents"),
        ({"agents": 1}, "expected from 2 to 1024"),
        ({"agents": 2000}, "expected from 2 to 1024"),
        ({"agents": 5, "taggers": 5, "neighbours": 2}, "at least one must hunt and one must run"),
        ({"agents": 5, "taggers": 0, "neighbours": 2}, "at least one must hunt and one must run"),
        ({"agents": 2.5}, "expected a whole number"),
        ({"length": 0}, "length is 0"),
    ],
)
def test_games_that_cannot_be_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        game(**settings)


def test_it_is_found_by_its_bare_name() -> None:
    assert library_of("Tag") == "fragflow"


@pytest.mark.slow
@pytest.mark.optimised
def test_taggers_learn_to_hunt_runners_that_learn_to_flee() -> None:
    length, games = 48, 32
    env = game(agents=20, neighbours=2, length=length)
    algorithm = IPPO(rollout_length=16, hidden=(32, 32))
    experiment = Experiment(
        algorithm=algorithm, environment=env, num_envs=games, total_steps=20 * length * games
    )
    outcome = run(experiment, named_policy("gpu-only"))
    # The first games are over after three iterations, before much is learnt.
    at_random, learnt = mean_return(outcome.rows[:3]), outcome.mean_return
    assert at_random is not None
    assert learnt is not None
    assert learnt > 2.0 * at_random
