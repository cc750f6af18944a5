"""Observations of environments on the host stay within their bounds, or the run ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fragflow as ff
from fragflow.environments import make_environment
from fragflow.environments.libraries import gymnasium
from fragflow.environments.on_host.gymnasium_spaces import space_of
from fragflow.errors import ConfigError, EnvironmentFault
from fragflow.runtime.host_environments.observation_bounds import SLACK, Range
from fragflow.runtime.host_environments.pool import HostPlayer
from fragflow.tools.checks.contract import sample

INF = float("inf")
COUNT = 4


@dataclass
class DriverSource:
    """Observations as told: zero, but `value` in `entry` of environment 2 at step `at`."""

    observation: Any
    value: Any = 0
    entry: tuple[int, ...] = ()
    at: int = 0
    dtype: Any = None
    name = "script"
    action = ff.Discrete(n=2)
    has_mask = False
    draws_apart = True

    def open(self, ids: Any) -> "DriverSource":
        self.steps = 0
        return self

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self._obs()

    def step(self, action: np.ndarray) -> ff.HostStep:
        self.steps += 1
        obs, no = self._obs(), np.zeros(COUNT, bool)
        return ff.HostStep(obs, obs, np.zeros(COUNT, np.float32), no, no)

    def _obs(self) -> np.ndarray:
        space = self.observation
        obs = np.zeros((COUNT, *space.shape), space.dtype)
        if self.steps == self.at:
            obs[(2, *self.entry)] = self.value
            obs = obs.astype(self.dtype or space.dtype)
        return obs

    def close(self) -> None:
        pass


def play(script: DriverSource) -> None:
    player = HostPlayer(script, COUNT)
    player.reset(range(COUNT))
    for _ in range(script.at + 1):
        player.step(np.zeros(COUNT, np.int32))


UNIT = ff.Box(shape=(2,), low=-1.0, high=1.0)
HALF = ff.Box(shape=(3,), low=(0.0, -INF, -2.0), high=(INF, 5.0, 2.0))
BYTE = ff.Box(shape=(2,), dtype="uint8", low=0, high=3)
GRID = ff.Box(shape=(2, 2), low=(0.0, 1.0, 2.0, -3.0), high=(9.0, 1.0, 9.0, 9.0))


@pytest.mark.parametrize("at", [0, 1, 1000])
@pytest.mark.parametrize(
    ("space", "entry", "value", "said"),
    [
        (UNIT, (1,), 1.001, r"entry \[1\] of it is 1.00\d*, outside of -1 to 1"),
        (UNIT, (0,), -7.5, r"entry \[0\] of it is -7.5, outside of -1 to 1"),
        (HALF, (0,), -0.5, r"entry \[0\] of it is -0.5, outside of 0 to inf"),
        (HALF, (1,), 5.1, r"entry \[1\] of it is 5.\d*, outside of -inf to 5"),
        (HALF, (2,), 3.0, r"entry \[2\] of it is 3.0, outside of -2 to 2"),
        (BYTE, (0,), 4, r"entry \[0\] of it is 4, outside of 0 to 3"),
        (ff.Discrete(n=3), (), 3, "it is 3, outside of 0 to 2. .*declare more choices"),
        (ff.Discrete(n=3), (), -1, "it is -1, outside of 0 to 2"),
        (ff.MultiDiscrete(counts=(2, 9)), (0,), 2, r"entry \[0\] of it is 2, outside of 0 to 1"),
    ],
)
def test_an_observation_out_of_range_is_a_fault(space, entry, value, said, at):
    where = f"script: environment 2 returned an observation from .* at step {at} that"
    with pytest.raises(EnvironmentFault, match=f"{where} is out of range: {said}") as fault:
        play(DriverSource(space, value, entry, at))
    if isinstance(space, ff.Box):
        assert "declare wider bounds in its observation space" in str(fault.value)


@pytest.mark.parametrize(
    ("space", "entry", "value"),
    [
        (UNIT, (1,), 1.0),
        (UNIT, (1,), 1.0 + 2 * SLACK * 0.9),  # rounding
        (HALF, (0,), 1e30),
        (HALF, (1,), -1e30),
        (BYTE, (1,), 3),
        (ff.Discrete(n=3), (), 2),
        (ff.Box(shape=(2,), dtype="int32"), (0,), -(2**31)),
    ],
)
def test_what_is_in_range_or_a_rounding_beyond_it_is_not(space, entry, value):
    play(DriverSource(space, value, entry, at=1))


@pytest.mark.parametrize("space", [UNIT, HALF, ff.Box(shape=(3,))])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_named_as_such(space, value):
    for entry in range(space.shape[0]):
        with pytest.raises(
            EnvironmentFault, match="2 returned NaN or infinity from step at step 1"
        ):
            play(DriverSource(space, value, (entry,), at=1))


@pytest.mark.parametrize("at", [0, 1000])
def test_another_type_is_a_fault(at):
    method = "step" if at else "reset"
    said = rf"float64\[4, 2\] from {method} at step {at}: expected float32\[4, 2\]"
    with pytest.raises(EnvironmentFault, match=said):
        play(DriverSource(UNIT, at=at, dtype=np.float64))


def test_bounds_of_several_axes_are_those_of_each_entry():
    bounds = Range.of(GRID, (2, 2, 2))
    assert bounds is not None
    good = np.array([[[0, 1], [2, -3]], [[9, 1], [9, 9]]], np.float32)
    assert bounds.holds(good)
    bad = good.copy()
    bad[1, 1, 0] = 1.9
    breach = bounds.breach(bad)
    assert breach is not None
    assert (breach.row, breach.words) == (1, "entry [1, 0] of it is 1.9, outside of 2 to 9")


@pytest.mark.parametrize(
    "space",
    [
        ff.Box(shape=(2,)),
        ff.Box(shape=(2,), dtype="uint8", low=0, high=255),
        ff.Box(shape=(2,), dtype="int32"),
        ff.Box(shape=(2,), low=-float(np.finfo(np.float32).max)),
        ff.Box(shape=(2,), dtype="bool", low=0, high=1),
    ],
)
def test_bounds_that_say_nothing_are_not_looked_at(space):
    assert Range.of(space, (COUNT, 2)) is None


def test_libraries_words_for_unbounded():
    import gymnasium as gym

    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    low, high = np.array([tiny, -most, -1], np.float32), np.array([most, most, 1], np.float32)
    assert space_of("x", "observations", gym.spaces.Box(low, high)) == ff.Box(
        shape=(3,), low=(-INF, -INF, -1.0), high=(INF, INF, 1.0)
    )
    # EnvPool declares those of its lander between the smallest positive and the largest number.
    assert make_environment("envpool:LunarLander-v3").observation == ff.Box(shape=(8,))


def test_bounds_can_be_declared_away(monkeypatch):
    declared = make_environment("gymnasium:Pendulum-v1")
    assert declared.observation.low == (-1.0, -1.0, -8.0)
    free = make_environment("gymnasium:Pendulum-v1", observation_bounds="none")
    assert free.observation == ff.Box(shape=(3,))
    assert free.action == declared.action
    with pytest.raises(ConfigError, match=r"observation_bounds 'nil'.*Known: declared, none"):
        make_environment("gymnasium:Pendulum-v1", observation_bounds="nil")
    monkeypatch.setattr(gymnasium, "LEAVE_BOUNDS", ("Pendulum",))
    assert make_environment("gymnasium:Pendulum-v1").observation == ff.Box(shape=(3,))


@pytest.mark.parametrize(
    "name",
    [
        *("gymnasium:CartPole-v1", "gymnasium:Acrobot-v1", "gymnasium:Pendulum-v1"),
        *("gymnasium:MountainCar-v0", "gymnasium:FrozenLake-v1", "gymnasium:HalfCheetah-v5"),
        *("envpool:CartPole-v1", "envpool:HalfCheetah-v4", "envpool:LunarLander-v3"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # MuJoCo warns of itself
def test_well_known_environments_keep_their_bounds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo leaves its log
    environment = make_environment(name)
    player = HostPlayer(environment, COUNT)
    rng = np.random.default_rng(0)
    player.reset(range(COUNT))
    for _ in range(300):
        player.step(sample(environment.action, rng, COUNT))
    player.close()
