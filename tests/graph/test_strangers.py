"""Programs of strangers: the wrong ones are refused, or made equal; the right ones are accepted."""

import functools
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.errors import ReplicaError, TraceError
from fragflow.policies import Deployment, named_policy
from fragflow.run import Experiment, Outcome, plan_run, run
from graph.strangers import WRONG, Program, Told
from graph.strangers_right import RIGHT
from graph.telling import files_named_in
from graph.toy import Drift

NUM_ENVS = 8
TIME = 4
"""as many as the environments of one of two replicas: sizes must not be taken for axes"""
ITERATIONS = 2
RTOL, ATOL = 1e-5, 1e-6
"""sums over replicas are added up in another order"""
ROLLOUTS = 4
"""with some, digits that are lost happen to be lost alike"""

Place = Literal["component", "glue"]
"""where a program runs: in a component of its own, or between the others"""

wrong = pytest.mark.parametrize("program", WRONG, ids=lambda p: p.name)
right = pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.name)


class State(NamedTuple):
    params: jax.Array
    memory: jax.Array
    env: Any
    obs: jax.Array


@dataclass(frozen=True)
class Stranger(ff.Algorithm):
    """A rollout, then what a program makes of it."""

    program: Program
    place: Place = "component"

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, t = env.reset(key)
        return State(jnp.array([0.3, -0.2, 0.1]), jnp.zeros(env.num_envs), env_state, t.obs)

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        def interact(carry: Any, _: None) -> Any:
            action = self.act(state.params, carry[1])
            env_state, t = env.step(carry[0], action)
            return (env_state, t.obs), (carry[1], action, t.reward, t.done)

        carry, rollout = lax.scan(interact, (state.env, state.obs), None, length=TIME)
        learn = self.learn if self.place == "component" else self.tell
        told = learn(env, state.params, state.memory, *rollout, clock.key)
        params = self.update(state.params, told if self.program.into == "params" else 0.1)
        memory = told if self.program.into == "memory" else state.memory
        metrics = {"told": told} if self.program.into == "metric" else {}
        return State(params, memory, *carry), metrics

    @ff.component("actor")
    def act(self, w: jax.Array, obs: jax.Array) -> jax.Array:
        return (obs @ w > 0).astype(jnp.int32)

    @ff.component("learner.update")
    def update(self, w: jax.Array, told: Any) -> jax.Array:
        return w + 0.1 * jnp.arcsinh(told)  # which large numbers do not saturate

    @ff.component("learner.tell")
    def learn(self, *given: Any) -> Any:
        return self.tell(*given)

    def tell(self, env: Any, w: Any, memory: Any, *rollout: Any) -> Any:
        return self.program.tell(given_to(env, w, memory, *rollout))


def given_to(env: ff.Environments, w: jax.Array, memory: jax.Array, *rollout: Any) -> Told:
    return Told(env, w, jnp.cos(jnp.arange(24.0) + jnp.sum(w)), memory, *rollout)


def experiment(program: Program, place: Place) -> Experiment:
    return Experiment(
        algorithm=Stranger(program, place),
        environment=Drift(),
        num_envs=NUM_ENVS,
        total_steps=ITERATIONS * TIME * NUM_ENVS,
        seed=5,
    )


def refusal(program: Program, workers: int, place: Place = "component") -> str | None:
    """Why the cut is refused; between components, other operations are found before the check."""
    try:
        plan_run(experiment(program, place), named_policy("gpu-only"), Deployment(workers=workers))
    except (ReplicaError, TraceError) as error:
        return str(error)
    return None


def trained(program: Program, workers: int, place: Place = "component") -> Outcome:
    return run(experiment(program, place), named_policy("gpu-only"), workers=workers)


def assert_same(one: Outcome, other: Outcome) -> None:
    def numbers(outcome: Outcome) -> Any:
        state = outcome.state
        return state.params, state.memory, state.obs, [dict(row.metrics) for row in outcome.rows]

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, RTOL, ATOL, equal_nan=False),
        numbers(one),
        numbers(other),
    )


class ByItself(ff.Environments):
    """Environments whose `map` has no mark: what is wanted here is what it computes."""

    def map(self, function: Any, *rows: Any) -> Any:
        return jax.vmap(function)(*rows)


@functools.cache
def naively(replicas: int) -> dict[str, np.ndarray]:
    """What replicas compute that nobody has checked, from some rollouts `[ROLLOUTS, ...]`.

    The compiler has no part in it.
    """
    reduce = {"mean": lax.pmean, "sum": lax.psum, "max": lax.pmax}
    programs = (*WRONG, *RIGHT)

    def parts(x: jax.Array, axis: int) -> jax.Array:
        return jnp.stack(jnp.split(x, replicas, axis))

    def all_told(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 5)
        obs = jax.random.normal(keys[0], (TIME, NUM_ENVS, 3)) + jnp.arange(3.0)
        action = jax.random.bernoulli(keys[1], 0.4, (TIME, NUM_ENVS)).astype(jnp.int32)
        reward = jax.random.normal(keys[2], (TIME, NUM_ENVS)) ** 2
        done = jax.random.bernoulli(keys[3], 0.2, (TIME, NUM_ENVS))

        def one(ids: Any, memory: Any, *rollout: Any) -> Any:
            env = ByItself(Drift(), ids, NUM_ENVS)
            told = given_to(env, jnp.array([0.3, -0.2, 0.1]), memory, *rollout, keys[4])
            return {program.name: program.tell(told) for program in programs}

        ids = jnp.arange(NUM_ENVS)
        rollout = [parts(x, 1) for x in (obs, action, reward, done)]
        told = jax.vmap(one, axis_name="replicas")(parts(ids, 0), parts(jnp.sin(ids), 0), *rollout)
        return {
            program.name: told[program.name][0 if program.into != "memory" else slice(None)]
            for program in programs
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fragflow.api.reduce.all_reduce",
            lambda how, leaves: [reduce[how](leaf, "replicas") for leaf in leaves],
        )
        # One program for all of them: compiling many takes longer.
        told = jax.jit(jax.vmap(all_told))(jax.random.split(jax.random.key(1), ROLLOUTS))
    return {name: np.reshape(value, (ROLLOUTS, -1)) for name, value in told.items()}


def line_blamed(message: str, program: Program) -> int | None:
    """The first line of the program that the message names."""
    lines, first = inspect.getsourcelines(program.tell)
    file = re.escape(Path(inspect.getfile(program.tell)).name)
    named = [int(line) for line in re.findall(rf"\b{file}:(\d+)", message)]
    return next((line for line in named if first <= line < first + len(lines)), None)


def test_every_cause_has_at_least_five_members() -> None:
    causes = [program.cause for program in WRONG]
    assert {cause: causes.count(cause) >= 5 for cause in causes} == dict.fromkeys("ABCDEFGH", True)
    assert sum(program.into == "metric" for program in WRONG) >= 5
    assert len(RIGHT) == 25


@wrong
def test_the_mistakes_are_mistakes(program: Program) -> None:
    whole, parts = naively(1)[program.name], naively(2)[program.name]
    assert np.all(np.isfinite([whole, parts]))
    assert not np.allclose(whole, parts, 10 * RTOL, 10 * ATOL)


@right
def test_the_right_programs_are_right(program: Program) -> None:
    whole, parts = naively(1)[program.name], naively(2)[program.name]
    np.testing.assert_allclose(whole, parts, RTOL, ATOL, equal_nan=False)


@wrong
@pytest.mark.parametrize(("place", "workers"), [("component", 2), ("component", 4), ("glue", 2)])
def test_mistakes_are_refused(program: Program, place: Place, workers: int) -> None:
    message = refusal(program, workers, place)
    if message is None:  # then the compiler must have made it right
        assert_same(trained(program, workers, place), trained(program, 1, place))
    elif program.lineless:
        assert "the metric told depends on how many environments" in message
    else:
        assert line_blamed(message, program) is not None, message
        assert files_named_in(message) == {Path(inspect.getfile(program.tell)).name}


@right
def test_right_programs_are_accepted(program: Program) -> None:
    if program.refused:
        assert re.search(program.refused, refusal(program, 2) or "")
    else:
        assert_same(trained(program, 2), trained(program, 1))
