"""Classic control: Gymnasium's steps from anywhere, its starts, its limits; what can be set."""

import math
import subprocess
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fragflow.api as ff
from fragflow.environments import environment_names, library_of, make_environment
from fragflow.environments.classic import names
from fragflow.errors import ConfigError

pytestmark = pytest.mark.usefixtures("explicit_promotion")

FARTHEST: dict[str, tuple[float, ...]] = {
    "CartPole-v1": (2.6, 3.0, 0.25, 3.0),
    "Pendulum-v1": (20.0, 8.0),
    "Acrobot-v1": (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
    "MountainCar-v0": (0.9, 0.07),
    "MountainCarContinuous-v0": (0.9, 0.07),
}
"""how far the states of a test are from the middle: beyond thresholds, to walls and to goals"""
MIDDLE = {"MountainCar-v0": -0.3, "MountainCarContinuous-v0": -0.3}
"""of positions, where that is not zero"""
TOLERANCE = {"Acrobot-v1": 2e-3}
"""where links that turn fast make more of what 32 bits round"""


def batch(environment: ff.Environment, ids: range, total: int) -> ff.Environments:
    return ff.Environments(environment, jnp.arange(ids.start, ids.stop), total)


@pytest.mark.parametrize("name", FARTHEST)
def test_a_step_from_anywhere_is_gymnasiums(name: str) -> None:
    ours, theirs = make_environment(name), gymnasium.make(name).unwrapped
    rng, count = np.random.default_rng(0), 2000
    far = np.array(FARTHEST[name])
    places = rng.uniform(-far, far, (count, len(far))).astype(np.float32)
    places[:, 0] += np.float32(MIDDLE.get(name, 0.0))
    if isinstance(ours.action, ff.Box):  # and beyond its bounds
        actions: Any = rng.uniform(-3.0, 3.0, (count, 1)).astype(np.float32)
    else:
        actions = rng.integers(0, ours.action.n, count)
    keys = jax.random.split(jax.random.key(0), count)
    state, _ = jax.vmap(ours.reset)(keys)
    shown = len(far)
    state = type(state)(state.time, *places.T, *state[1 + shown :])
    step = jax.jit(jax.vmap(ours.step))(state, jnp.asarray(actions), keys)
    step = jax.tree.map(np.asarray, step)
    close, ends = TOLERANCE.get(name, 1e-5), 0
    for k in range(count):
        theirs.reset()
        theirs.state = places[k].astype(np.float64)  # pyright: ignore[reportAttributeAccessIssue]
        obs, reward, terminated, _, _ = theirs.step(actions[k])
        np.testing.assert_allclose(step.obs[k], obs, close, close, err_msg=str(places[k]))
        np.testing.assert_allclose(step.reward[k], float(reward), 1e-5, 1e-5)
        assert bool(step.terminated[k]) == terminated
        ends += terminated
    assert step.obs.dtype == step.reward.dtype == jnp.float32
    assert (0 < ends < count) == (name != "Pendulum-v1")


@pytest.mark.parametrize("name", FARTHEST)
def test_episodes_start_as_gymnasiums_do(name: str) -> None:
    ours, theirs = make_environment(name), gymnasium.make(name)
    keys = jax.random.split(jax.random.key(0), 2000)
    mine = np.asarray(jax.jit(jax.vmap(ours.reset))(keys)[1])
    its = np.array([theirs.reset(seed=k)[0] for k in range(1000)])
    for k in range(mine.shape[1]):
        compared: Any = stats.ks_2samp(mine[:, k], its[:, k])
        assert compared.pvalue > 1e-3
    low, high = its.min(0), its.max(0)
    room = 0.02 * (high - low) + 1e-6
    assert np.all(mine >= low - room)
    assert np.all(mine <= high + room)
    assert len(np.unique(mine[:, 0])) > 1900


@pytest.mark.parametrize("name", FARTHEST)
def test_spaces_and_limits_are_gymnasiums(name: str) -> None:
    ours, theirs = make_environment(name), make_environment(f"gymnasium:{name}")
    assert ours.action == theirs.action
    assert ours.observation.shape == theirs.observation.shape
    np.testing.assert_array_equal(ours.observation.bounds, theirs.observation.bounds)
    assert ours.task.max_steps == gymnasium.spec(name).max_episode_steps


def test_reset_and_step_keep_the_contract() -> None:
    environment = make_environment("CartPole-v1")
    assert isinstance(environment, ff.Environment)
    state, obs = environment.reset(jax.random.key(0))
    assert state._fields == ("time", "x", "x_dot", "theta", "theta_dot")
    assert obs.shape == (4,)
    step = environment.step(state, jnp.int32(1), jax.random.key(1))
    assert jax.tree.structure(step.state) == jax.tree.structure(state)
    assert float(step.reward) == 1.0
    assert not step.terminated
    assert not step.truncated


def test_environments_of_equal_settings_are_equal() -> None:
    one = make_environment("CartPole-v1", max_steps=7)
    assert one == make_environment("fragflow:CartPole-v1", max_episode_steps=7)
    assert one == make_environment("fragflow:CartPole-v1", max_steps_in_episode=7)
    assert hash(one) == hash(make_environment("CartPole-v1", max_steps=7.0))
    assert one != make_environment("CartPole-v1")
    assert one != make_environment("CartPole-positions", max_steps=7)


def test_constants_are_those_of_the_step() -> None:
    plain = make_environment("CartPole-v1")
    state, _ = plain.reset(jax.random.key(0))
    state = state._replace(theta=jnp.float32(0.1))

    def speed(**constants: Any) -> float:
        environment = make_environment("CartPole-v1", **constants)
        return float(environment.step(state, jnp.int32(0), jax.random.key(0)).state.theta_dot)

    for changed in ({"gravity": 20.0}, {"masspole": 0.5}, {"length": 1.0}, {"force_mag": 5.0}):
        assert speed(**changed) != speed()
    wide = make_environment("MountainCar-v0", max_position=0.7)
    assert wide.observation.bounds[1][0] == np.float32(0.7)
    free = make_environment("Pendulum-v1", observation_bounds="none")
    assert free.observation == ff.Box(shape=(3,))


def test_truncated_episode_restarts_and_keeps_its_last_observation() -> None:
    env = batch(make_environment("CartPole-v1", max_steps=3), range(4), 4)
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    step = jax.jit(env.step)
    for t in range(3):
        # Alternating pushes keep the pole up for three steps.
        state, timestep = step(state, (jnp.arange(4) + t) % 2)
        assert bool(jnp.all(timestep.done == (t == 2)))
    assert not timestep.terminated.any()
    assert timestep.truncated.all()
    assert bool(jnp.all(jnp.any(timestep.obs != timestep.next_obs, axis=1)))
    # A new episode starts within 0.05 of the origin, and its state is the one observed.
    assert bool(jnp.all(jnp.abs(timestep.obs) <= 0.05))
    np.testing.assert_array_equal(timestep.obs[:, 0], state.inner.x)
    np.testing.assert_array_equal(state.inner.time, 0)
    np.testing.assert_array_equal(state.finished.episodes, 1)
    np.testing.assert_array_equal(state.finished.length_sum, 3)
    np.testing.assert_array_equal(state.finished.return_sum, 3.0)


def test_fallen_pole_terminates() -> None:
    env = batch(make_environment("CartPole-v1"), range(3), 3)

    def push_right(state: ff.EnvState, _: None):
        return env.step(state, jnp.ones(3, jnp.int32))

    @jax.jit
    def fall(key: jax.Array) -> ff.Timestep:
        return jax.lax.scan(push_right, env.reset(key)[0], None, length=15)[1]

    timesteps = fall(jax.random.key(0))
    assert bool(timesteps.terminated.any(axis=0).all())
    assert not timesteps.truncated.any()


def test_an_environment_does_not_depend_on_its_neighbours() -> None:
    environment = make_environment("CartPole-v1", max_steps=5)

    def run(ids: range) -> ff.Timestep:
        env = batch(environment, ids, 8)

        def step(state: ff.EnvState, _: None):
            return env.step(state, jnp.zeros(len(ids), jnp.int32))

        @jax.jit
        def steps(key: jax.Array) -> ff.Timestep:
            return jax.lax.scan(step, env.reset(key)[0], None, length=12)[1]

        return steps(jax.random.key(3))

    whole, first, second = run(range(8)), run(range(4)), run(range(4, 8))
    for all_envs, left, right in zip(*map(jax.tree.leaves, (whole, first, second)), strict=True):
        np.testing.assert_array_equal(all_envs, np.concatenate([left, right], axis=1))
    assert len(np.unique(whole.obs[0, :, 0])) == 8


def test_positions_are_what_is_left_without_velocities() -> None:
    whole, part = (make_environment(name) for name in ("CartPole-v1", "CartPole-positions"))
    key, seen = jax.random.key(0), np.array([0, 2])
    state, obs = whole.reset(key)
    np.testing.assert_array_equal(part.reset(key)[1], obs[seen])
    for t in range(30):
        one, other = (e.step(state, jnp.int32(t % 3 > 0), key) for e in (whole, part))
        np.testing.assert_array_equal(other.obs, one.obs[seen])
        for field in ("state", "reward", "terminated", "truncated"):
            assert getattr(one, field) == getattr(other, field)
        state = one.state
    assert part.observation.shape == (2,)
    np.testing.assert_array_equal(part.observation.bounds[1], whole.observation.bounds[1][seen])
    assert part != whole


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("CartPol-v1", {}, "Did you mean 'CartPole-v1'"),
        ("fragflow:Tagg", {}, "unknown environment of fragflow 'Tagg'. Did you mean 'Tag'"),
        ("gymnas:CartPole-v1", {}, "Did you mean 'gymnax'"),
        (
            "CartPole-v1",
            {"gravitation": 3},
            "unknown argument of CartPole-v1 'gravitation'. Did you mean 'gravity'",
        ),
        ("CartPole-positions", {"x": 1.0}, "argument of CartPole-positions 'x'"),
        ("Pendulum-v1", {"g": "fast"}, "g of Pendulum-v1 is 'fast': expected a number"),
        ("Pendulum-v1", {"g": True}, "g of Pendulum-v1 is True: expected a number"),
        ("Pendulum-v1", {"g": math.nan}, "g of Pendulum-v1 is nan: expected a number"),
        ("Acrobot-v1", {"max_steps": 0}, "max_steps of Acrobot-v1 is 0: expected a whole number"),
        ("Acrobot-v1", {"max_steps": 2.5}, "is 2.5: expected a whole number from 1"),
        ("Acrobot-v1", {"max_steps": math.inf}, "is inf: expected a whole number from 1"),
        (
            "MountainCar-v0",
            {"max_steps": 5, "max_episode_steps": 6},
            "max_episode_steps of MountainCar-v0 is another name of max_steps",
        ),
    ],
)
def test_wrong_names_are_told(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment(name, **arguments)


def test_every_name_is_ours() -> None:
    for name in names():
        assert library_of(name) == "fragflow"
        assert f"fragflow:{name}" in environment_names()
        assert make_environment(name).name == name


def test_no_library_of_others_is_imported() -> None:
    libraries = ("gymnax", "gymnasium", "matplotlib", "seaborn", "scipy.stats", "pandas")
    code = (
        "import sys; from fragflow.environments import make_environment; "
        f"make_environment('CartPole-v1'); print([m for m in {libraries} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
