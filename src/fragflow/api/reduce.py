"""Reductions over all environments of a run, wherever they are.

A fragment may hold only some of the environments. A mean, sum or maximum over the environments it
holds becomes one over all of them by `all_mean`, `all_sum` or `all_max`. Where one fragment holds
them all, they change nothing.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp

from fragflow._all_reduce import all_reduce
from fragflow.errors import TraceError

Tree = TypeVar("Tree")


def all_mean(tree: Tree) -> Tree:
    """Mean of a local mean (gradients, losses, statistics), leaf by leaf.

    Args:
        tree: arrays, each a mean over the environments that are here.

    Returns:
        The same tree, with means over all environments.
    """
    return _reduce("mean", tree)


def all_sum(tree: Tree) -> Tree:
    """Sum of a local sum (counts, totals), leaf by leaf.

    Args:
        tree: arrays, each a sum over the environments that are here.

    Returns:
        The same tree, with sums over all environments.
    """
    return _reduce("sum", tree)


def all_max(tree: Tree) -> Tree:
    """Maximum of a local maximum, leaf by leaf.

    Args:
        tree: arrays, each a maximum over the environments that are here.

    Returns:
        The same tree, with maxima over all environments.

    Raises:
        TraceError: there is a leaf of complex numbers, which have no order.
    """
    return _reduce("max", tree)


def _reduce(operation: str, tree: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    unordered = [x for x in map(jnp.result_type, leaves) if jnp.issubdtype(x, jnp.complexfloating)]
    if operation == "max" and unordered:
        raise TraceError(
            f"all_max of {unordered[0]}: complex numbers have no order. Take the maximum of their "
            "absolute values, or of their parts"
        )
    return jax.tree.unflatten(structure, all_reduce(operation, leaves))
