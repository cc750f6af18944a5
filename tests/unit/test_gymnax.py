"""The gymnax adapter, which is an extra: its contract, and what is said where gymnax is not."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow.environments import environment_names, library_of, make_environment
from fragflow.environments.libraries import gymnax
from fragflow.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves


@pytest.mark.parametrize("name", ["gymnax:CartPole-v1", "Catch-bsuite", "gymnax:Catch-bsuite"])
def test_without_gymnax_its_names_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == "gymnax"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gymnax", None)
    assert library_of(name) == "gymnax"
    with pytest.raises(ConfigError, match=r"need the package gymnax.*'fragflow\[gymnax\]'"):
        make_environment(name)
    assert library_of("CartPole-v1") == "fragflow"


def test_unsupported_spaces_are_told() -> None:
    class Dict:
        """Named like gymnax's."""

    with pytest.raises(ConfigError, match=r"Maze has observations of type Dict"):
        gymnax._space("Maze", "observations", Dict())


@pytest.mark.legacy
def test_spaces_are_ours() -> None:
    pendulum = make_environment("gymnax:Pendulum-v1")
    assert pendulum.action == ff.Box(shape=(1,), low=-2.0, high=2.0)
    assert make_environment("Catch-bsuite").observation.shape == (10, 5)


@pytest.mark.legacy
def test_names_are_gymnaxs() -> None:
    registration = importlib.import_module("gymnax.registration")
    assert list(gymnax.NAMES) == list(registration.registered_envs)
    assert "gymnax:CartPole-v1" in environment_names()


@pytest.mark.legacy
def test_its_cartpole_does_what_ours_does() -> None:
    theirs = make_environment("gymnax:CartPole-v1", max_steps_in_episode=20)
    ours = make_environment("CartPole-v1", max_steps=20)
    assert theirs != make_environment("gymnax:CartPole-v1")
    assert isinstance(theirs, ff.Environment)
    key = jax.random.key(0)
    (mine, obs), (state, its) = ours.reset(key), theirs.reset(key)
    np.testing.assert_array_equal(obs, its)
    b = None
    for t in range(20):
        a, b = ours.step(mine, jnp.int32(t % 2), key), theirs.step(state, jnp.int32(t % 2), key)
        mine, state = a.state, b.state
        np.testing.assert_allclose(a.obs, b.obs, rtol=1e-5, atol=1e-5)
        for name in ("reward", "terminated", "truncated"):
            assert getattr(a, name) == getattr(b, name)
    assert b is not None
    assert bool(b.truncated)


@pytest.mark.legacy
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": 3}, "Did you mean 'max_steps_in_episode'"),
        ({"gravity": "low"}, "gravity of CartPole-v1 is 'low': expected a number"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment("gymnax:CartPole-v1", **arguments)
    with pytest.raises(ConfigError, match="Did you mean 'CartPole-v1'"):
        make_environment("gymnax:CartPol-v1")
