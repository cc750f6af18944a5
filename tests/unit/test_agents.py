"""Several agents: the axis of agents is second, dead agents are masked, spaces are equal."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.environments.agents import Agents, agents_of, same_space
from fragflow.environments.libraries import pettingzoo
from fragflow.environments.libraries.jaxmarl import _silenced, _steps
from fragflow.environments.on_host.sequential import Failed
from fragflow.errors import ConfigError
from fragflow.policies import named_policy
from fragflow.run import Experiment, run

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves


class State(NamedTuple):
    params: Any
    env_state: Any
    obs: Any


@dataclass(frozen=True)
class Everyone(ff.Algorithm):
    """Acts for all agents with one table of weights, and follows the mean reward."""

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, timestep = env.reset(key)
        size = env.observation.shape[0]
        return State(0.1 * jax.random.normal(key, (size, 5)), env_state, timestep.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def interact(carry: Any, _: None) -> tuple[Any, Any]:
            env_state, obs = carry
            env_state, t = env.step(env_state, self.act(state.params, obs))
            return (env_state, t.obs), (t.reward, t.done)

        (env_state, obs), (reward, done) = lax.scan(
            interact, (state.env_state, state.obs), None, length=30
        )
        assert reward.shape == done.shape == (30, env.num_envs, env.num_agents)
        params = self.learn(state.params, reward)
        return State(params, env_state, obs), {"reward": ff.all_mean(reward.mean())}

    @ff.component("actor")
    def act(self, weights: jax.Array, obs: jax.Array) -> jax.Array:
        return jnp.argmax(obs @ weights, -1).astype(jnp.int32)

    @ff.component("learner.update")
    def learn(self, weights: jax.Array, reward: jax.Array) -> jax.Array:
        return weights * (1.0 + 0.01 * ff.all_mean(reward.mean()))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("jaxmarl:MPE_simple_spread_v3", marks=pytest.mark.legacy),
        "pettingzoo:simple_spread_v3",
    ],
)
def test_one_algorithm_on_both_libraries_with_any_number_of_workers(name):
    environment = make_environment(name)
    assert environment.num_agents == 3
    assert environment.observation.shape == (18,)
    assert environment.action == ff.Discrete(n=5)

    def train(workers: int):
        experiment = Experiment(
            algorithm=Everyone(), environment=environment, num_envs=4, total_steps=240, seed=2
        )
        return run(experiment, named_policy("single-learner-coarse"), workers=workers)

    one, two = train(1), train(2)
    np.testing.assert_array_equal(one.state.params, two.state.params)
    # One episode per environment in 30 steps, its return the mean of the agents'. JaxMARL looks at
    # the time limit before it counts a step.
    assert one.rows[0].episodes == 4
    assert one.rows[0].length_sum == 4 * (26 if "jaxmarl" in name else 25)
    assert one.rows[0].return_sum < 0.0
    assert one.state.obs.shape == (4, 3, 18)


def test_ppo_is_for_one_agent():
    environment = make_environment("pettingzoo:simple_spread_v3")
    experiment = Experiment(algorithm=PPO(), environment=environment, num_envs=2, total_steps=8)
    with pytest.raises(ConfigError, match="PPO is for one agent, but there are 3"):
        run(experiment, named_policy("single-learner-coarse"))


class Mortal:
    """Three agents; `b` dies at step 2, all are done at step 4."""

    possible_agents = ("a", "b", "c")

    def __init__(self, comes_back: bool = False, without: str = ""):
        self.comes_back, self.without = comes_back, without

    def reset(self, seed: int | None = None) -> tuple[dict, dict]:
        self.steps = 0
        return {a: np.zeros(2, np.float32) for a in "abc" if a != self.without}, {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.steps += 1
        assert set(actions) == ({"a", "b", "c"} if self.steps <= 2 else {"a", "c"})
        agents = list(actions) + (["b"] if self.comes_back and self.steps == 4 else [])
        obs = {a: np.full(2, self.steps, np.float32) for a in agents}
        ends = {a: a == "b" and self.steps == 2 for a in agents}
        return obs, dict.fromkeys(agents, 1.0), ends, dict.fromkeys(agents, self.steps == 4), {}

    def close(self) -> None:
        pass


def batch_of(env: Mortal) -> pettingzoo.PettingzooBatch:
    agents = Agents((3,), ff.Box(shape=(2,)), ff.Discrete(n=2))
    kind = pettingzoo.PettingzooEnvironment("mortal", (), agents)
    return pettingzoo.PettingzooBatch([env], kind)


def test_dead_agents_are_masked_until_all_have_ended():
    batch = batch_of(Mortal())
    assert batch.reset(np.array([0])).shape == (1, 3, 2)
    steps = [batch.step(np.zeros((1, 3), np.int32)) for _ in range(5)]
    masks = [s.mask[0, 1] for s in steps if s.mask is not None]
    np.testing.assert_array_equal(masks, [True, True, False, False, True])
    np.testing.assert_array_equal([s.reward[0, 1] for s in steps], [1, 1, 0, 0, 1])
    np.testing.assert_array_equal(steps[1].terminated, [[False, True, False]])
    np.testing.assert_array_equal(steps[3].truncated, [[True, False, True]])
    np.testing.assert_array_equal(steps[3].obs, 0.0)  # the next episode's
    np.testing.assert_array_equal(steps[3].next_obs[0, 0], 4.0)


def test_bad_agents_are_named():
    batch = batch_of(Mortal(comes_back=True))
    batch.reset(np.array([0]))
    for _ in range(3):
        batch.step(np.zeros((1, 3), np.int32))
    with pytest.raises(Failed, match="b came back after its end"):
        batch.step(np.zeros((1, 3), np.int32))
    with pytest.raises(Failed, match="starts without c"):
        batch_of(Mortal(without="c")).reset(np.array([0]))
    spaces = {"a": ff.Discrete(n=2), "b": ff.Discrete(n=3)}
    with pytest.raises(ConfigError, match=r"different actions: a has .*n=2.*, b has .*n=3"):
        same_space("game", "actions", spaces)
    with pytest.raises(ConfigError, match="game has no agents"):
        same_space("game", "actions", {})
    sees = {"a_0": ff.Box(shape=(2,)), "a_1": ff.Box(shape=(3,))}
    acts = dict.fromkeys(sees, ff.Discrete(n=2))
    with pytest.raises(ConfigError, match="agents of one team of game have different observations"):
        agents_of("game", sees, acts)
    with pytest.raises(ConfigError, match="different actions"):
        make_environment("pettingzoo:simple_speaker_listener_v4")
    with pytest.raises(ConfigError, match=r"no PettingZoo environment 'nope_v0'.*\[pettingzoo\]"):
        make_environment("pettingzoo:nope_v0")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("jaxmarl:MPE_simple_tag_v3", marks=pytest.mark.legacy),
        "pettingzoo:simple_tag_v3",
    ],
)
def test_teams_may_see_vectors_of_different_sizes(name):
    environment = make_environment(name)
    assert environment.teams == (3, 1)
    assert environment.observation.shape == (16,)


def test_teams_are_told_by_the_names_of_agents():
    box = ff.Box(shape=(2,), low=1.0, high=2.0)
    wide = ff.Box(shape=(3,), low=1.0, high=3.0)
    sees = {"wolf_0": box, "wolf_1": box, "sheep_0": wide}
    found = agents_of("game", sees, dict.fromkeys(sees, ff.Discrete(n=2)))
    assert found.teams == (2, 1)
    assert found.observation == ff.Box(shape=(3,), low=0.0, high=3.0)
    np.testing.assert_array_equal(found.padded(np.ones(2)), [1.0, 1.0, 0.0])
    mixed = {"wolf_0": box, "sheep_0": box, "wolf_1": box}
    assert agents_of("game", mixed, dict.fromkeys(mixed, ff.Discrete(n=2))).teams == (3,)
    images = {"wolf_0": box, "sheep_0": ff.Box(shape=(2, 2))}
    acts = dict.fromkeys(images, ff.Discrete(n=2))
    with pytest.raises(ConfigError, match=r"teams of game have different observations .*wolf"):
        agents_of("game", images, acts)


@pytest.mark.legacy
@pytest.mark.parametrize(
    ("name", "seen"),
    [("HeuristicEnemySMAX", (5, 127)), ("overcooked_v2", (2, 4, 5, 30)), ("hanabi", (2, 658))],
)
def test_jaxmarl_beyond_particles(name: str, seen: tuple[int, ...]) -> None:
    environment = make_environment(f"jaxmarl:{name}")
    key = jax.random.key(0)
    state, _ = jax.eval_shape(environment.reset, key)
    action = jnp.zeros((environment.num_agents,), jnp.int32)
    assert jax.eval_shape(environment.step, state, action, key).obs.shape == seen


def test_steps_of_jaxmarl_are_found_where_a_game_counts_them() -> None:
    counted = [SimpleNamespace(step=3), SimpleNamespace(time=3)]
    assert [_steps(state) for state in counted] == [3, 3]
    assert _steps(SimpleNamespace(state=SimpleNamespace(state=counted[0]))) == 3


def test_importing_jaxmarl_leaves_the_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with _silenced():
        print("Importing ...")
        sys.stdout = sys.__stdout__  # as JaxMARL does
        print("not found")
    assert sys.stdout is before
    assert capsys.readouterr().out == ""


def test_games_that_are_no_parallel_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'simple_spread_v3'\?"):
        make_environment("pettingzoo:simple_spred_v3")
    with pytest.raises(ConfigError, match="connect_four_v3 has no parallel_env"):
        make_environment("pettingzoo:connect_four_v3")
    with pytest.raises(ConfigError, match="cannot make pettingzoo:simple_spread_v3: ValueError"):
        make_environment("pettingzoo:simple_spread_v3", N=0)


def test_tag_has_no_bounds_to_leave() -> None:
    assert make_environment("Tag", observation_bounds="none") == make_environment("Tag")


def test_an_image_of_another_shape_is_named_as_it_is() -> None:
    """JaxMARL declares Overcooked's height and width the wrong way round."""
    space = ff.Box(shape=(5, 4, 26))
    agents = Agents(teams=(2,), observation=space, action=ff.Discrete(n=2))
    assert agents.padded(np.zeros((4, 5, 26))).shape == (4, 5, 26)
