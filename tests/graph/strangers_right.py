"""What authors write who have not read the replica check, and write rightly: 25 programs.

Work for each environment, reductions over all of them, and what follows from these.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import fragflow as ff
from graph.strangers import Into, Program, Told

RIGHT: list[Program] = []


def right(into: Into = "params", refused: str = "") -> Any:
    return lambda tell: RIGHT.append(Program(tell, into, refused=refused)) or tell


@right()
def standardised_advantages(t: Told) -> Any:
    def earlier(later: jax.Array, now: Any) -> Any:
        total = now[0] + 0.9 * jnp.where(now[1], 0.0, later)
        return total, total

    value = t.obs @ t.w
    _, gae = lax.scan(earlier, jnp.zeros_like(value[0]), (t.reward - value, t.done), reverse=True)
    weight = ff.ops.standardise(gae)
    return ff.all_mean(jax.grad(lambda w: jnp.mean(weight * jnp.tanh(t.obs @ w)))(t.w))


@right()
def observations_in_standard_deviations(t: Told) -> Any:
    mean = ff.all_mean(jnp.mean(t.obs, (0, 1)))
    variance = ff.all_mean(jnp.mean((t.obs - mean) ** 2, (0, 1)))
    scaled = jnp.clip((t.obs - mean) * lax.rsqrt(variance + 1e-5), -1.0, 1.0)
    return ff.all_mean(jnp.mean(scaled, (0, 1)))


@right()
def masked_mean(t: Told) -> Any:
    is_one = t.action == 1
    total, count = ff.all_sum((jnp.sum(t.reward, where=is_one), jnp.sum(is_one)))
    return total / jnp.maximum(count, 1)


@right("memory")
def noise_of_each(t: Told) -> Any:
    noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(t.env.keys(t.key))
    return 0.5 * t.memory + noise @ t.w


@right("memory")
def median_over_time(t: Told) -> Any:
    return jnp.median(t.reward, axis=0)


@right("memory")
def second_best_step_of_each(t: Told) -> Any:
    return t.env.map(lambda row: row[jnp.argsort(row)[-2]] * t.w[0], t.reward.T)


@right("memory")
def three_step_returns(t: Told) -> Any:
    padded = jnp.pad(t.reward, ((0, 2), (0, 0)))
    returns = sum(0.9**k * padded[k : k + t.reward.shape[0]] for k in range(3))
    return jnp.max(returns, axis=0)


@right()
def clipped_adam_after_the_mean(t: Told) -> Any:
    grads = ff.all_mean(jax.grad(lambda w: jnp.mean((t.obs @ w - t.reward) ** 2))(t.w))
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-1))
    return optimiser.update(grads, optimiser.init(t.w))[0]


@right()
def least_squares_after_the_sum(t: Told) -> Any:
    x = t.obs.reshape(-1, 3)
    xx, xy = ff.all_sum((x.T @ x, x.T @ t.reward.reshape(-1)))
    return jnp.linalg.solve(xx + jnp.eye(3), xy)


@right("metric")
def soft_maximum(t: Told) -> Any:
    largest = ff.all_max(jnp.max(t.reward))
    return largest + jnp.log(ff.all_sum(jnp.sum(jnp.exp(t.reward - largest))))


@right("metric")
def explained_variance_of_all(t: Told) -> Any:
    def variance(x: jax.Array) -> jax.Array:
        return ff.all_mean(jnp.mean((x - ff.all_mean(jnp.mean(x))) ** 2))

    return 1.0 - variance(t.reward - t.obs @ t.w) / (1e-3 + variance(t.reward))


@right()
def minibatch_of_shuffled_steps(t: Told) -> Any:
    steps = jax.random.permutation(t.key, t.obs.shape[0])[:2]
    return ff.all_mean(jnp.mean(t.obs[steps], (0, 1)))


@right()
def gradients_clipped_sample_by_sample(t: Told) -> Any:
    def gradient(x: jax.Array, y: jax.Array) -> jax.Array:
        grads = jax.grad(lambda w: (x @ w - y) ** 2)(t.w)
        return grads / jnp.maximum(1.0, jnp.linalg.norm(grads))

    of_each = jax.vmap(gradient)(t.obs.reshape(-1, 3), t.reward.reshape(-1))
    return ff.all_mean(jnp.mean(of_each, 0))


@right("memory")
def smoothed_over_time(t: Told) -> Any:
    kernel = jax.nn.softmax(t.w)
    smooth = jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"), 1, 1)(t.reward)
    return smooth[1]


@right()
def until_the_first_end(t: Told) -> Any:
    alive = jnp.cumprod(1.0 - t.done, axis=0)
    return ff.all_sum(jnp.einsum("tn,tni->i", alive, t.obs)) / ff.all_sum(jnp.sum(alive))


@right("metric")
def entropy_of_actions(t: Told) -> Any:
    counts = ff.all_sum(jnp.sum(jax.nn.one_hot(t.action, 2), (0, 1)))
    return jnp.sum(jax.scipy.special.entr(counts / jnp.sum(counts)))


@right("memory")
def rejection_sampling(t: Told) -> Any:
    def one(key: jax.Array, bound: jax.Array) -> jax.Array:
        def again(state: Any) -> Any:
            key, _ = jax.random.split(state[0])
            return key, jax.random.normal(key)

        return lax.while_loop(lambda s: s[1] > bound, again, (key, jnp.inf))[1]

    return t.env.map(one, t.env.keys(t.key), t.memory + 0.5)


@right()
def quantile_regression(t: Told) -> Any:
    def loss(quantiles: jax.Array) -> jax.Array:
        error = t.reward[..., None] - quantiles
        below = jnp.abs(jnp.array([0.25, 0.5, 0.75]) - (error < 0))
        return jnp.mean(jnp.sum(below * optax.huber_loss(error), -1))

    return ff.all_mean(jax.grad(loss)(t.w))


@right()
def pessimistic_ensemble(t: Told) -> Any:
    critics = t.table.reshape(8, 3)
    values = jax.vmap(lambda critic: jnp.tanh(t.obs @ critic))(critics)
    return ff.all_mean(jnp.mean(jnp.min(values, 0) - jnp.std(values, 0)))


@right("memory")
def recurrent_and_forgetful(t: Told) -> Any:
    def cell(hidden: jax.Array, now: Any) -> Any:
        obs, done = now
        gate = jax.nn.sigmoid(obs @ t.w)
        return jnp.where(done, 0.0, gate * hidden + (1 - gate) * jnp.tanh(obs[:, 0])), None

    return lax.scan(cell, t.memory, (t.obs, t.done))[0]


@right()
def stops_early_at_a_divergence(t: Told) -> Any:
    grads, divergence = ff.all_mean((jnp.mean(t.obs, (0, 1)), jnp.mean(jnp.abs(t.obs @ t.w))))
    return lax.cond(divergence > 0.05, lambda g: 0.5 * g, lambda g: jnp.tanh(g), grads)


@right()
def clipped_surrogate(t: Told) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        logits = jnp.stack([t.obs @ w, jnp.zeros(t.reward.shape)], -1)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), t.action[..., None], -1)[..., 0]
        ratio = jnp.exp(log_prob - lax.stop_gradient(log_prob) + 0.3 * t.reward)
        return -jnp.mean(jnp.minimum(ratio * t.reward, jnp.clip(ratio, 0.8, 1.2) * t.reward))

    return ff.all_mean(jax.grad(loss)(t.w))


@right()
def rewards_by_action(t: Told) -> Any:
    totals = jax.ops.segment_sum(t.reward.reshape(-1), t.action.reshape(-1), num_segments=3)
    return jnp.log1p(jnp.abs(ff.all_sum(totals)))


@right()
def whitened_by_a_covariance(t: Told) -> Any:
    covariance = ff.all_mean(jnp.einsum("tni,tnj->ij", t.obs, t.obs) / t.reward.size)
    lengths, directions = jnp.linalg.eigh(covariance + jnp.diag(jnp.arange(3.0)))
    return jnp.abs(directions.T @ t.w) / jnp.sqrt(lengths + 1.0)


@right()
def two_minibatches_in_turn(t: Told) -> Any:
    def update(w: jax.Array, batch: Any) -> Any:
        obs, reward = batch
        grads = jax.grad(lambda w: jnp.mean((obs @ w - reward) ** 2))(w)
        return w - 0.1 * ff.all_mean(grads), None

    return lax.scan(update, t.w, (t.obs.reshape(2, -1, 3), t.reward.reshape(2, -1)))[0]
