"""What authors write who have not read the replica check, and get wrong.

Each is one function of a rollout, for one imagined device that has all environments. They are
sorted by what a check would have to overlook to let them through.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import fragflow as ff


class Told(NamedTuple):
    """What a program is given: T steps of N environments."""

    env: ff.Environments
    w: jax.Array
    """`[3]`: the parameters, of a linear value"""
    table: jax.Array
    """`[24]`: numbers that follow from the parameters, the same everywhere"""
    memory: jax.Array
    """`[N]`: what was kept of each environment"""
    obs: jax.Array
    """`[T, N, 3]`"""
    action: jax.Array
    """`[T, N]`: 0 or 1"""
    reward: jax.Array
    """`[T, N]`"""
    done: jax.Array
    """`[T, N]`"""
    key: jax.Array
    """one for the iteration, the same everywhere"""

    @property
    def n(self) -> int:
        return self.env.num_envs


Into = Literal["params", "memory", "metric"]


@dataclass(frozen=True)
class Program:
    tell: Callable[[Told], Any]
    into: Into
    """what becomes of it: parameters `[3]`, memory `[N]`, or a number to report"""
    cause: str = ""
    refused: str = ""
    """why it is refused, although it is right"""
    lineless: str = ""
    """why no line is named when it is refused"""

    @property
    def name(self) -> str:
        return f"{self.cause}{'-' * bool(self.cause)}{self.tell.__name__}"


WRONG: list[Program] = []


def wrong(cause: str, into: Into = "params", lineless: str = "") -> Any:
    made = partial(Program, into=into, cause=cause, lineless=lineless)
    return lambda tell: WRONG.append(made(tell)) or tell


# A: a number of environments decides, which a look at other numbers would not show.


@wrong("A")
def slower_with_large_batches(t: Told) -> Any:
    rate = 0.1 if t.n >= 8 else 0.3
    return rate * ff.all_mean(jnp.mean(t.obs, (0, 1)))


@wrong("A")
def last_environments_are_for_validation(t: Told) -> Any:
    trained = np.arange(t.n) < 6
    return ff.all_sum(jnp.sum(t.reward * trained))


@wrong("A")
def padded_to_a_tile_of_eight(t: Told) -> Any:
    padded = jnp.pad(t.reward, ((0, 0), (0, -t.n % 8)))
    return ff.all_mean(jnp.mean(padded))


@wrong("A")
def bootstrapped_heads_in_turn(t: Told) -> Any:
    heads = jax.nn.one_hot(jnp.arange(t.n) % 5, 5)
    return jnp.max(ff.all_sum(jnp.einsum("tn,nh->h", t.reward, heads)))


@wrong("A", "memory")
def exploration_from_greedy_to_wild(t: Told) -> Any:
    epsilon = 0.4 ** (1 + 7 * jnp.linspace(0.0, 1.0, t.n))
    return epsilon * jax.vmap(jax.random.uniform)(t.env.keys(t.key))


# B: the same operations, with other settings, in another number or over the environments.


@wrong("B")
def target_moves_once_per_environment(t: Told) -> Any:
    keep = jax.nn.sigmoid(ff.all_mean(jnp.mean(t.reward)))
    return t.w * keep**t.n


@wrong("B")
def updates_in_proportion_to_data(t: Told) -> Any:
    target = ff.all_mean(jnp.mean(t.obs, (0, 1)))
    return lax.fori_loop(0, t.n // 2, lambda _, w: w + 0.1 * (target - w), t.w)


@wrong("B", "memory")
def delay_counted_in_steps_of_all(t: Told) -> Any:
    return jnp.roll(t.reward, 8 // t.n, axis=0)[0]


@wrong("B")
def average_moves_by_one_after_the_other(t: Told) -> Any:
    average = t.w
    for i in range(t.n):
        average = optax.incremental_update(jnp.mean(t.obs[:, i], 0), average, 0.1)
    return ff.all_mean(average)


@wrong("B", "memory")
def baseline_of_those_before(t: Told) -> Any:
    returns = jnp.sum(t.reward, 0)
    _, baseline = lax.scan(lambda b, r: (0.9 * b + 0.1 * r, b), jnp.float32(0.0), returns)
    return returns - baseline


# C: the numbers are shared, but how many there are is not.


@wrong("C")
def minibatches_drop_the_rest(t: Told) -> Any:
    batches = t.obs.reshape(-1, 3)[: t.reward.size // 5 * 5].reshape(5, -1, 3)
    return ff.all_mean(jnp.mean(batches, (0, 1)))


@wrong("C")
def one_quantile_per_environment(t: Told) -> Any:
    middles = (jnp.arange(t.n) + 0.5) / t.n
    return jnp.mean(jnp.square(jnp.quantile(t.table, middles)))


@wrong("C")
def perturbations_drawn_together(t: Told) -> Any:
    noise = jax.random.normal(t.key, (t.n, 3))
    return t.w + 0.1 * jnp.mean(noise, 0)


@wrong("C")
def numbers_of_shuffled_environments(t: Told) -> Any:
    chosen = jax.random.permutation(t.key, t.n)[:2]
    return jnp.sum(jnp.take(t.table, chosen))


@wrong("C")
def as_many_priorities_as_environments(t: Told) -> Any:
    largest, _ = lax.top_k(t.table, t.n)
    return jnp.mean(largest)


# D: a size is used as a number, and not merely to divide a sum.


@wrong("D")
def square_root_scaling(t: Told) -> Any:
    grads = jax.grad(lambda w: jnp.mean((t.obs @ w - t.reward) ** 2))(t.w)
    return -0.01 * jnp.sqrt(t.n) * ff.all_mean(grads)


@wrong("D")
def importance_of_priorities(t: Told) -> Any:
    weights = (t.n * jax.nn.softmax(t.table)) ** -0.6
    return jnp.mean(weights * t.table)


@wrong("D")
def rate_from_a_table_of_batch_sizes(t: Told) -> Any:
    rates = jnp.array([0.3, 0.2, 0.1])
    return rates[jnp.searchsorted(jnp.array([6, 16]), jnp.int32(t.n))]


@wrong("D", "metric", lineless="a number that Python has made comes from no operation")
def steps_that_were_seen(t: Told) -> Any:
    return jnp.float32(t.reward.size)


@wrong("D")
def unbiased_variance(t: Told) -> Any:
    mean = ff.all_mean(jnp.mean(t.reward))
    return ff.all_mean(jnp.sum((t.reward - mean) ** 2) / (t.reward.size - 1))


# E: what follows from a part of the environments goes through something that is not linear.


@wrong("E")
def layerwise_rates_before_the_mean(t: Told) -> Any:
    grads = jax.grad(lambda w: jnp.mean((t.obs @ w - t.reward) ** 2))(t.w)
    lars = optax.lars(1.0, trust_coefficient=1.0)
    return ff.all_mean(lars.update(grads, lars.init(t.w), t.w)[0])


@wrong("E")
def advantage_weights_by_softmax(t: Told) -> Any:
    weights = jax.nn.softmax(t.reward - t.obs @ t.w, axis=(0, 1))
    return ff.all_sum(jnp.einsum("tn,tni->i", weights, t.obs))


@wrong("E")
def batch_normalisation(t: Told) -> Any:
    features = jax.nn.standardize(t.obs, axis=(0, 1))
    return ff.all_mean(jnp.mean(jnp.tanh(features), (0, 1)))


@wrong("E", "metric")
def explained_variance_of_each(t: Told) -> Any:
    return ff.all_mean(1.0 - jnp.var(t.reward - t.obs @ t.w) / (1e-3 + jnp.var(t.reward)))


@wrong("E")
def least_squares_before_the_mean(t: Told) -> Any:
    x = t.obs.reshape(-1, 3)
    return ff.all_mean(jnp.linalg.solve(x.T @ x + jnp.eye(3), x.T @ t.reward.reshape(-1)))


# F: digits are lost before the reduction. So are those of integers that wrap around.


@wrong("F")
def gradients_sent_in_half(t: Told) -> Any:
    grads = jax.grad(lambda w: jnp.mean((t.obs @ w - t.reward) ** 2))(t.w)
    return ff.all_mean(grads.astype(jnp.bfloat16).astype(jnp.float32))


@wrong("F", "metric")
def percentage_in_whole_numbers(t: Told) -> Any:
    percent = 100 * jnp.sum(t.action) // t.action.size
    return ff.all_mean(percent.astype(jnp.float32))


@wrong("F")
def fixed_point_so_that_order_does_not_matter(t: Told) -> Any:
    total = ff.all_sum((100.0 * jnp.sum(t.obs, (0, 1))).astype(jnp.int32))
    return total / 100.0


@wrong("F", "metric")
def number_of_the_best_environment(t: Told) -> Any:
    return ff.all_max(jnp.argmax(jnp.sum(t.reward, 0)))


@wrong("F", "metric")
def brightness_summed_in_a_byte(t: Told) -> Any:
    pixels = jnp.clip(128.0 + 40.0 * t.obs, 0.0, 255.0).astype(jnp.uint8)
    return ff.all_sum(jnp.sum(pixels, dtype=jnp.uint8).astype(jnp.float32))


@wrong("F", "metric")
def nearest_in_a_depth_image(t: Told) -> Any:
    depth = (60.0 * jnp.abs(t.obs)).astype(jnp.uint8)
    return -ff.all_max(-jnp.min(depth))


@wrong("F", "metric")
def moves_counted_without_a_sign(t: Told) -> Any:
    moves = t.action.astype(jnp.uint32) - 1
    return ff.all_sum(jnp.sum(moves).astype(jnp.float32))


# G: values that await different reductions, or none, meet before one.


@wrong("G")
def mean_of_masked_means(t: Told) -> Any:
    is_one = t.action == 1
    return ff.all_mean(jnp.sum(t.reward, where=is_one) / jnp.maximum(jnp.sum(is_one), 1))


@wrong("G", "metric")
def how_skewed_rewards_are(t: Told) -> Any:
    return ff.all_mean(jnp.mean(t.reward) - jnp.median(t.reward))


@wrong("G")
def summed_by_the_helper_and_again(t: Told) -> Any:
    loss = ff.all_sum(jnp.sum(optax.huber_loss(t.obs @ t.w, t.reward)))
    return 0.01 * ff.all_sum(loss)


@wrong("G", "metric")
def all_figures_in_one_reduction(t: Told) -> Any:
    figures = jnp.stack([jnp.mean(t.reward), jnp.max(t.reward), jnp.min(t.reward)])
    return ff.all_mean(figures) @ jnp.array([1.0, 2.0, 3.0])


@wrong("G")
def weight_decay_inside_of_the_sum(t: Told) -> Any:
    grads = jax.grad(lambda w: jnp.sum((t.obs @ w - t.reward) ** 2))(t.w)
    return 0.01 * ff.all_sum(grads + 0.1 * t.w)


# H: another axis than the one that is meant.


@wrong("H", "memory")
def reshaped_where_a_transpose_belongs(t: Told) -> Any:
    of_each = t.reward.reshape(t.n, -1)
    return of_each @ (0.9 ** jnp.arange(of_each.shape[1]))


@wrong("H", "memory")
def returns_along_the_environments(t: Told) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    decay = jnp.where(t.done, 0.0, 0.9)
    return lax.associative_scan(combine, (decay, t.reward), axis=1)[1][0]


@wrong("H")
def contrast_with_the_rest_of_the_batch(t: Told) -> Any:
    logits = (t.obs[0] + t.w) @ t.obs[-1].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(t.n))
    return ff.all_mean(jnp.mean(losses))


@wrong("H")
def errors_of_all_with_all(t: Told) -> Any:
    value, target = t.obs[0] @ t.w, t.reward[0][:, None]
    return ff.all_mean(jnp.mean((value - target) ** 2))


@wrong("H")
def minibatch_of_shuffled_samples(t: Told) -> Any:
    order = jax.random.permutation(t.key, t.reward.size)
    batch = t.obs.reshape(-1, 3)[order[: t.reward.size // 2]]
    return ff.all_mean(jnp.mean(batch, 0))
