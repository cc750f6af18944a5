"""IPPO and MAPPO: teams, masks, memory, value normalisation."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragflow.api as ff
from fragflow import ops
from fragflow.algorithms import mappo
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.mappo import MAPPO
from fragflow.environments import make_environment
from fragflow.errors import ConfigError
from fragflow.policies import named_policy
from fragflow.run import Experiment, run

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries of others warn of themselves

SMALL: dict[str, Any] = {"rollout_length": 16, "epochs": 2, "minibatches": 2, "hidden": (16,)}
ALGORITHMS: dict[str, ff.Algorithm] = {
    "ippo": IPPO(**SMALL),
    "mappo": MAPPO(**SMALL, chunk_length=8),
    "mappo with memory": MAPPO(**SMALL, chunk_length=8, units=8),
}

ON_HOST = "pettingzoo:simple_tag_v3"
GAMES: dict[str, tuple[Any, str]] = {
    "compiled": (make_environment("Tag", agents=4, taggers=3, neighbours=2), "gpu-only"),
    "on the host": (ON_HOST, "single-learner-coarse"),
    "JaxMARL's": ("jaxmarl:MPE_simple_tag_v3", "gpu-only"),
}
"""of three taggers and a runner, and a policy that they run under"""
OFTEN = [("compiled", "ippo"), ("on the host", "ippo")]
"""tried every time"""


def marks(pair: tuple[str, str]) -> Any:
    if pair[0] == "JaxMARL's":
        return pytest.mark.legacy
    return () if pair in OFTEN else pytest.mark.slow


def train(algorithm: ff.Algorithm, env: Any, iterations: int = 2, **settings: Any) -> Any:
    environment = make_environment(env) if isinstance(env, str) else env
    experiment = Experiment(
        algorithm=algorithm, environment=environment, num_envs=4, total_steps=iterations * 64
    )
    return run(experiment, named_policy(settings.pop("policy", "gpu-only")), **settings)


@pytest.mark.parametrize(
    ("game", "name"),
    [pytest.param(*pair, marks=marks(pair)) for pair in itertools.product(GAMES, ALGORITHMS)],
)
def test_every_team_has_networks_of_its_own(name: str, game: str) -> None:
    env, policy = GAMES[game]
    state = train(ALGORITHMS[name], env, policy=policy).state
    assert len(state.params["actor"]) == len(state.params["critic"]) == 2
    np.testing.assert_array_equal(state.params["team"], [0, 0, 0, 1])
    taggers, runners = (jax.tree.leaves(actor) for actor in state.params["actor"])
    assert not np.array_equal(taggers[0], runners[0])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_acts_for_every_agent_by_its_own_team(name: str) -> None:
    algorithm = ALGORITHMS[name]
    params = train(algorithm, ON_HOST, policy="single-learner-coarse").state.params
    obs = jax.random.normal(jax.random.key(0), (4, 16))
    key = jax.random.key(1)
    action, memory = algorithm.policy(params, obs, None, key)
    assert action.shape == (4,)
    swapped = params | {"actor": params["actor"][::-1]}
    other, _ = algorithm.policy(swapped | {"team": 1 - params["team"]}, obs, None, key)
    np.testing.assert_array_equal(action, other)
    again, _ = algorithm.policy(params, obs, memory, key, explore=True)
    assert again.shape == (4,)


class Cornered:
    """Two agents; the second ends at the third step, all end at the sixth. Who does 1 gets 1."""

    name = "Cornered"
    num_agents = 2
    observation = ff.Box(shape=(2,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), self.see(jnp.int32(0))

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> ff.Step:
        alive = jnp.array([True, state < 3])
        reward = jnp.where(alive & (action == 1), 1.0, 0.0)
        state = state + 1
        terminated = jnp.array([state >= 6, state >= 3])
        return ff.Step(state, self.see(state), reward, terminated, jnp.zeros(2, bool), mask=alive)

    def see(self, state: jax.Array) -> jax.Array:
        return jnp.eye(2) * (1.0 + 0.1 * state)


def noise(shape: tuple[int, ...], dead: tuple[int, int]) -> dict[str, Any]:
    """Fields of a batch, in which one agent of one environment is dead all the time."""
    rng = np.random.default_rng(0)
    names = ("log_prob", "reward", "advantage", "target")
    fields: dict[str, Any] = {name: rng.normal(size=shape).astype(np.float32) for name in names}
    for name, size in {"obs": 16, "next_obs": 16, "joint": 64}.items():
        fields[name] = rng.normal(size=(*shape, size)).astype(np.float32)
    fields["action"] = rng.integers(0, 5, shape).astype(np.int32)
    for name in ("first", "terminated", "truncated"):
        fields[name] = np.zeros(shape, bool)
    fields["mask"] = np.ones(shape, bool)
    fields["mask"][(..., *dead)] = False
    fields["value"] = None
    return fields


def gradient(algorithm: Any, params: Any, fields: dict[str, Any]) -> Any:
    """From all that is in a batch with these fields."""
    fields = jax.tree.map(jnp.asarray, fields)

    def chosen(kind: Any) -> Any:
        return kind(**{name: fields[name] for name in kind._fields})

    if isinstance(algorithm, IPPO):
        return algorithm.gradient(params, chosen(ops.PPOBatch), jnp.arange(16), 16)[0]
    fields["batch"] = chosen(ops.PPOBatch)
    units = (algorithm.units, algorithm.units) if algorithm.units else (16, 64)
    memories = mappo.Memories(*(jnp.zeros((2, 4, 4, size)) for size in units))
    return algorithm.gradient(params, chosen(mappo.Chunks), memories, jnp.arange(2))[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_agents_that_have_ended_are_not_learnt_from(name: str) -> None:
    algorithm: Any = ALGORITHMS[name]
    params = train(algorithm, ON_HOST, policy="single-learner-coarse").state.params
    networks = ops.per_team({part: params[part] for part in ("actor", "critic")})[0]
    dead, alive = (2, 1), (2, 0)  # environment, agent
    fields = noise((16, 4, 4) if isinstance(algorithm, IPPO) else (2, 8, 4, 4), dead)
    before = gradient(algorithm, networks, fields)

    def gradient_with(row: tuple[int, int]) -> Any:
        changed = {k: fields[k].copy() for k in ("action", "advantage", "target")}
        for value in changed.values():
            value[(..., *row)] = 1
        return gradient(algorithm, networks, fields | changed)

    jax.tree.map(np.testing.assert_array_equal, gradient_with(dead), before)
    assert not np.array_equal(
        jax.tree.leaves(gradient_with(alive)["actor"])[0], jax.tree.leaves(before["actor"])[0]
    )


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_agents_learn_what_pays(name: str) -> None:
    algorithm = ALGORITHMS[name]
    params = train(algorithm, Cornered(), iterations=150).state.params
    obs = Cornered().see(jnp.int32(1))
    action, _ = algorithm.policy(params, obs, None, jax.random.key(0))
    np.testing.assert_array_equal(action, [1, 1])


@pytest.mark.parametrize("algorithm", [IPPO(**SMALL), MAPPO(**SMALL, chunk_length=8)])
def test_one_agent_is_for_ppo(algorithm: ff.Algorithm) -> None:
    with pytest.raises(ConfigError, match="use PPO"):
        train(algorithm, "CartPole-v1")


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="whole chunks"):
        MAPPO(rollout_length=16, chunk_length=5)
    with pytest.raises(ConfigError, match="units = -1: expected 0 or more"):
        MAPPO(units=-1)
    with pytest.raises(ConfigError, match="does not divide rollout_length"):
        IPPO(rollout_length=10, minibatches=4)


@pytest.mark.parametrize("past_limits", [False, True])
@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_a_time_limit_is_an_end_unless_asked_otherwise(kind: Any, past_limits: bool) -> None:
    chunks: dict[str, Any] = {"chunk_length": 2} if kind is MAPPO else {}
    algorithm: Any = kind(rollout_length=2, minibatches=1, past_limits=past_limits, **chunks)
    cut = jnp.array([[[False]], [[True]]])  # [T, N, A]
    zeros, ones = jnp.zeros((2, 1, 1)), jnp.ones((2, 1, 1))
    never = jnp.zeros_like(cut)
    seen = jnp.zeros((2, 1, 1, 3))
    fields: tuple[Any, ...] = (seen, zeros, zeros, seen, zeros, never, cut, None)
    values = (zeros, 10.0 * ones)
    if kind is IPPO:
        scale = ops.ReturnScale.of_nothing()
        batch, _ = algorithm.advantages(ops.Rollout(*fields), values, scale)
        target = batch.target[-1]
    else:
        rollout, values = jax.tree.map(lambda x: x[None], (ops.Rollout(*fields), values))
        scale = ops.ValueScale.of_nothing()
        others = (cut[None], seen[None], values, scale, slice(None), jnp.int32(0))
        learnt, scale = algorithm.advantages(rollout, *others)
        target = scale.restored(learnt.batch.target)[0, -1]
    np.testing.assert_allclose(target, 9.9 if past_limits else 0.0, rtol=1e-6)


def test_a_joint_observation_starts_with_ones_own() -> None:
    obs = jnp.arange(2 * 3 * 2, dtype=jnp.float32).reshape(2, 3, 2)
    joint = ops.joint_observations(obs)
    assert joint.shape == (2, 3, 6)
    np.testing.assert_array_equal(joint[0, 0], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(joint[0, 1], [2, 3, 4, 5, 0, 1])
    np.testing.assert_array_equal(joint[1, 2], [10, 11, 6, 7, 8, 9])


def test_targets_are_in_the_scale_that_the_critic_is_read_with_next() -> None:
    algorithm = MAPPO(rollout_length=2, chunk_length=2, minibatches=1)
    key, zeros, never = jax.random.key(0), jnp.zeros((1, 2, 4, 3)), jnp.zeros((1, 2, 4, 3), bool)
    seen = jnp.zeros((1, 2, 4, 3, 5))
    reward = 50.0 + 7.0 * jax.random.normal(key, zeros.shape)
    ends = (jnp.ones_like(never), never, None)
    rollout = ops.Rollout(seen, zeros, zeros, seen, reward, *ends)
    first = (never, seen, (zeros, zeros), ops.ValueScale.of_nothing(), slice(None), jnp.int32(0))
    chunks, scale = algorithm.advantages(rollout, *first)
    target = chunks.batch.target
    np.testing.assert_allclose(scale.restored(target), reward, rtol=1e-5)
    np.testing.assert_allclose([jnp.mean(target), jnp.std(target)], [0, 1], atol=1e-3)


def test_a_value_scale_counts_in_standard_deviations() -> None:
    returns = np.random.default_rng(0).normal(-40.0, 7.0, 10_000)
    scale = ops.ValueScale.of_nothing().moved(jnp.asarray(returns), None, jnp.int32(0), 0.95)
    normal = scale.normalised(jnp.asarray(returns))
    np.testing.assert_allclose([np.mean(normal), np.std(normal)], [0.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(scale.restored(normal), returns, rtol=1e-4)
