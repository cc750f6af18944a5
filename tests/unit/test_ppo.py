"""PPO as one program: it runs, it learns, and it refuses what cannot work."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fragflow.api as ff
from fragflow import ops
from fragflow._jax import Jaxpr, component_of, inner_jaxprs
from fragflow.algorithms import algorithm_class
from fragflow.algorithms.ppo import PPO, State
from fragflow.environments import make_environment
from fragflow.errors import ConfigError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import Deployment, named_policy

SMALL = PPO(rollout_length=8, epochs=2, minibatches=2, hidden=(8,))
METRICS = {
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
}


def environments(name: str, num_envs: int) -> ff.Environments:
    return ff.Environments(make_environment(name), jnp.arange(num_envs), num_envs)


def iterate(
    algorithm: PPO, name: str, num_envs: int, iterations: int
) -> tuple[State, State, ff.Metrics]:
    """The state before and after, and the metrics of every iteration."""
    env = environments(name, num_envs)

    def step(state: State, i: jax.Array):
        clock = ff.Clock(
            key=jax.random.fold_in(jax.random.key(1), i),
            iteration=i,
            env_steps=i * num_envs * algorithm.rollout_length,
            progress=i / iterations,
        )
        return algorithm.step(env, state, clock)

    state = jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0))
    steps = jnp.arange(iterations, dtype=jnp.int32)
    return state, *jax.jit(lambda state: jax.lax.scan(step, state, steps))(state)


def test_an_iteration_changes_every_parameter() -> None:
    before, after, metrics = iterate(SMALL, "Pendulum-v1", num_envs=4, iterations=2)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert set(metrics) == METRICS
    assert all(np.isfinite(value).all() for value in metrics.values())
    for old, new in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        assert not np.array_equal(old, new)


@pytest.mark.optimised
def test_it_learns_to_balance_a_pole() -> None:
    _, state, metrics = iterate(PPO(), "CartPole-v1", num_envs=4, iterations=30)
    assert all(np.isfinite(value).all() for value in metrics.values())
    episodes = state.env_state.finished
    # A random policy balances it for about 22 steps.
    assert float(episodes.length_sum.sum() / episodes.episodes.sum()) > 40.0


def glue(jaxpr: Jaxpr) -> list[str]:
    """Everything down to component boundaries, in order."""
    lines = []
    for eqn in jaxpr.eqns:
        component = component_of(eqn)
        lines.append(component or eqn.primitive.name)
        if component is None:
            lines += [line for inner in inner_jaxprs(eqn) for line in glue(inner)]
    return lines


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_program_is_the_same_for_any_number_of_environments(name: str) -> None:
    def program(num_envs: int) -> list[str]:
        env = environments(name, num_envs)
        state = jax.eval_shape(lambda key: SMALL.init(env, key), jax.random.key(0))
        clock = ff.Clock(jax.random.key(1), jnp.int32(0), jnp.int32(0), jnp.float32(0.0))
        return glue(jax.make_jaxpr(lambda s, c: SMALL.step(env, s, c))(state, clock).jaxpr)

    lines = program(3)
    assert {line for line in lines if "." in line} == {
        "environment.step",
        "learner.value",
        "learner.advantages",
        "learner.gradient",
        "learner.update",
        "learner.track",
    }
    assert program(1) == program(2) == lines


def test_the_policy_acts_greedily_unless_it_explores() -> None:
    params = ops.MLPActorCritic(SMALL.hidden).init(
        jax.random.key(0), ff.Box(shape=(4,)), ff.Discrete(n=2)
    )

    @jax.jit
    @jax.vmap
    def actions(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        greedy, _ = SMALL.policy(params, jnp.ones(4), None, key)
        exploring, _ = SMALL.policy(params, jnp.ones(4), None, key, explore=True)
        return greedy, exploring

    greedy, exploring = actions(jax.random.split(jax.random.key(1), 50))
    assert len(np.unique(greedy)) == 1
    assert len(np.unique(exploring)) == 2


def test_continuous_actions_are_bounded_for_the_environment_only() -> None:
    env = environments("Pendulum-v1", 64)

    @jax.jit
    def act(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        params = ops.MLPActorCritic(SMALL.hidden).init(key, env.observation, env.action)
        actor = params["actor"] | {"log_std": jnp.full(1, 2.0)}
        return SMALL.act(actor, None, jnp.zeros((64, 3)), env.keys(key), env.action)

    action, bounded, log_prob = act(jax.random.key(1))
    assert float(jnp.abs(action).max()) > 2.0
    np.testing.assert_array_equal(bounded, jnp.clip(action, -2.0, 2.0))
    assert log_prob.shape == (64,)


def test_steps_at_which_nothing_happened_do_not_count() -> None:
    """Neither for the policy, nor for the critic, nor for the entropy; nor for any statistic."""
    random = np.random.default_rng(0)
    obs = random.normal(size=(8, 3, 4)).astype(np.float32)
    numbers = random.normal(size=(4, 8, 3)).astype(np.float32)
    mask = np.ones((8, 3), bool)
    mask[4, 0] = False
    no = np.zeros((8, 3), bool)
    params = ops.MLPActorCritic(SMALL.hidden).init(
        jax.random.key(0), ff.Box(shape=(4,)), ff.Discrete(n=2)
    )
    fields: tuple[Any, ...] = (obs, no.astype(np.int32), numbers[0], obs, numbers[1], ~no, no, mask)
    rollout = ops.Rollout(*fields)
    other = rollout._replace(
        obs=jnp.where(mask[..., None], obs, 5.0),
        log_prob=jnp.where(mask, rollout.log_prob, 1.0),
        reward=jnp.where(mask, rollout.reward, 50.0),
    )

    @jax.jit
    def learnt(rollout: ops.Rollout) -> Any:
        scale, value = ops.ReturnScale.of_nothing(), jnp.zeros((8, 3))
        advantage, target, mean_square = SMALL.advantages(rollout, value, value, scale)
        seen = (rollout.obs, rollout.action, rollout.log_prob)
        batch = ops.PPOBatch(*seen, advantage, target, rollout.mask)
        return SMALL.gradient(params, batch, jnp.arange(8)), mean_square

    found, same = learnt(rollout), learnt(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, same)
    counted = learnt(other._replace(mask=None))[0][0]
    assert not np.allclose(
        jax.tree.leaves(counted["critic"])[0], jax.tree.leaves(found[0][0]["critic"])[0], rtol=1e-2
    )


@dataclass(frozen=True)
class WithScale(PPO):
    def weights(self, state: State) -> Any:
        return state.params | {"scale": state.return_scale}


@dataclass(frozen=True)
class WithNews(PPO):
    def weights(self, state: State) -> Any:
        return state.params | {"news": np.zeros(3)}


def test_weights_are_a_part_of_the_state() -> None:
    def labels(algorithm: PPO) -> set[str]:
        """Those leaves of the state that a trained agent acts with."""
        source = tracer(algorithm, make_environment("CartPole-v1"), 4)
        program = cut(source, named_policy("gpu-only"), Deployment()).program
        return {program.labels[value].split(".")[0] for value in program.params}

    assert ff.Algorithm().weights({"params": 1.0, "obs": 2.0}) == 1.0
    assert labels(SMALL) == {"params"}
    assert labels(replace(SMALL, normalise_observations=True)) == {"params", "obs_stats"}
    assert labels(WithScale(rollout_length=8)) == {"params", "return_scale"}
    with pytest.raises(TraceError, match=r"WithNews.weights returned something that is not in"):
        labels(WithNews(rollout_length=8))


@dataclass(frozen=True)
class FlaxNetwork:
    """Somebody else's modules, split into pytrees at the edge."""

    def _modules(self) -> tuple[nnx.Module, nnx.Module]:
        return nnx.Linear(4, 2, rngs=nnx.Rngs(0)), nnx.Linear(4, 1, rngs=nnx.Rngs(1))

    def init(self, key: jax.Array, observation: ff.Space, action: ff.Space) -> dict[str, Any]:
        del key, observation, action
        actor, critic = (nnx.to_pure_dict(nnx.state(module)) for module in self._modules())
        return {"actor": actor, "critic": critic}

    def policy(self, actor: Any, obs: jax.Array) -> ops.Distribution:
        return ops.Categorical(self._apply(0, actor, obs))

    def value(self, critic: Any, obs: jax.Array) -> jax.Array:
        return self._apply(1, critic, obs)[..., 0]

    def _apply(self, which: int, params: Any, obs: jax.Array) -> jax.Array:
        graph, state = nnx.split(self._modules()[which])
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(obs)


def test_any_network_that_is_a_pytree_will_do() -> None:
    algorithm = PPO(rollout_length=4, minibatches=2, network=FlaxNetwork())
    _, state, metrics = jax.eval_shape(lambda: iterate(algorithm, "CartPole-v1", 2, 1))
    assert set(metrics) == METRICS
    assert state.params["critic"]["kernel"].shape == (4, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"minibatches": 3}, "minibatches = 3 does not divide rollout_length = 128"),
        ({"rollout_length": 0}, "rollout_length = 0: expected at least 1"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0: expected above 0"),
        ({"learning_rate": float("nan")}, "learning_rate = nan"),
        ({"gamma": 1.5}, "gamma = 1.5: expected between 0 and 1"),
        ({"entropy_coef": -0.1}, "entropy_coef = -0.1: expected 0 or more"),
        ({"hidden": (64, 0)}, "hidden"),
    ],
)
def test_impossible_hyperparameters_are_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(**wrong)


def test_algorithms_are_found_by_name() -> None:
    assert algorithm_class("PPO") is PPO
    with pytest.raises(ConfigError, match="Did you mean 'ppo'"):
        algorithm_class("pppo")
