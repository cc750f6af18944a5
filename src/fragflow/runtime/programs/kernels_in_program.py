"""Scopes that name the implementations of kernels in a program; read off it when it is compiled."""

import re
from collections.abc import Callable
from typing import Any

import jax

Computed = frozenset[tuple[str, str]]
"""kernels with the implementations that are in a program, except the reference"""

_MARK = re.compile(r"kernel:([a-z0-9_.]+)\)*/by:([^/\"]+)")


def marked(call: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    """Puts the operations of `call` into a scope that names the implementation."""

    def inner(*args: Any) -> Any:
        with jax.named_scope(f"by:{implementation}"):
            return call(*args)

    return inner


def read_off(lowered: Any, compiled_text: str, expected: Computed) -> Computed:
    """Reads the implementations of kernels off a compiled program.

    JAX's cache may give a program that was compiled for another one, which computes the same but
    has no such scopes, or others. If an expected scope is missing, those of the program before
    compilation count as well.
    """
    found = _marks(compiled_text)
    return found if expected <= found else found | _marks(lowered.as_text(debug_info=True))


def _marks(text: str) -> Computed:
    return frozenset(_MARK.findall(text))
