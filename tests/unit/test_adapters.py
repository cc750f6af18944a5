"""EnvPool, Brax and Playground behind the same contracts; observations normalised like by hand."""

import importlib
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow as ff
from fragflow import ops
from fragflow.algorithms.ppo import PPO
from fragflow.environments import library_of, make_environment
from fragflow.environments.on_host.gymnasium_spaces import space_of
from fragflow.errors import ConfigError
from fragflow.policies import named_policy
from fragflow.run import Experiment, plan_run, run


def test_envpool_environments_depend_on_their_seed_alone():
    environment = make_environment("envpool:CartPole-v1", threads=2)
    assert environment.observation.dtype == "float32"

    def play(seeds: list[int]) -> np.ndarray:
        batch = environment.open(range(len(seeds)))
        seen = [batch.reset(np.array(seeds))]
        seen += [batch.step(np.full(len(seeds), t % 2)).obs for t in range(30)]
        batch.close()
        return np.stack(seen, 1)

    np.testing.assert_array_equal(play([3, 4, 5])[1], play([4])[0])


def test_envpool_masks_the_step_that_starts_an_episode():
    batch = make_environment("envpool:CartPole-v1").open(range(3))
    batch.reset(np.arange(3))
    was_done = np.zeros(3, bool)
    ends = 0
    for _ in range(30):
        step = batch.step(np.ones(3, np.int32))
        np.testing.assert_array_equal(step.mask, ~was_done)
        was_done = step.terminated | step.truncated
        ends += was_done.sum()
    assert ends >= 3
    batch.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_ppo_is_the_same_on_envpool_with_any_number_of_workers(workers):
    def train(policy: str, count: int):
        experiment = Experiment(
            algorithm=PPO(rollout_length=16, epochs=1, normalise_observations=True),
            environment=make_environment("envpool:HalfCheetah-v4", threads=1),
            num_envs=8,
            total_steps=256,
            seed=1,
        )
        return run(experiment, named_policy(policy), workers=count)

    alone = train("single-learner-coarse", 1)
    other = train("single-learner-fine", workers)
    for a, b in zip(
        jax.tree.leaves(alone.state.params), jax.tree.leaves(other.state.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_statistics_of_observations_equal_those_of_all_at_once():
    rng = np.random.default_rng(0)
    chunks = [rng.normal(3.0, 2.0, (5, 4, 2)).astype(np.float32) for _ in range(3)]
    statistics = ops.Statistics.of_nothing(ff.Box(shape=(2,)))
    for chunk in chunks:
        statistics = ops.include(statistics, jnp.asarray(chunk), total=20)
    rows = np.concatenate(chunks).reshape(-1, 2)
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-4)
    assert float(statistics.number) == 60.0
    scaled = ops.normalise(statistics, jnp.asarray(rows))
    np.testing.assert_allclose(scaled.std(0), 1.0, rtol=1e-3)
    assert float(jnp.abs(ops.normalise(statistics, jnp.full(2, 1e9))).max()) == 10.0


@pytest.mark.filterwarnings("ignore")  # Brax warns of itself
def test_brax_episodes_end_at_their_limit():
    environment = make_environment(
        "brax:inverted_pendulum", episode_length=2, backend="generalized"
    )

    @jax.jit
    def two_steps(key):
        state, obs = environment.reset(key)
        first = environment.step(state, jnp.zeros(1), key)
        return obs, environment.step(first.state, jnp.zeros(1), key)

    obs, step = two_steps(jax.random.key(0))
    assert obs.shape == environment.observation.shape
    assert bool(step.truncated) != bool(step.terminated)
    with pytest.raises(ConfigError, match="Did you mean 'ant'"):
        make_environment("brax:ants")


@pytest.mark.filterwarnings("ignore")  # Brax warns of itself
def test_brax_is_cut_whatever_is_inside():
    """Loops, branches and scatters over all rows are in it. Only the cut is made, nothing runs."""
    experiment = Experiment(
        algorithm=PPO(rollout_length=4, epochs=1, minibatches=1, hidden=(8,)),
        environment=make_environment("brax:inverted_pendulum"),
        num_envs=4,
        total_steps=16,
    )
    fdg = plan_run(experiment, named_policy("single-learner-coarse"), ff.Deployment(workers=2)).fdg
    assert {name: f.replicas for name, f in fdg.fragments.items()} == {
        "environment+actor": 2,
        "learner": 1,
    }


class TestPlayground:
    """Tasks of MuJoCo Playground, which is here only if somebody has installed it."""

    def test_without_the_package_the_error_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mujoco_playground", None)
        with pytest.raises(ConfigError, match=r"pip install 'fragflow\[playground\]'"):
            make_environment("playground:CartpoleBalance")

    @pytest.mark.parametrize("arguments", [{"impl": "warp"}, {"vision": True}])
    def test_engines_that_workers_cannot_run_are_refused_by_name(self, arguments):
        with pytest.raises(ConfigError, match=f"CartpoleBalance with {next(iter(arguments))}"):
            make_environment("playground:CartpoleBalance", **arguments)

    def test_names_and_settings_that_do_not_exist(self):
        pytest.importorskip("mujoco_playground", exc_type=ImportError)
        with pytest.raises(ConfigError, match="Did you mean 'CartpoleBalance'"):
            make_environment("playground:CartpoleBalanc")
        with pytest.raises(ConfigError, match="Did you mean 'episode_length'"):
            make_environment("playground:CartpoleBalance", episode_lengt=3)
        nested: dict[str, Any] = {"vision_config.nworldd": 3}
        with pytest.raises(ConfigError, match="nworldd"):
            make_environment("playground:CartpoleBalance", **nested)

    def test_robots_are_not_downloaded_unasked(self, monkeypatch, tmp_path):
        pytest.importorskip("mujoco_playground", exc_type=ImportError)
        files = importlib.import_module("mujoco_playground._src.mjx_env")
        monkeypatch.setattr(files, "MENAGERIE_PATH", tmp_path / "none")
        with pytest.raises(ConfigError, match="ensure_menagerie_exists"):
            make_environment("playground:Go1JoystickFlatTerrain")

    def test_episodes_end_at_their_limit_and_actions_are_repeated(self):
        pytest.importorskip("mujoco_playground", exc_type=ImportError)
        name = "playground:CartpoleBalance"
        once = make_environment(name, episode_length=4)
        twice = make_environment(name, episode_length=4, action_repeat=2)
        action = jnp.ones(1)

        @jax.jit
        def play(key):
            state, obs = once.reset(key)
            steps = [once.step(state, action, key)]
            for _ in range(3):
                steps.append(once.step(steps[-1].state, action, key))
            first = twice.step(state, action, key)
            return obs, steps, [first, twice.step(first.state, action, key)]

        obs, singles, doubles = play(jax.random.key(0))
        assert obs.shape == once.observation.shape
        assert [bool(s.truncated) for s in singles] == [False, False, False, True]
        assert [bool(s.truncated) for s in doubles] == [False, True]
        np.testing.assert_allclose(doubles[1].obs, singles[3].obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            doubles[0].reward, singles[0].reward + singles[1].reward, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("CartPole-v1", "fragflow"),
        ("CartPole-positions", "fragflow"),
        ("Tag", "fragflow"),
        ("gymnax:CartPole-v1", "gymnax"),
        ("Catch-bsuite", "gymnax"),
        ("CartPole-v0", "gymnasium"),
        ("HalfCheetah-v5", "gymnasium"),
        ("envpool:Pong-v5", "envpool"),
        ("playground:CartpoleBalance", "playground"),
        ("gymnasium:my.module:Own-v0", "gymnasium"),
    ],
)
def test_whose_environment_a_name_is(name, library):
    assert library_of(name) == library


def test_a_space_that_is_not_supported_is_refused_by_name():
    with pytest.raises(ConfigError, match="story has observations of type Text"):
        space_of("story", "observations", gymnasium.spaces.Text(5))
    with pytest.raises(ConfigError, match="count from 1"):
        space_of("dice", "actions", gymnasium.spaces.Discrete(6, start=1))
    with pytest.raises(ConfigError, match="threads is 0"):
        make_environment("envpool:CartPole-v1", threads=0)


class TestSpaces:
    """Observations and actions of more than one part."""

    def test_a_dict_becomes_one_vector_and_several_choices_are_made_at_once(self):
        environment = make_environment("gymnasium:runtime.faulty:Parts-v0")
        assert environment.observation.shape == (2 + 3,)
        assert environment.action == ff.MultiDiscrete(counts=(2, 3))
        experiment = Experiment(
            algorithm=PPO(rollout_length=8, epochs=1),
            environment=environment,
            num_envs=4,
            total_steps=64,
        )
        outcome = run(experiment, named_policy("single-learner-coarse"), workers=2)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))
        assert outcome.episodes > 0

    def test_several_choices_by_hand(self):
        logits = jax.random.normal(jax.random.key(0), (4, 5))
        parts = (ops.Categorical(logits[:, :2]), ops.Categorical(logits[:, 2:]))
        both = ops.MultiCategorical(parts)
        action = both.sample(jax.random.split(jax.random.key(1), 4))
        assert action.shape == (4, 2)
        expected = parts[0].log_prob(action[:, 0]) + parts[1].log_prob(action[:, 1])
        np.testing.assert_allclose(both.log_prob(action), expected)
        np.testing.assert_allclose(both.entropy(), parts[0].entropy() + parts[1].entropy())
        np.testing.assert_array_equal(both.mode()[:, 1], jnp.argmax(logits[:, 2:], 1))


def test_only_numbers_are_normalised():
    environment = make_environment("gymnasium:FrozenLake-v1", vectorization="sync")
    experiment = Experiment(
        algorithm=PPO(normalise_observations=True),
        environment=environment,
        num_envs=2,
        total_steps=8,
    )
    with pytest.raises(ConfigError, match="normalise_observations is for numbers"):
        run(experiment, named_policy("single-learner-coarse"))
