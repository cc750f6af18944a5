"""Arrays as message frames: a typed header, then their raw bytes. Nothing is ever unpickled."""

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fragflow.errors import RunError

MAGIC = b"ffm1"
_HEAD = struct.Struct("<4sIIQH")
_ARRAY = struct.Struct("<BB")
NOTHING = 255
"""in place of a type: a value that another sender sends"""

DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
)
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


Types = tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]


class Header(NamedTuple):
    """The route and number of a message, and the types of its arrays."""

    route: int
    incarnation: int
    """of its sender: the number of times it was replaced"""
    sequence: int
    types: Types
    """shape and type of each array; None for one that another sender sends"""


def pack(route: int, incarnation: int, sequence: int, types: Types) -> bytes:
    """Packs the header of a message."""
    return _HEAD.pack(MAGIC, route, incarnation, sequence, len(types)) + _packed(types)


def types_of(arrays: Sequence[np.ndarray | None]) -> Types:
    return tuple([None if array is None else (array.shape, array.dtype) for array in arrays])


def unpack(head: bytes | memoryview) -> Header:
    """Unpacks a header; RunError if it is not a valid one."""
    try:
        magic, route, incarnation, sequence, count = _HEAD.unpack_from(head, 0)
        if magic != MAGIC:
            raise RunError("a message does not begin like one of fragflow's")
        types = _unpacked(count, bytes(head[_HEAD.size :]))
    except (struct.error, IndexError) as error:
        raise RunError(f"a message has a broken header: {error}") from None
    return Header(route, incarnation, sequence, types)


# All messages of a route are alike, so that most types are found in these caches.


@functools.lru_cache(maxsize=4096)
def _packed(types: Types) -> bytes:
    parts = []
    for found in types:
        if found is None:
            parts.append(_ARRAY.pack(NOTHING, 0))
        else:
            shape, dtype = found
            parts.append(_ARRAY.pack(_CODES[dtype], len(shape)))
            parts.append(struct.pack(f"<{len(shape)}Q", *shape))
    return b"".join(parts)


@functools.lru_cache(maxsize=4096)
def _unpacked(count: int, packed: bytes) -> Types:
    position, types = 0, []
    for _ in range(count):
        code, ndim = _ARRAY.unpack_from(packed, position)
        position += _ARRAY.size
        if code == NOTHING:
            types.append(None)
            continue
        shape = struct.unpack_from(f"<{ndim}Q", packed, position)
        position += 8 * ndim
        types.append((shape, DTYPES[code]))
    return tuple(types)


def array_from(buffer: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """An array over received bytes, without a copy; RunError if their number is wrong."""
    expected = math.prod(shape) * dtype.itemsize
    got = memoryview(buffer).nbytes
    if got != expected:
        raise RunError(
            f"a message announces {dtype}{list(shape)}, {expected} bytes, but brings {got}"
        )
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)


def arrays_of(payload: Sequence[Any]) -> list[np.ndarray | None]:
    """A message's values as arrays on the host; without a copy if they are there already."""
    return [None if value is None else np.asarray(value) for value in payload]


def raw(array: np.ndarray) -> memoryview:
    """An array's bytes, without a copy."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8).data
