"""The gymnax adapter: its contract, and what `Environments` makes of it."""

import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow.environments import environment_names, gymnax, make_environment
from fragflow.errors import ConfigError


def batch(environment: ff.Environment, ids: range, total: int) -> ff.Environments:
    return ff.Environments(environment, jnp.arange(ids.start, ids.stop), total)


def test_spaces_are_ours() -> None:
    cartpole = make_environment("CartPole-v1")
    assert cartpole.action == ff.Discrete(n=2)
    assert isinstance(cartpole.observation, ff.Box)
    assert cartpole.observation.shape == (4,)
    assert cartpole.observation.bounds[1][1] == math.inf
    pendulum = make_environment("gymnax:Pendulum-v1")
    assert pendulum.action == ff.Box(shape=(1,), low=-2.0, high=2.0)


def test_reset_and_step_keep_the_contract() -> None:
    environment = make_environment("CartPole-v1")
    assert isinstance(environment, ff.Environment)
    state, obs = environment.reset(jax.random.key(0))
    assert obs.shape == (4,)
    step = environment.step(state, jnp.int32(1), jax.random.key(1))
    assert jax.tree.structure(step.state) == jax.tree.structure(state)
    assert float(step.reward) == 1.0
    assert not step.terminated
    assert not step.truncated


def test_environments_of_equal_settings_are_equal() -> None:
    one = make_environment("CartPole-v1", max_steps_in_episode=7)
    assert one == make_environment("CartPole-v1", max_steps_in_episode=7)
    assert hash(one) == hash(make_environment("CartPole-v1", max_steps_in_episode=7))
    assert one != make_environment("CartPole-v1")


def test_truncated_episode_restarts_and_keeps_its_last_observation() -> None:
    env = batch(make_environment("CartPole-v1", max_steps_in_episode=3), range(4), 4)
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


def test_names_are_gymnaxs() -> None:
    from gymnax.registration import registered_envs

    assert list(gymnax.NAMES) == list(registered_envs)


def test_positions_are_what_is_left_without_velocities() -> None:
    whole, part = (make_environment(name) for name in ("CartPole-v1", "CartPole-positions"))
    key, action = jax.random.key(0), jnp.int32(1)
    state, obs = whole.reset(key)
    _, seen = part.reset(key)
    np.testing.assert_array_equal(seen, obs[np.array([0, 2])])
    np.testing.assert_array_equal(
        part.step(state, action, key).obs, whole.step(state, action, key).obs[np.array([0, 2])]
    )
    assert part.observation.shape == (2,)
    assert part.observation.bounds[1][1] == whole.observation.bounds[1][2]
    assert part != whole
    assert part in (make_environment("gymnax:CartPole-positions"),)
    shorter = make_environment("CartPole-positions", max_steps_in_episode=3)
    assert part != shorter
    with pytest.raises(ConfigError, match="argument of CartPole-v1"):
        make_environment("CartPole-positions", gravitation=1.0)


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
    environment = make_environment("CartPole-v1", max_steps_in_episode=5)

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


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("CartPol-v1", {}, "Did you mean 'CartPole-v1'"),
        ("gymnas:CartPole-v1", {}, "Did you mean 'gymnax'"),
        ("CartPole-v1", {"max_steps": 3}, "Did you mean 'max_steps_in_episode'"),
    ],
)
def test_wrong_names_are_told(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment(name, **arguments)


def test_unsupported_spaces_are_told() -> None:
    class Dict:
        """Named like gymnax's."""

    with pytest.raises(ConfigError, match=r"Maze has observations of type Dict"):
        gymnax._space("Maze", "observations", Dict())


def test_names_can_be_made() -> None:
    assert "gymnax:CartPole-v1" in environment_names()
    assert make_environment("gymnax:Catch-bsuite").observation.shape == (10, 5)


def test_drawing_libraries_are_not_imported() -> None:
    code = (
        "import sys; from fragflow.environments import make_environment; "
        "make_environment('CartPole-v1'); "
        "print([m for m in ('matplotlib', 'seaborn', 'scipy.stats', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_deferred_module_loads_at_its_first_use() -> None:
    assert gymnax._Deferred("json").dumps([1]) == "[1]"
