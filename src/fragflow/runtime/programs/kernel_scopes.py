"""By which implementation a program computes a kernel: marked in it, and read off it again."""

import re
from collections.abc import Callable
from typing import Any

import jax

Computed = frozenset[tuple[str, str]]
"""kernels with the implementations that are in a program, the reference aside"""

_MARK = re.compile(r"kernel:([a-z0-9_.]+)\)*/by:([^/\"]+)")


def marked(call: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    """`call`, whose operations say in a compiled program where they come from."""

    def inner(*args: Any) -> Any:
        with jax.named_scope(f"by:{implementation}"):
            return call(*args)

    return inner


def read_off(lowered: Any, compiled_text: str, expected: Computed) -> Computed:
    """What marks say in a compiled program.

    One from JAX's cache may have been compiled for another that computes the same and has no marks,
    or others: where an expected one is missing, what was handed to the compiler has the word.
    """
    found = _marks(compiled_text)
    return found if expected <= found else found | _marks(lowered.as_text(debug_info=True))


def _marks(text: str) -> Computed:
    return frozenset(_MARK.findall(text))
