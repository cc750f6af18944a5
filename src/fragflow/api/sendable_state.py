"""Environments' keys and empty arrays, in a form to send. Apart: it knows no environment."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from fragflow._jax import is_key
from fragflow._jax_typed import wrap_key_data


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class RawKey:
    """A `jax.random.key` as plain numbers, with its implementation."""

    data: jax.Array
    impl: str = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Nothing:
    """Stands for one environment's array without entries, of which no device can have a part."""

    shape: tuple[int, ...] = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})


def without_keys(tree: Any) -> Any:
    """The state `tree` of one environment, with plain arrays only."""

    def raw(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and leaf.size == 0:
            return Nothing(leaf.shape, leaf.dtype)
        if not (isinstance(leaf, jax.Array) and is_key(leaf)):
            return leaf
        return RawKey(jax.random.key_data(leaf), str(jax.random.key_impl(leaf)))

    return jax.tree.map(raw, tree)


def with_keys(tree: Any) -> Any:
    """Restores the state that `without_keys` was given."""

    def key(leaf: Any) -> Any:
        if isinstance(leaf, Nothing):
            return jnp.zeros(leaf.shape, leaf.dtype)
        if not isinstance(leaf, RawKey):
            return leaf
        return wrap_key_data(leaf.data, impl=leaf.impl)

    return jax.tree.map(key, tree, is_leaf=lambda leaf: isinstance(leaf, RawKey | Nothing))
