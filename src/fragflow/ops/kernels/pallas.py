"""Kernels in Pallas, for accelerators; interpreted on CPUs. Apart: a backend, like native.py."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

LANES = 128
"""columns that one instance of a kernel handles; the width of a TPU's vector registers"""


def discounted_sums(
    reward: Float[Array, "T *N"], discount: Float[Array, "T *N"], platform: str
) -> Float[Array, "T *N"]:
    """`ops.discounted_sums`, a block of columns per instance; the sum stays in registers."""
    from jax.experimental import pallas as pl  # slow to import

    rows, columns = reward.shape[0], math.prod(reward.shape[1:])
    padding = -columns % LANES

    def as_blocks(x: Float[Array, "T *N"]) -> Float[Array, "T columns"]:
        return jnp.pad(x.reshape(rows, columns), ((0, 0), (0, padding)))

    def block(reward_ref: Any, discount_ref: Any, sum_ref: Any) -> None:
        def row(k: Any, later: Float[Array, "1 lanes"]) -> Float[Array, "1 lanes"]:
            here = pl.ds(rows - 1 - k, 1)
            total = reward_ref[here, :] + discount_ref[here, :] * later
            sum_ref[here, :] = total
            return total

        jax.lax.fori_loop(0, rows, row, jnp.zeros((1, LANES), reward.dtype))

    spec = pl.BlockSpec((rows, LANES), lambda i: (0, i))
    total = pl.pallas_call(
        block,
        out_shape=jax.ShapeDtypeStruct((rows, columns + padding), reward.dtype),
        grid=((columns + padding) // LANES,),
        in_specs=[spec, spec],
        out_specs=spec,
        interpret=platform == "cpu",
    )(as_blocks(reward), as_blocks(discount))
    return total[:, :columns].reshape(reward.shape)
