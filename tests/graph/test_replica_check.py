"""What replicas would silently compute differently is refused, with the line that is to blame."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import fragflow as ff
from fragflow import ops
from fragflow._jax import source_line
from fragflow.errors import GraphError, ReplicaError, TraceError
from fragflow.graph.cut import cut
from fragflow.graph.probe.double_precision import in_double, wide
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import POLICIES, Deployment
from graph.toy import Drift, Toy

REPLICATED_LEARNERS = ("multi-learner", "gpu-only", "central")


def build(algorithm: Toy, policy: str, workers: int = 2):
    deployment = Deployment(workers=workers, learners=1)
    return cut(tracer(algorithm, Drift(), 8), POLICIES[policy], deployment)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_correct_algorithm_is_accepted(policy, workers):
    build(Toy(), policy, workers)


@pytest.mark.parametrize("policy", REPLICATED_LEARNERS)
def test_gradients_without_all_mean(policy):
    with pytest.raises(ReplicaError, match=r"params\.w|learner\.gradient") as error:
        build(Toy(reduce=lambda grads: grads), policy)
    assert "toy.py" in str(error.value)
    assert "all_mean" in str(error.value)


@pytest.mark.parametrize("policy", REPLICATED_LEARNERS)
def test_statistics_without_all_mean(policy):
    with pytest.raises(ReplicaError, match="one replica's environments") as error:
        build(Toy(centre=lambda returns: returns - returns.mean()), policy)
    assert "test_replica_check.py" in str(error.value)


@pytest.mark.parametrize("policy", REPLICATED_LEARNERS)
def test_clipping_before_the_mean(policy):
    def clip_first(grads):
        return ff.all_mean(jnp.clip(grads, -0.1, 0.1))

    with pytest.raises(ReplicaError, match="one replica"):
        build(Toy(reduce=clip_first), policy)


@pytest.mark.parametrize("policy", ["single-learner-coarse", "single-learner-fine"])
def test_one_learner_needs_no_all_mean(policy):
    build(Toy(reduce=lambda grads: grads, centre=lambda r: r - r.mean()), policy)


def test_one_replica_needs_no_all_mean():
    build(Toy(reduce=lambda grads: grads), "gpu-only", workers=1)


def test_a_mean_is_no_sum():
    with pytest.raises(ReplicaError, match="local mean, to which all_sum"):
        build(Toy(report=lambda r: ff.all_sum(r.mean())), "gpu-only")
    with pytest.raises(ReplicaError, match="local sum, to which all_mean"):
        build(Toy(report=lambda r: ff.all_mean(r.sum())), "gpu-only")


@pytest.mark.parametrize(
    "report",
    [
        lambda r: ff.all_sum(r.sum()),
        lambda r: ff.all_max(r.max()),
        lambda r: -ff.all_max(-r.min()),
        lambda r: ff.all_sum((r > 0).sum()),
        lambda r: ff.all_mean(r.mean(1)).sum(),
        lambda r: ff.all_mean(2.0 * r.mean() + 1.0),
        lambda r: ff.all_mean(jnp.einsum("tn,tn->", r, r) / r.size),
    ],
)
def test_sound_reductions_are_accepted(report):
    build(Toy(report=report), "gpu-only")


def test_metrics_must_be_reduced():
    with pytest.raises(ReplicaError, match="metric reward"):
        build(Toy(report=lambda r: r.mean()), "gpu-only")
    with pytest.raises(ReplicaError, match="metric reward still has the environment axis"):
        build(Toy(report=lambda r: r[0]), "gpu-only")


def test_metrics_that_count_are_refused_at_their_line():
    counts = (
        lambda r: ff.all_mean(r.mean()) * r.shape[1],
        lambda r: jnp.float32(r.size) + 0.0 * ff.all_mean(r.mean()),
        lambda r: r[0],
    )
    for count in counts:
        with pytest.raises(ReplicaError, match=r"\(at .*test_replica_check\.py:\d+"):
            build(Toy(report=count), "gpu-only")


def test_a_shared_key_where_env_keys_belongs():
    def shared(env, key):
        return jax.random.normal(key, (env.num_envs, 3))

    with pytest.raises(ReplicaError, match=r"env\.keys") as error:
        build(Toy(disturb=shared), "gpu-only")
    assert "test_replica_check.py" in str(error.value)


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (lambda env, r: jnp.sort(r, axis=1), "sorts along the environment axis"),
        (lambda env, r: jnp.cumsum(r, axis=1), "accumulates along the environment axis"),
        (lambda env, r: r[:, ::-1], "reverses the environment axis"),
        (lambda env, r: jnp.roll(r, 1, axis=1), "environment axis"),
        (lambda env, r: r.at[:, 0].set(0.0), "environment axis|in one place"),
        (lambda env, r: r - r[:, :1], "environment axis|environments"),
        (lambda env, r: r * jnp.arange(env.num_envs), "numbers a replica's environments"),
        (lambda env, r: r / env.num_envs, "how many environments"),
        (lambda env, r: r @ jnp.ones((env.num_envs, env.num_envs)), "environment"),
    ],
)
def test_mixing_environments(between, message):
    with pytest.raises(ReplicaError, match=message):
        build(Toy(between=between), "gpu-only")


def test_time_may_be_mixed():
    build(Toy(between=lambda env, r: jnp.cumsum(jnp.flip(jnp.sort(r, 0), 0), 0)), "gpu-only")


def test_structure_that_depends_on_num_envs():
    def grows(env, rewards):
        for _ in range(env.num_envs):
            rewards = rewards * 0.5
        return rewards

    with pytest.raises(TraceError, match="structure depends on num_envs") as error:
        build(Toy(between=grows), "single-learner-coarse")
    assert "test_replica_check.py" in str(error.value)


def test_a_condition_around_one_fragment_just_works():
    class Sometimes(Toy):
        def update(self, w, grads):
            change = super().update
            return lax.cond(grads.sum() > 0, lambda: change(w, grads), lambda: w)

    build(Sometimes(), "single-learner-coarse")


@pytest.mark.parametrize("kind", ["while", "cond"])
def test_a_loop_or_condition_across_fragments_is_refused(kind):
    class Across(Toy):
        def update(self, w, grads):
            def both(w):
                keys = jax.random.split(jax.random.key(0), 1)
                action = self.act(w, jnp.ones((1, 3)), keys)
                return Toy.update(self, w, grads + 0.0 * action.sum())

            if kind == "cond":
                return lax.cond(grads.sum() > 0, both, lambda w: w, w)
            return lax.while_loop(lambda w: w.sum() > 1e6, both, w)

    with pytest.raises(GraphError, match=f"the {kind} at .*test_replica_check.py") as error:
        build(Across(), "single-learner-coarse")
    assert "Only lax.scan can be cut" in str(error.value)


def smoothed(rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution along the second axis of `[rows, length]`."""
    numbers = ("NWC", "WIO", "NWC")
    wide = rows[:, :, None]
    return lax.conv_general_dilated(wide, kernel, (1,), "SAME", dimension_numbers=numbers)[..., 0]


def kernel_gradient(rewards: jax.Array) -> jax.Array:
    kernel = jnp.full((2, 1, 1), 0.5)
    return jax.grad(lambda k: jnp.mean(jnp.square(smoothed(rewards.T, k))))(kernel).sum()


def test_convolutions_of_rows_and_their_gradients_are_followed():
    kernel = jnp.full((2, 1, 1), 0.5)
    build(Toy(between=lambda env, rewards: smoothed(rewards.T, kernel).T), "gpu-only")
    with pytest.raises(ReplicaError, match="convolves environments with one another"):
        build(Toy(between=lambda env, rewards: smoothed(rewards, kernel)), "gpu-only")
    build(Toy(report=lambda rewards: ff.all_mean(kernel_gradient(rewards))), "gpu-only")
    with pytest.raises(ReplicaError):
        build(Toy(report=kernel_gradient), "gpu-only")


def rings(rewards: jax.Array, method: str) -> jax.Array:
    """`[T, N]`: in every environment's row, what falls on one place is combined there."""
    places = jnp.array([0, 2, 0, 1])

    def one(row: jax.Array) -> jax.Array:
        places_here = (places + (row > 0)) % len(row)
        return getattr(jnp.zeros_like(row).at[places_here], method)(row)

    return jax.vmap(one, in_axes=1, out_axes=1)(rewards)


@pytest.mark.parametrize("method", ["set", "max", "min", "add"])
def test_rows_may_be_written_into_at_places_of_their_own(method):
    build(Toy(between=lambda env, rewards: rings(rewards, method)), "gpu-only")


@pytest.mark.parametrize("method", ["set", "max", "min"])
def test_one_table_that_all_environments_write_into_is_refused(method):
    def table(rewards: jax.Array) -> jax.Array:
        places = (rewards[0] > 0).astype(jnp.int32)
        return getattr(jnp.zeros(2).at[places], method)(rewards[0]).sum()

    with pytest.raises(ReplicaError, match="in one place"):
        build(Toy(report=table), "gpu-only")


def test_no_line_of_ours_stands_for_a_user_s():
    """What the compiler itself adds has no line; what our operations add has their caller's."""

    def line_of(function):
        (eqn, *_) = jax.make_jaxpr(function)(jnp.zeros(3, jnp.float16)).jaxpr.eqns
        return source_line(eqn)

    with in_double():
        assert line_of(wide) == ""
    assert "test_replica_check.py" in line_of(lambda x: x + 1)
    assert "test_replica_check.py" in line_of(lambda x: ops.standardise(x))
