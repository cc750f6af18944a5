"""Programs that two replicas would compute differently than one, by what lets them through.

Each is refused, at its own line; and their right neighbours are accepted, and run equal.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fragflow as ff
from fragflow.errors import ReplicaError, TraceError, UserCodeError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment
from fragflow.run import Experiment, run
from graph.telling import Telling, files_named_in, refusal
from graph.toy import Drift, OneUpdate


def doubled_if_many(t):
    """The same equations, wired differently."""
    s, c = jnp.sin(t.m), jnp.cos(t.m)
    if t.n > 6:
        s, c = c, s
    return 2 * s + c


def branches_by_number(t):
    branches = [lambda: t.m * 2.0, lambda: t.m * 3.0]
    return lax.cond(t.m > 0, *(branches if t.n > 6 else branches[::-1]))


def longer_for_more(t):
    y = t.m
    for _ in range(max(t.n - 4, 0)):
        y = y * 1.1
    return y


def time_first(t):
    return t.x[:, :, 0].reshape(-1)


def environments_first(t):
    return t.x[:, :, 0].swapaxes(0, 1).reshape(-1)


# What is traced for other numbers of environments than those that run.
OTHER_SIZES = {
    "the first four": lambda t: ff.all_mean(jnp.mean(t.x[:, :4])),
    "at least six": lambda t: ff.all_sum(jnp.sum(t.x) / max(t.n, 6)),
    "at most six": lambda t: ff.all_mean(jnp.mean(t.x) * min(t.n, 6)),
    "another factor for many": lambda t: ff.all_mean(jnp.mean(t.x)) * (1.5 if t.n > 5 else 1.0),
    "another function for many": lambda t: (jnp.sin if t.n > 5 else jnp.cos)(t.m),
    "a remainder": lambda t: t.m * (t.n % 5),
    "a loop for some": longer_for_more,
}
# What differs between the traces beside the primitives.
OTHER_EQUATIONS = {
    "wiring": doubled_if_many,
    "a power": lambda t: t.m ** (t.n // 2),
    "a length": lambda t: lax.scan(lambda c, _: (c * 1.01, None), t.m, None, length=t.n)[0],
    "a direction": lambda t: lax.cumsum(t.weights, reverse=t.n > 6)[1],
    "branches": branches_by_number,
    "a number for a value": lambda t: t.m * jnp.exp(t.m if t.n > 6 else 0.5),
    "in a row's work": lambda t: ff.all_mean(
        jnp.mean(lax.map(lambda row: row * t.n, t.x.swapaxes(0, 1)))
    ),
    "a program inside": lambda t: lax.reduce(
        t.weights, jnp.float32(0), lambda a, b: a + t.n * b, (0,)
    ),
    "in a function of an entry": lambda t: t.weights.at[0].apply(lambda entry: entry * t.n)[0],
    "in a function of rows' entries": lambda t: ff.all_mean(
        jnp.mean(t.x.at[..., 0].apply(lambda entry: entry * t.n))
    ),
    "an axis": lambda t: jnp.argmax(t.weights.reshape(4, 6), axis=t.n // 8)[0],
}
# Lengths that depend on the number of environments, and are no rows.
LENGTHS = {
    "of a slice": lambda t: jnp.sum(jnp.flip(t.weights)[: 2 * t.n]),
    "of a slice with rows": lambda t: ff.all_sum(jnp.sum(t.weights[: t.n] * t.x[0, :, 0])),
    "of numbers": lambda t: jnp.mean(jnp.cos(jnp.arange(2.0 * t.n))),
    "and one more": lambda t: jnp.mean(jnp.zeros(t.n + 1).at[0].set(t.m)),
    "of noise": lambda t: jnp.mean(jax.random.normal(t.key, (t.n // 2,))),
    "of a repetition": lambda t: jnp.max(jnp.cumsum(jnp.tile(t.weights[:3], t.n))),
    "of a product": lambda t: jnp.sum(jnp.ones((t.n, 3)) @ t.weights[:3]),
}
# Numbers that scale with that of environments, where scale is not all.
COUNTS = {
    "sorted": lambda t: jnp.sort(jnp.arange(3.0) * t.n)[1],
    "beside a mean": lambda t: ff.all_mean(jnp.stack([jnp.mean(t.x), jnp.float32(t.n)])),
    "in a power": lambda t: jnp.exp(-t.n * t.m),
    "as an index": lambda t: t.weights[jnp.int32(t.n) + (t.m > 9)],
    "compared": lambda t: jnp.argmax(jnp.stack([t.m, t.n * 0.1])),
    "multiplied up": lambda t: jnp.prod(t.weights[:2] / t.n),
    "rounded": lambda t: jnp.floor(t.n * t.m * 5.0),
    "a maximum of two": lambda t: jnp.maximum(t.n * t.m, t.m),
    "filled up": lambda t: jnp.take(t.weights * t.n, jnp.array([1, 99]), fill_value=1.0) / t.n,
    "in a loop": lambda t: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), t.m / t.n),
    "solved in whole numbers": lambda t: (
        lax.custom_linear_solve(lambda v: 3 * v, jnp.arange(3) * t.n, lambda _, c: c / 3) / t.n
    ),
}
# Sums of a replica's own, where sums of parts are not all.
PARTIALS = {
    "filled up": lambda t: ff.all_sum(
        jnp.take(jnp.sum(t.x, (0, 1)), jnp.array([1, 9]), mode="fill", fill_value=1.0)
    ),
    "sorted": lambda t: ff.all_sum(jnp.sort(jnp.sum(t.x, (0, 1)))[0]),
    "multiplied up": lambda t: ff.all_mean(jnp.cumprod(jnp.mean(t.x, (0, 1)))),
    "the largest": lambda t: ff.all_mean(lax.top_k(jnp.mean(t.x, (0, 1)), 1)[0]),
    "padded": lambda t: ff.all_sum(jnp.pad(jnp.sum(t.x, (0, 1)), 1, constant_values=1.0)),
    "beside a number": lambda t: ff.all_sum(jnp.concatenate([jnp.sum(t.x, (0, 1)), jnp.ones(1)])),
    "a norm": lambda t: ff.all_mean(jnp.linalg.norm(jnp.mean(t.x, (0, 1)))),
    "sums of maxima": lambda t: ff.all_max(jnp.cumsum(jnp.max(t.x, (0, 1)))),
    "least of maxima": lambda t: ff.all_max(lax.cummin(jnp.max(t.x, (0, 1)))),
    "a function of an entry": lambda t: ff.all_mean(jnp.mean(t.x, (0, 1)).at[0].apply(jnp.exp)),
    "a function of a maximum": lambda t: ff.all_max(jnp.max(t.x, (0, 1)).at[0].apply(jnp.negative)),
    "logarithms": lambda t: ff.all_sum(lax.cumlogsumexp(jnp.sum(t.x, (0, 1)))),
}
# Casts and divisions that lose what a sum of parts needs.
CASTS = {
    "to a short integer": lambda t: ff.all_sum(jnp.sum(t.x, 0).mean(0).astype(jnp.int16)),
    "to an integer": lambda t: ff.all_sum(jnp.sum(t.x).astype(jnp.int32)),
    "to a truth": lambda t: ff.all_sum((10 * jnp.sum(t.x)).astype(bool).astype(jnp.float32)),
    "to a narrower type": lambda t: ff.all_mean(jnp.mean(t.x, (0, 1)).astype(jnp.bfloat16)),
    "of digits": lambda t: ff.all_mean(lax.reduce_precision(jnp.mean(t.x, (0, 1)), 5, 2)),
    "a sum in four bits": lambda t: ff.all_sum(
        jnp.sum((t.x > 0).astype(jnp.int4), (0, 1), dtype=jnp.int4).astype(jnp.float32)
    ),
    "a sum in two bits": lambda t: ff.all_sum(
        jnp.sum((t.x > 0).astype(jnp.uint2), (0, 1), dtype=jnp.uint2).astype(jnp.int32)
    ),
    "a maximum in four bits": lambda t: ff.all_max(
        jnp.max((4 * t.x).astype(jnp.int4), (0, 1)) + jnp.int4(5)
    ).astype(jnp.float32),
    "a minimum in four bits": lambda t: (
        -ff.all_max(-jnp.min(jnp.abs(4 * t.x).astype(jnp.uint4), (0, 1))).astype(jnp.float32)
    ),
    "from few bits": lambda t: ff.all_sum(
        jnp.sum((t.x > 0).astype(jnp.int8) * 100, dtype=jnp.int8).astype(jnp.float32)
    ),
    "of bytes to a complex number": lambda t: (
        ff.all_sum(jnp.sum(jnp.uint8(90) * (t.x > 0), dtype=jnp.uint8).astype(jnp.complex64)).real
    ),
    "of bytes in a product": lambda t: ff.all_sum(
        lax.dot(
            jnp.sum(jnp.uint8(90) * (t.x > 0), (0, 1), dtype=jnp.uint8)[None],
            jnp.ones((3, 1), jnp.uint8),
            preferred_element_type=jnp.float32,
        )
    ),
    "by division": lambda t: ff.all_sum(jnp.sum((t.x > 0).astype(jnp.int32)) // 3),
    "by rounding": lambda t: ff.all_sum(jnp.round(jnp.sum(t.x, (0, 1)))),
}
# Values that await one reduction, together with those that await another.
MEETINGS = {
    "a mean and a maximum": lambda t: ff.all_mean(jnp.mean(t.x) + jnp.max(t.x)),
    "chosen": lambda t: ff.all_mean(jnp.where(t.m > 0, jnp.mean(t.x), jnp.max(t.x))),
    "a sum and a mean": lambda t: ff.all_sum(jnp.sum(t.x) + jnp.mean(t.x)),
    "two maxima": lambda t: ff.all_max(jnp.max(t.x[..., 0]) + jnp.max(t.x[..., 1])),
    "a maximum and a minimum": lambda t: ff.all_max(jnp.stack([jnp.max(t.x), jnp.min(t.x)])),
    "a sum or a number": lambda t: ff.all_sum(jnp.where(t.m > 0, jnp.sum(t.x), 1.0)),
    "branches": lambda t: ff.all_sum(
        lax.cond(t.m > 0, lambda: jnp.sum(t.x), lambda: jnp.mean(t.x))
    ),
    "a count and a mean": lambda t: ff.all_mean(jnp.where(t.m > 0, jnp.mean(t.x), t.n * t.m)),
}
# Rows in one order, with rows in another.
ORDERS = {
    "a pattern": lambda t: ff.all_sum(
        # A period of four would be right for four environments, and for eight.
        jnp.sum(jnp.broadcast_to(jnp.arange(3.0), (t.n, 3)).reshape(-1) * t.x[:3, :, 0].reshape(-1))
    ),
    "a product": lambda t: ff.all_sum(time_first(t) @ environments_first(t)),
    "a choice": lambda t: ff.all_sum(
        jnp.sum(jnp.where(time_first(t) > 0, environments_first(t), 0.0))
    ),
    "columns": lambda t: ff.all_sum(
        jnp.sum(jnp.prod(jnp.stack([time_first(t), environments_first(t)], 1), 1))
    ),
    "rows of one matrix": lambda t: ff.all_mean(jnp.mean(jax.scipy.linalg.lu_factor(t.x[0])[0])),
    "indices": lambda t: ff.all_sum(
        jnp.sum(
            jnp.take_along_axis(
                jnp.stack([time_first(t)] * 2, 1) * jnp.array([1.0, 2.0]),
                (environments_first(t) > 0).astype(jnp.int32)[:, None],
                1,
            )
        )
    ),
    "places": lambda t: ff.all_sum(
        jnp.zeros(2).at[(time_first(t) > 0).astype(int)].add(environments_first(t))[0]
    ),
    "written": lambda t: ff.all_sum(
        jnp.sum(jnp.stack([time_first(t)] * 2, 1).at[:, 0].set(environments_first(t)).prod(1))
    ),
}
CAUSES = {
    "sizes": OTHER_SIZES,
    "equations": OTHER_EQUATIONS,
    "lengths": LENGTHS,
    "counts": COUNTS,
    "partials": PARTIALS,
    "casts": CASTS,
    "meetings": MEETINGS,
    "orders": ORDERS,
}
WRONG = [
    pytest.param(expression, id=f"{cause}: {name}")
    for cause, members in CAUSES.items()
    for name, expression in members.items()
]


@pytest.mark.parametrize("expression", WRONG)
def test_refused_at_its_own_line(expression):
    reason = refusal(expression)
    assert reason is not None
    assert files_named_in(reason) == {"test_sound.py"}


@pytest.mark.parametrize("cause", CAUSES)
def test_refused_outside_of_components(cause):
    for name, expression in list(CAUSES[cause].items())[:2]:
        reason = refusal(expression, "glue")
        assert reason is not None, name
        assert files_named_in(reason) == {"test_sound.py"}, name


def per_row_loop(t):
    def one(row):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + jnp.abs(c[1]), c[1] * 1.1), row)

    total, _ = jax.vmap(one)((t.x[0, :, 0], 1.0 + t.x[0, :, 1]))
    return ff.all_mean(jnp.mean(total))


def own_entries(t):
    which = (t.x[0, :, 0] > 0).astype(jnp.int32)
    return ff.all_mean(jnp.mean(t.x[1][jnp.arange(t.n), which]))


def own_places(t):
    which = (t.x[0, :, 0] > 0).astype(jnp.int32)
    return ff.all_mean(jnp.mean(t.x[1].at[jnp.arange(t.n), which].set(2.0)))


def solved(t):
    matrices = jnp.eye(3) + jnp.einsum("ni,nj->nij", t.x[0], t.x[0])
    return ff.all_mean(jnp.mean(jnp.linalg.solve(matrices, t.x[1][..., None])))


def mapped(t):
    """Everything is allowed, row by row, with values beside that all share."""
    return ff.all_mean(jnp.mean(t.env.map(lambda a, b: jnp.sort(a) @ b + t.m, t.x[0], t.x[1])))


def gradient_of_mapped(t):
    def loss(w):
        return jnp.mean(t.env.map(lambda row: jnp.sin(row @ w) ** 2, t.x[0]))

    return ff.all_mean(jax.grad(loss)(t.weights[:3]))


RIGHT = {
    "a mean": lambda t: ff.all_mean(jnp.mean(t.x)),
    "a sum over a count": lambda t: ff.all_sum(jnp.sum(t.x)) / ff.all_sum(jnp.float32(t.n)),
    "a mean of narrow rows": lambda t: ff.all_mean(jnp.mean(t.x.astype(jnp.bfloat16))),
    "a mean plus a number": lambda t: ff.all_mean(2.0 * jnp.mean(t.x) + 1.0),
    "a maximum plus a number": lambda t: ff.all_max(jnp.max(t.x) + t.m),
    "a maximum of maxima": lambda t: ff.all_max(
        jnp.maximum(jnp.max(t.x[..., 0]), jnp.max(t.x[..., 1]))
    ),
    "a transform of a sum": lambda t: jnp.abs(ff.all_sum(jnp.fft.fft(jnp.sum(t.x, (0, 1))).real)),
    "a padded sum": lambda t: ff.all_sum(jnp.pad(jnp.sum(t.x, (0, 1)), 1)),
    "a padded mean": lambda t: ff.all_mean(jnp.pad(jnp.mean(t.x, (0, 1)), 1, constant_values=1.0)),
    "one environment after the other": lambda t: ff.all_mean(
        jnp.mean(lax.map(lambda row: jnp.sort(row, 0), t.x.swapaxes(0, 1)))
    ),
    "linear algebra by environment": lambda t: ff.all_mean(
        jnp.mean(jnp.linalg.cholesky(jnp.einsum("tni,tnj->nij", t.x, t.x) + jnp.eye(3)))
    ),
    "a solution by environment": solved,
    "a loop that ends by environment": per_row_loop,
    "the row's own entry": own_entries,
    "the row's own place": own_places,
    "a function of rows' entries": lambda t: ff.all_mean(jnp.mean(t.x.at[..., 0].apply(jnp.exp))),
    "a number that all have": lambda t: ff.all_mean(jnp.uint8(200)).astype(jnp.float32),
    "env.map": mapped,
    "a gradient of env.map": gradient_of_mapped,
}


@pytest.mark.parametrize("expression", RIGHT.values(), ids=RIGHT)
def test_accepted(expression):
    assert refusal(expression) is None


@pytest.mark.slow
@pytest.mark.parametrize("expression", RIGHT.values(), ids=RIGHT)
def test_equal(expression):
    experiment = Experiment(
        algorithm=Telling(expression), environment=Drift(), num_envs=8, total_steps=3 * 32
    )
    whole, parts = (run(experiment, POLICIES["gpu-only"], workers=w).state.params for w in (1, 2))
    # bfloat16 has eight binary digits; such a number moves parameters by a hundredth, three times.
    rounding = 3 * 0.01 * 2**-8 if expression is RIGHT["a mean of narrow rows"] else 1e-7
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=rounding)


WRONG_MAPS = {
    "a reduction over replicas": lambda t: jnp.max(
        ff.all_max(jnp.max(t.env.map(lambda row: ff.all_mean(row), t.x[0])))
    ),
    "a number of environments": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda row: row * t.n, t.x[0]))
    ),
    "other rows": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda row: jnp.sin(row * t.x[1].mean()), t.x[0]))
    ),
    "one row for all": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda row: row * t.x[1, 0], t.x[0]))
    ),
    "one key for all": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda row: row, jax.random.normal(t.key, (t.n,))))
    ),
    "no mean": lambda t: jnp.mean(t.env.map(lambda row: row * 2, t.x[0])),
    "a table": lambda t: ff.all_mean(
        jnp.mean(t.env.map(lambda row: row * np.arange(t.n).sum(), t.x[0]))
    ),
}


@pytest.mark.parametrize("expression", WRONG_MAPS.values(), ids=WRONG_MAPS)
def test_what_env_map_may_not_use(expression):
    reason = refusal(expression)
    assert reason is not None
    assert files_named_in(reason) == {"test_sound.py"}


def test_what_xla_may_round_to_the_other_side_is_not_known():
    """The compiler computes constants with NumPy, whose last digits are others."""
    assert refusal(lambda t: ff.all_sum(jnp.floor(jnp.float32(t.n) + 0.5) * 0.1)) is None
    assert refusal(lambda t: ff.all_sum(jnp.floor(jnp.exp(jnp.log(jnp.float32(t.n))))))


def divided(algorithm, policy, workers=2, num_envs=8, learners=1, **options):
    deployment = Deployment(workers=workers, learners=learners)
    return cut(tracer(algorithm, Drift(), num_envs), POLICIES[policy], deployment, **options)


class SumOfGradients(OneUpdate):
    """Its gradients are sums over environments; what is sent for them announces a mean."""

    @ff.component("learner.gradient")
    def gradient(self, w, obs, actions, rewards):
        return jnp.einsum("tni,tn->i", obs, rewards)[:, None] * jnp.ones((1, 2))


def test_a_sum_that_is_reduced_as_a_mean_on_its_way():
    with pytest.raises(ReplicaError, match=r"local sum, to which all_mean is applied.*on its way"):
        divided(SumOfGradients(), "central")
    divided(SumOfGradients(reduce=ff.all_sum), "central")


class CountsItsRows(OneUpdate):
    """Sends how many environments a worker has to a learner that thinks it is the number of all."""

    def act(self, w, obs, keys):
        return super().act(w, obs, keys)

    def learn(self, w, seen, actions, rewards):
        return self.update(w, self.gradient(w, seen, actions, rewards) * self.count(rewards))

    @ff.component("actor.count")
    def count(self, rewards):
        return jnp.ones((rewards.shape[1], 2)).shape[0] * jnp.exp(0.0 * jnp.arange(1.0))[0]


def test_a_count_that_crosses_to_where_all_are():
    with pytest.raises(ReplicaError, match="how many environments a replica holds"):
        divided(CountsItsRows(), "single-learner-coarse")


class Reverses(Telling):
    """Gives each environment another one's observation."""

    def step(self, env, state, clock):
        state, metrics = super().step(env, state, clock)
        return state._replace(obs=state.obs[::-1]), metrics


@pytest.mark.parametrize("policy", ["gpu-only", "single-learner-coarse", "multi-learner"])
def test_the_error_is_the_cause_and_not_what_follows_from_it(policy):
    with pytest.raises(ReplicaError, match="reverses the environment axis") as error:
        divided(Reverses(lambda t: t.m), policy)
    assert "test_sound.py" in str(error.value)
    assert "fragflow/graph" not in str(error.value)


def test_one_replica_may_do_as_it_likes():
    def by_number(t):
        return jnp.mean(t.x[:, :4]) * t.n + longer_for_more(t) + doubled_if_many(t)

    assert refusal(by_number, policy="single-learner-coarse") is None
    assert refusal(by_number, workers=1) is None


@pytest.mark.parametrize("cause", ["counts", "meetings", "orders"])
def test_one_environment_for_each_replica(cause):
    """Two stand for one: JAX writes other equations where an axis has the length one."""
    assert refusal(RIGHT["a mean plus a number"], workers=8) is None
    reason = refusal(next(iter(CAUSES[cause].values())), workers=8)
    assert reason is not None
    assert files_named_in(reason) == {"test_sound.py"}


def test_every_number_of_environments_that_runs_is_compared():
    """Workers have two environments each, learners four: it is these that differ from eight."""

    class Halves(OneUpdate):
        @ff.component("learner.gradient")
        def gradient(self, w, obs, actions, rewards):
            return super().gradient(w, obs[:, :4], actions[:, :4], rewards[:, :4])

    with pytest.raises(ReplicaError, match="how many environments are here") as error:
        divided(Halves(), "environments", workers=4, learners=2)
    assert "test_sound.py" in str(error.value)
    graph = divided(OneUpdate(), "environments", workers=4, learners=2)
    assert {extent.envs for extent in graph.program.avals} == {8, 4, 2}


@pytest.mark.parametrize(("num_envs", "compared"), [(12, {12, 24, 8}), (16, {16, 8}), (4, {4, 8})])
def test_canonical_blocks_are_compared_too(num_envs, compared):
    graph = divided(OneUpdate(), "gpu-only", 1, num_envs, deterministic=True)
    assert {extent.envs for extent in graph.program.avals} == compared
    assert graph.row_kinds["state:obs"].is_cuttable


def test_one_program_with_one_worker_is_compared_with_nothing():
    assert {extent.envs for extent in divided(OneUpdate(), "gpu-only", 1).program.avals} == {8}


def test_names_of_environments_are_not_for_others():
    with pytest.raises(TraceError, match=r"'environment\.mine'.*env\.step"):
        ff.component("environment.mine")


class Model(ff.Algorithm):
    """Steps the environments inside a component of its own."""

    def init(self, env, key):
        return Telling(lambda t: t.m).init(env, key)

    def step(self, env, state, clock):
        env_state, t = env.step(*self.look(env, state))
        return state._replace(params=self.learn(state.params, t.obs), env=env_state, obs=t.obs), {}

    @ff.component("actor")
    def look(self, env, state):
        action = (state.obs @ state.params > 0).astype(jnp.int32)
        env_state, _ = env.step(state.env, action)
        return env_state, action

    @ff.component("learner.update")
    def learn(self, w, obs):
        return w + 0.01 * ff.all_mean(jnp.mean(obs, 0))


class Sorting(Drift):
    """One environment may do what a batch may not: no rule follows this."""

    def step(self, state, action, key):
        place = jnp.sort(lax.while_loop(lambda x: jnp.any(x > 1.5), lambda x: 0.9 * x, state))
        return super().step(place, action, key)


def test_what_environments_do_inside_is_not_read():
    assert refusal(RIGHT["a mean"], environment=Sorting()) is None
    source = tracer(Model(), Sorting(), 8)
    cut(source, POLICIES["gpu-only"], Deployment(workers=2, learners=1))


def test_what_cannot_be_traced_for_a_replica_says_so():
    """Eight is the number of all environments."""
    with pytest.raises(
        UserCodeError, match=r"for 4 of 8 environments: use env\.num_envs"
    ) as caught:
        refusal(lambda t: ff.all_mean(jnp.mean(t.x[0].reshape(8, 3))))
    assert "test_sound.py" in str(caught.value)
