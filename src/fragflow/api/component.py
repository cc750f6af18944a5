"""Marks a function as a component: a call that may become a fragment boundary."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from fragflow._jax import component_call, is_name_valid
from fragflow.api.rows import environment_call
from fragflow.errors import TraceError

P = ParamSpec("P")
T = TypeVar("T")

ENVIRONMENT = "environment"

_inside: ContextVar[str | None] = ContextVar("inside_component", default=None)


def component(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function or method whose call a policy may place.

    Names are dotted, most general first: a policy that places `learner` places `learner.update`
    too. A component called inside another one belongs to the outer one.

    Args:
        name: dotted lower-case words, like `learner.update`; `environment` is taken.

    Returns:
        The decorator. What it decorates takes and returns what it did before.

    Raises:
        TraceError: the name is not such words, or begins with `environment`.
    """
    if not is_name_valid(name):
        raise TraceError(
            f"component name {name!r}: expected dotted lower-case words, like 'learner.update'"
        )
    if name.split(".")[0] == ENVIRONMENT:
        raise TraceError(
            f"component name {name!r}: names that begin with 'environment' are those of env.reset "
            "and env.step, which work environment by environment. Use another name, like "
            "'actor.observe'."
        )
    return marked(name)


def marked(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`component` without a check of the name: environments' names are fragflow's own."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            is_environments = name.split(".")[0] == ENVIRONMENT
            if _inside.get() is not None and not is_environments:
                return function(*args, **kwargs)
            leaves, structure = jax.tree.flatten((args, kwargs))
            dynamic = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

            def inner(*arrays: Any) -> T:
                filled = list(leaves)
                for i, array in zip(dynamic, arrays, strict=True):
                    filled[i] = array
                token = _inside.set(name)
                try:
                    inner_args, inner_kwargs = jax.tree.unflatten(structure, filled)
                    return function(*inner_args, **inner_kwargs)  # pyright: ignore[reportCallIssue]
                finally:
                    _inside.reset(token)

            # Inside another component it belongs to that one, but stays recognisable.
            call = component_call if _inside.get() is None else environment_call
            return call(name, inner, [leaves[i] for i in dynamic])

        return wrapped

    return decorate


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)
