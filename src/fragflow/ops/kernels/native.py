"""Kernels in C++, for programs on CPUs. They are built at install where a compiler is present."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jaxtyping import Float

LIBRARY = Path(__file__).parent / "kernels.so"
MAX_CHARACTERS = 300
"""of another's reason that are passed on"""


@functools.cache
def _load() -> str | None:
    """Registers the kernels with XLA, once; returns the reason if that fails, else None."""
    if not LIBRARY.exists():
        return "it was not built: no C++ compiler (c++) was found at install, or the build failed"
    try:
        library = ctypes.cdll.LoadLibrary(str(LIBRARY))
        capsule = jax.ffi.pycapsule(library.fragflow_discounted_sums)
        # XLA refuses what was built with the headers of a newer one. Before it has started it would
        # do so later, and then not start.
        jax.devices("cpu")
        jax.ffi.register_ffi_target("fragflow_discounted_sums", capsule, platform="cpu")
    except Exception as error:  # whatever it is: there is another way to compute this
        return f"its library does not load: {_in_one_line(error)}. Install fragflow again"
    return None


def _in_one_line(error: Exception) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:MAX_CHARACTERS].rstrip(".")


def absent() -> str | None:
    """The reason that the kernels cannot be used on this machine; None if they can."""
    return _load()


def discounted_sums(
    reward: Float[Array, "T *N"], discount: Float[Array, "T *N"], platform: str
) -> Any:
    """`ops.discounted_sums` in one pass; the same bits as XLA's."""
    del platform
    assert _load() is None
    result = jax.ShapeDtypeStruct(reward.shape, reward.dtype)
    return jax.ffi.ffi_call("fragflow_discounted_sums", result)(reward, discount)
