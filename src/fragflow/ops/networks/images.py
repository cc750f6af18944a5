"""Convolutions for observations that are images, as matrix products.

On a CPU the gradients of XLA's own convolutions take up to six times as long on small images. A
convolution whose stride divides its size is a product with patches, made by reshaping and slicing.
"""

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key, Shaped

Weights: TypeAlias = Array | np.ndarray
"""those of a finished run are NumPy's"""

NATURE = ((8, 4, 32), (4, 2, 64), (3, 1, 64))
"""(size, stride, channels) for screens (Mnih et al. 2015)"""
SMALL = ((3, 1, 16),)
"""for small grids (Young & Tian 2019)"""
MIN_SCREEN = 36
_STRIDES = {size: stride for size, stride, _ in (*NATURE, *SMALL)}


def is_image(shape: tuple[int, ...]) -> bool:
    """True if observations of this shape are images: height, width and channels in some order."""
    return len(shape) == 3


def channel_axis(shape: tuple[int, ...]) -> int:
    """The axis of an image that holds its channels: the last (-1) or the first (-3).

    Most images are square, however many channels they have; of others channels are the fewest.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return -1 if first == middle else -3
    return -1 if last <= first else -3


def convolution_init(
    key: Key[Array, ""], shape: tuple[int, ...]
) -> tuple[list[dict[str, Any]], int]:
    """Layers for images of `shape`, and the number of features they give."""
    height, width, channels = shape if channel_axis(shape) == -1 else (*shape[1:], shape[0])
    plan = NATURE if min(height, width) >= MIN_SCREEN else SMALL
    layers: list[dict[str, Any]] = []
    for layer_key, (size, stride, outputs) in zip(
        jax.random.split(key, len(plan)), plan, strict=True
    ):
        weights = jax.nn.initializers.orthogonal(math.sqrt(2.0))(
            layer_key, (size * size * channels, outputs), jnp.float32
        )
        layers.append(
            {"kernel": weights.reshape(size, size, channels, outputs), "bias": jnp.zeros(outputs)}
        )
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
        channels = outputs
    return layers, height * width * channels


def convolve(layers: list[dict[str, Any]], obs: Shaped[Array, "*B a b c"]) -> Float[Array, "*B F"]:
    """Features of images, whose channels are the last or the first of an image's axes.

    Whole numbers are taken for brightness from 0 to 255.
    """
    batch = obs.shape[:-3]
    x = obs.reshape(-1, *obs.shape[-3:])
    if x.shape[-1] != layers[0]["kernel"].shape[2]:
        x = jnp.moveaxis(x, 1, -1)
    is_whole = jnp.issubdtype(x.dtype, jnp.integer)
    x = x.astype(jnp.float32) / 255.0 if is_whole else x.astype(jnp.float32)
    for layer in layers:
        x = jax.nn.relu(_convolution(x, layer["kernel"], layer["bias"]))
    return x.reshape(*batch, -1)


def _convolution(
    x: Float[Array, "B H W C"], kernel: Float[Weights, "size size C F"], bias: Float[Weights, " F"]
) -> Float[Array, "B rows columns F"]:
    size, _, channels, outputs = kernel.shape
    stride = _STRIDES[size]
    count, height, width, _ = x.shape
    parts = size // stride
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    # Blocks of stride x stride pixels; a patch is parts x parts of them.
    tall, wide = rows - 1 + parts, columns - 1 + parts
    blocks = x[:, : tall * stride, : wide * stride].reshape(
        count, tall, stride, wide, stride, channels
    )
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(count, tall, wide, -1)
    patches = jnp.concatenate(
        [blocks[:, i : i + rows, j : j + columns] for i in range(parts) for j in range(parts)], -1
    )
    weights = kernel.reshape(parts, stride, parts, stride, channels, outputs)
    weights = weights.transpose(0, 2, 1, 3, 4, 5).reshape(-1, outputs)
    product = patches.reshape(-1, weights.shape[0]) @ weights
    return product.reshape(count, rows, columns, outputs) + bias[None, None, None]
