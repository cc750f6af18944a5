"""Random keys in an environment's state, kept as the numbers that they are: those can be sent."""

from dataclasses import dataclass, field
from typing import Any

import jax

from fragflow._jax import is_key


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class RawKey:
    """A key in the place of a `jax.random.key`."""

    data: jax.Array
    impl: str = field(metadata={"static": True})


def without_keys(tree: Any) -> Any:
    """`tree` with the numbers of keys in their place."""

    def raw(leaf: Any) -> Any:
        if not (isinstance(leaf, jax.Array) and is_key(leaf)):
            return leaf
        return RawKey(jax.random.key_data(leaf), str(jax.random.key_impl(leaf)))

    return jax.tree.map(raw, tree)


def with_keys(tree: Any) -> Any:
    """What `without_keys` was given."""

    def key(leaf: Any) -> Any:
        if not isinstance(leaf, RawKey):
            return leaf
        return jax.random.wrap_key_data(leaf.data, impl=leaf.impl)

    return jax.tree.map(key, tree, is_leaf=lambda leaf: isinstance(leaf, RawKey))
