"""Returns and advantages: discounted sums, generalised advantage estimation, V-trace."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from fragflow.api.kernel import kernel
from fragflow.ops.kernels import native, pallas


def gae(
    *,
    reward: Float[Array, "T *N"],
    value: Float[Array, "T *N"],
    next_value: Float[Array, "T *N"],
    terminated: Bool[Array, "T *N"],
    done: Bool[Array, "T *N"],
    gamma: float,
    gae_lambda: float,
) -> Float[Array, "T *N"]:
    """Generalised advantage estimates, `[T, N]` (Schulman et al. 2016, eq. 16).

    All arrays are `[T, N]`. `next_value` is the value of the true successor: where an episode was
    truncated that is not the observation acted on next, so the estimate bootstraps through the
    truncation. `done` marks the last step of an episode, for whichever reason.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    # The sum over later steps stops at the episode's end, also where its value goes on.
    decay = jnp.where(done, 0.0, gamma * gae_lambda)

    return discounted_sums(delta, decay)


@kernel("discounted_sums")
def discounted_sums(
    reward: Float[Array, "T *N"], discount: Float[Array, "T *N"]
) -> Float[Array, "T *N"]:
    """`sum_t = reward_t + discount_t * sum_t+1` along the first axis.

    With a discount of zero where an episode ends, these are the episode's rewards to go.
    """

    def accumulate(later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, discount = step
        total = reward + discount * later
        return total, total

    _, totals = lax.scan(accumulate, jnp.zeros_like(reward[0]), (reward, discount), reverse=True)
    return totals


def _are_floats(avals: Sequence[Any]) -> bool:
    first, second = avals
    return first.shape == second.shape and first.dtype == second.dtype == jnp.float32


discounted_sums.implementation("cpp", picked_on=["cpu"], absent=native.absent, fits=_are_floats)(
    native.discounted_sums
)
discounted_sums.implementation("pallas", fits=_are_floats)(pallas.discounted_sums)


class VTrace(NamedTuple):
    """Estimates for the policy that learns, `[T, N]`."""

    target: Float[Array, "T *N"]
    """the value that the critic should have given"""
    advantage: Float[Array, "T *N"]
    """by how much each action was better than the critic said; weighs its log-probability"""


def vtrace(
    *,
    log_ratio: Float[Array, "T *N"],
    reward: Float[Array, "T *N"],
    value: Float[Array, "T *N"],
    next_value: Float[Array, "T *N"],
    terminated: Bool[Array, "T *N"],
    done: Bool[Array, "T *N"],
    gamma: float,
    trace_lambda: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """V-trace targets (Espeholt et al. 2018, eq. 1, by the recursion of remark 1) and advantages.

    All arrays are `[T, N]`. `log_ratio` is the log-probability of the action under the policy that
    learns minus that under the one that acted. `next_value` is the value of the true successor, so
    estimates bootstrap through truncation, as in `ops.gae`. `trace_lambda` is that of remark 2.
    """
    ratio = jnp.exp(log_ratio)
    rho = jnp.minimum(ratio, clip_rho)
    successor = jnp.where(terminated, 0.0, next_value)
    delta = rho * (reward + gamma * successor - value)
    # A trace is cut at the episode's end, also where its value goes on.
    trace = jnp.where(done, 0.0, gamma * trace_lambda * jnp.minimum(ratio, clip_c))
    correction = discounted_sums(delta, trace)
    # The target of the next step (section 4.2); where that is of another episode, or not in this
    # trajectory, the value of the true successor. With lambda, as far as the trace goes: where both
    # policies are the same, these are the advantages of `ops.gae`.
    later = jnp.concatenate([correction[1:], jnp.zeros_like(correction[:1])])
    next_target = successor + jnp.where(done, 0.0, trace_lambda * later)
    return VTrace(
        target=value + correction,
        advantage=rho * (reward + gamma * next_target - value),
    )
