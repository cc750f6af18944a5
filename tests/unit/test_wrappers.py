"""Wrappers against Gymnasium's own, numpy against JAX, and what every library does at an end."""

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import wrappers as theirs

import fragflow as ff
from fragflow.api.host import HostStep
from fragflow.environments import make_environment
from fragflow.environments.wrapping.wrappers import FrameStack, ScaleActions, wrap
from fragflow.errors import ConfigError
from fragflow.ops.networks.images import channel_axis, convolution_init, convolve
from unit.wrapping import Glide, OnHost, assert_same, play


def in_gymnasium(
    make: Callable[[], gymnasium.Env], steps: int, actions: Any
) -> tuple[np.ndarray, list[HostStep]]:
    """The same as `play`, by Gymnasium alone."""
    rows = []
    for i in range(actions.shape[1]):
        env = make()
        first = env.reset(seed=i + 1)[0]
        answers = []
        for t in range(steps):
            successor, reward, terminated, truncated, _ = env.step(actions[t, i])
            seen = env.reset()[0] if terminated or truncated else successor
            answers.append((seen, successor, reward, terminated, truncated and not terminated))
        rows.append((first, answers))
        env.close()
    firsts = np.stack([first for first, _ in rows])
    joined = [
        [np.stack(leaves) for leaves in zip(*row, strict=True)]
        for row in zip(*(answers for _, answers in rows), strict=True)
    ]
    return firsts, [HostStep(o, n, r.astype(np.float32), a, b) for o, n, r, a, b in joined]


class TestAgainstGymnasium:
    """Step by step with the same seeds and actions."""

    def test_frame_stack(self):
        actions = np.random.default_rng(1).integers(0, 2, (80, 3)).astype(np.int32)

        def make() -> gymnasium.Env:
            stacked = theirs.FrameStackObservation(gymnasium.make("CartPole-v1"), 4)
            return theirs.FlattenObservation(stacked)

        environment = make_environment("gymnasium:CartPole-v1", vectorization="sync")
        ours = play(wrap(environment, frame_stack=4), 80, actions=actions)
        assert sum(int(a.terminated.sum()) for a in ours[1]) > 3
        assert_same(ours, in_gymnasium(make, 80, actions))

    @pytest.mark.parametrize("vectorization", ["sync", "process"])
    def test_time_limit(self, vectorization):
        actions = np.random.default_rng(1).integers(0, 2, (60, 3)).astype(np.int32)

        def make() -> gymnasium.Env:
            return theirs.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 12)

        environment = make_environment("gymnasium:CartPole-v1", vectorization=vectorization)
        ours = play(wrap(environment, time_limit=12), 60, actions=actions)
        assert any(a.terminated.any() for a in ours[1])
        assert any(a.truncated.any() for a in ours[1])
        assert_same(ours, in_gymnasium(make, 60, actions))

    def test_scaled_actions(self):
        actions = np.random.default_rng(1).uniform(-1, 1, (40, 3, 1)).astype(np.float32)

        def make() -> gymnasium.Env:
            one, low = np.ones(1, np.float32), np.full(1, -1, np.float32)
            return theirs.RescaleAction(gymnasium.make("Pendulum-v1"), low, one)

        environment = wrap(make_environment("gymnasium:Pendulum-v1"), scale_actions=True)
        assert environment.action == ff.Box(shape=(1,), low=-1.0, high=1.0)
        assert_same(play(environment, 40, actions=actions), in_gymnasium(make, 40, actions), 1e-4)

    def test_clipped_actions(self):
        actions = np.random.default_rng(1).normal(0, 3, (40, 3, 1)).astype(np.float32)

        def make() -> gymnasium.Env:
            return theirs.ClipAction(gymnasium.make("Pendulum-v1"))

        environment = wrap(make_environment("gymnasium:Pendulum-v1"), clip_actions=True)
        assert environment.action == ff.Box(shape=(1,))
        assert_same(play(environment, 40, actions=actions), in_gymnasium(make, 40, actions))

    def test_bounds_that_are_not_symmetric(self):
        low, high = np.array([-0.37, 2.0], np.float32), np.array([2.11, 3.5], np.float32)
        space = ff.Box(shape=(2,), low=tuple(low.tolist()), high=tuple(high.tolist()))
        action = np.random.default_rng(0).uniform(-1, 1, (100, 2)).astype(np.float32)
        affine = low + (action + 1) * (high - low) / 2
        for array in (action, jnp.asarray(action)):
            scaled = ScaleActions().act(space, array)
            np.testing.assert_allclose(scaled, affine, rtol=1e-5, atol=1e-6)
        beyond = ScaleActions().act(space, np.array([[-9.0, 9.0]], np.float32))
        np.testing.assert_array_equal(beyond, [[low[0], high[1]]])


class TestOnBothSides:
    """One environment, wrapped as a JAX program and as a batch on the host."""

    @pytest.mark.parametrize(
        "named",
        [
            {"frame_stack": 1},
            {"frame_stack": 3},
            {"scale_actions": True},
            {"clip_actions": True},
            {"scale_rewards": 0.1},
            {"clip_actions": True, "frame_stack": 2, "scale_rewards": 3},
            {"frame_stack": 2, "scale_actions": True},
        ],
    )
    def test_vectors(self, named):
        compiled, on_host = wrap(Glide(), **named), wrap(OnHost(Glide()), **named)
        assert compiled.observation == on_host.observation
        assert compiled.action == on_host.action
        one, other = play(compiled, 40), play(on_host, 40)
        assert sum(int(a.terminated.sum()) for a in one[1]) > 3
        assert_same(one, other, rtol=1e-5)

    @pytest.mark.parametrize(
        ("shape", "stacked"),
        [((4, 5), (4, 5, 3)), ((6, 6, 2), (6, 6, 6)), ((2, 6, 6), (6, 6, 6)), ((), (3,))],
    )
    def test_images_stay_bytes_and_gain_channels(self, shape, stacked):
        environment = wrap(Glide(shape), frame_stack=3)
        assert environment.observation == ff.Box(shape=stacked, dtype="uint8", low=0, high=255)
        one = play(environment, 30)
        assert one[0].shape == (3, *stacked)
        assert one[0].dtype == np.uint8
        assert_same(one, play(wrap(OnHost(Glide(shape)), frame_stack=3), 30))

    def test_the_stack_at_the_end_of_an_episode(self):
        raw = play(Glide(), 40)
        stacked = play(wrap(Glide(), frame_stack=2), 40)
        before = np.concatenate([raw[0]] * 2, -1)
        np.testing.assert_array_equal(stacked[0], before)
        for plain, pair in zip(raw[1], stacked[1], strict=True):
            successor = np.concatenate([before[:, 2:], plain.next_obs], -1)
            np.testing.assert_allclose(pair.next_obs, successor, rtol=1e-6)
            fresh = np.concatenate([plain.obs] * 2, -1)
            before = np.where(plain.terminated[:, None], fresh, successor)
            np.testing.assert_allclose(pair.obs, before, rtol=1e-6)

    def test_a_time_limit_cuts_and_keeps_the_true_last_observation(self):
        raw, cut = play(Glide(), 9), play(wrap(Glide(), time_limit=3), 9)
        alive = ~np.any([a.terminated for a in raw[1][:3]], 0)
        assert alive.any()
        for t in range(3):
            np.testing.assert_array_equal(cut[1][t].next_obs, raw[1][t].next_obs)
            np.testing.assert_array_equal(cut[1][t].terminated, raw[1][t].terminated)
        np.testing.assert_array_equal(cut[1][2].truncated & alive, alive)
        assert not any((a.terminated & a.truncated).any() for a in cut[1])
        assert (cut[1][2].obs != cut[1][2].next_obs).any(1)[alive].all()
        assert np.abs(cut[1][2].obs)[alive].max() <= 0.5  # where episodes start

    def test_the_first_wrapper_is_innermost(self):
        limits = ff.Box(shape=(2,), low=-1.0, high=1.0)
        inner = wrap(Glide(), scale_actions=True, clip_actions=True)
        assert inner.action == ff.Box(shape=(2,))
        assert inner.environment.action == limits
        with pytest.raises(ConfigError, match="scale_actions needs bounds"):
            wrap(Glide(), clip_actions=True, scale_actions=True)


class SignOfReward(ff.Wrapper):
    def reward(self, reward):
        return reward.__array_namespace__().sign(reward)


def test_a_wrapper_of_ones_own_works_on_both_sides():
    for environment in (Glide(), OnHost(Glide())):
        _, answers = play(ff.wrap(environment, SignOfReward(), scale_rewards=0.5), 5)
        assert all((a.reward == 0.5).all() for a in answers)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("envpool:CartPole-v1", {}), ("gymnasium:CartPole-v1", {"vectorization": "vector"})],
)
def test_a_stack_restarts_when_the_first_observation_comes(name, arguments):
    environment = make_environment(name, **arguments)
    first, plain = play(environment, 60)
    stack, stacked = play(wrap(environment, frame_stack=3), 60)
    frames = [deque([row] * 3, 3) for row in first]
    np.testing.assert_array_equal(stack, [np.concatenate(f) for f in frames])
    starts = 0
    for raw, ours in zip(plain, stacked, strict=True):
        assert raw.mask is not None
        for i, f in enumerate(frames):
            starts += not raw.mask[i]
            f.extend([raw.next_obs[i]] * (1 if raw.mask[i] else 3))
        np.testing.assert_array_equal(ours.next_obs, [np.concatenate(f) for f in frames])
        assert ours.obs is ours.next_obs
        np.testing.assert_array_equal(ours.mask, raw.mask)
    assert starts > 3


class TestTimeLimits:
    """On the host, only those who start episodes can cut them."""

    @pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4"])
    def test_ours_on_envpool_is_its_own(self, name):
        own = make_environment(f"envpool:{name}", max_episode_steps=12, threads=2)
        ours = wrap(make_environment(f"envpool:{name}", threads=2), time_limit=12)
        one, other = play(own, 60, count=5), play(ours, 60, count=5)
        assert any(a.truncated.any() for a in one[1])

        def any_end(step: HostStep) -> HostStep:
            # Where a pole falls in the very last step, EnvPool says that it was cut.
            none = np.zeros_like(step.terminated)
            return step._replace(terminated=none, truncated=step.terminated | step.truncated)

        assert_same((one[0], list(map(any_end, one[1]))), (other[0], list(map(any_end, other[1]))))

    def test_where_envpool_ignores_its_own(self):
        ours = wrap(make_environment("envpool:CliffWalking-v1"), time_limit=4)
        _, answers = play(ours, 14)
        ends = np.array([a.truncated for a in answers])
        np.testing.assert_array_equal(np.flatnonzero(ends.all(1)), [3, 8, 13])
        np.testing.assert_array_equal([a.mask for a in answers][4], [False] * 3)
        assert ends.sum() == 9

    def test_a_vector_implementation(self):
        environment = make_environment("gymnasium:CartPole-v1", vectorization="vector")
        _, answers = play(wrap(environment, time_limit=5), 11)
        np.testing.assert_array_equal(answers[4].truncated, [True] * 3)
        np.testing.assert_array_equal(answers[10].truncated, [True] * 3)

    def test_only_the_shortest_counts(self):
        for name in ("gymnasium:CartPole-v1", "envpool:CartPole-v1"):
            environment = make_environment(name, max_episode_steps=6)
            _, answers = play(wrap(environment, time_limit=9, frame_stack=2), 6)
            assert answers[5].truncated.all()
            _, answers = play(wrap(environment, frame_stack=2, time_limit=3), 6)
            assert answers[2].truncated.all()

    @pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves
    def test_agents_are_cut_together(self):
        own = make_environment("pettingzoo:simple_spread_v3", max_cycles=4)
        ours = wrap(make_environment("pettingzoo:simple_spread_v3"), time_limit=4)
        assert_same(play(own, 10), play(ours, 10))
        compiled = wrap(make_environment("Tag", agents=3, taggers=1, neighbours=1), time_limit=4)
        _, answers = play(compiled, 9)
        assert [bool(a.truncated.all()) for a in answers] == [t % 4 == 3 for t in range(9)]

    @pytest.mark.filterwarnings("ignore")
    def test_every_agent_has_its_stack(self):
        environment = make_environment("pettingzoo:simple_spread_v3", max_cycles=4)
        raw, stacked = play(environment, 9), play(wrap(environment, frame_stack=2), 9)
        assert stacked[0].shape == (3, 3, 36)
        before = np.concatenate([raw[0]] * 2, -1)
        for plain, pair in zip(raw[1], stacked[1], strict=True):
            successor = np.concatenate([before[..., 18:], plain.next_obs], -1)
            np.testing.assert_array_equal(pair.next_obs, successor)
            over = np.all(plain.terminated | plain.truncated, 1)
            before = np.where(over[:, None, None], np.concatenate([plain.obs] * 2, -1), successor)
            np.testing.assert_array_equal(pair.obs, before)

    def test_who_cannot_be_cut_is_named(self):
        with pytest.raises(
            ConfigError, match=r"glide runs on the host .* with_time_limit\(steps\)"
        ):
            wrap(OnHost(Glide()), frame_stack=2, time_limit=5)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"frame_stak": 2}, r"unknown wrapper 'frame_stak'. Did you mean 'frame_stack'\?"),
        ({"frame_stack": 0}, "frame_stack is 0: expected a whole number of at least 1"),
        ({"frame_stack": True}, "frame_stack is True: expected a whole number"),
        ({"time_limit": 2.5}, "time_limit is 2.5: expected a whole number"),
        ({"scale_rewards": float("inf")}, "scale_rewards is inf: expected a number above 0"),
        ({"scale_rewards": "big"}, "scale_rewards is 'big': expected a number above 0"),
        ({"scale_actions": 2}, "scale_actions is 2: expected true or false"),
    ],
)
def test_bad_values_are_refused(named, said):
    with pytest.raises(ConfigError, match=said):
        wrap(Glide(), **named)


def test_what_does_not_fit_is_refused():
    cart, lake = make_environment("CartPole-v1"), make_environment("gymnasium:FrozenLake-v1")
    with pytest.raises(ConfigError, match=r"for continuous actions, but actions are Discrete"):
        wrap(cart, scale_actions=True)
    with pytest.raises(ConfigError, match=r"for continuous actions, but actions are Discrete"):
        wrap(cart, clip_actions=True)
    with pytest.raises(ConfigError, match=r"for numbers, but observations are Discrete"):
        wrap(lake, frame_stack=2)
    with pytest.raises(ConfigError, match=r"cannot wrap 'CartPole-v1': .* `wrap` of ff.train"):
        wrap("CartPole-v1", frame_stack=2)  # pyright: ignore[reportArgumentType]
    assert wrap(cart, scale_actions=False) is cart


def test_channels_are_found_however_many_there_are():
    for shape in ((84, 84, 4), (10, 10, 16), (210, 160, 3), (5, 5, 5)):
        assert channel_axis(shape) == -1
    for shape in ((4, 84, 84), (16, 10, 10), (3, 210, 160)):
        assert channel_axis(shape) == -3
    layers, features = convolution_init(jax.random.key(0), (10, 10, 16))
    assert layers[0]["kernel"].shape == (3, 3, 16, 16)
    assert convolve(layers, jnp.zeros((2, 10, 10, 16))).shape == (2, features)


def test_bounds_are_stacked_with_what_they_bound():
    space = ff.Box(shape=(2,), low=(-1.0, -8.0), high=(1.0, 8.0))
    stacked = FrameStack(2).observation(space)
    bytes_without = ff.Box(shape=(4, 4, 1), dtype="uint8")
    assert FrameStack(3).observation(bytes_without) == ff.Box(shape=(4, 4, 3), dtype="uint8")
    assert stacked == ff.Box(shape=(4,), low=(-1.0, -8.0) * 2, high=(1.0, 8.0) * 2)
