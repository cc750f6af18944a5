"""JAX's own functions, with the types that JAX leaves out. They are the same objects: no call more.

JAX writes `Callable` without arguments, and so a strict checker knows nothing of their results.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name as _checkpoint_name
from jax.extend.core import ClosedJaxpr
from jax.stages import Lowered

Path: TypeAlias = tuple[Hashable, ...]
"""the keys that lead to a leaf of a tree"""
Function: TypeAlias = Callable[..., Any]


class Jitted(Protocol):
    """A function that is compiled where it is called."""

    def __call__(self, *args: Any) -> Any: ...
    def lower(self, *args: Any) -> Lowered: ...


class _Jit(Protocol):
    def __call__(
        self, fun: Function, /, *, compiler_options: dict[str, Any] | None = None
    ) -> Jitted: ...


class _MakeJaxpr(Protocol):
    @overload
    def __call__(self, fun: Function, /) -> Callable[..., ClosedJaxpr]: ...
    @overload
    def __call__(
        self, fun: Function, /, *, return_shape: Literal[True]
    ) -> Callable[..., tuple[ClosedJaxpr, Any]]: ...


class _EvalShape(Protocol):
    def __call__(self, fun: Function, /, *args: Any) -> Any: ...


class _Switch(Protocol):
    def __call__(self, index: Any, branches: Sequence[Function], /, *operands: Any) -> Any: ...


class _KeyStr(Protocol):
    def __call__(self, keys: Path, /, *, simple: bool = False, separator: str = "") -> str: ...


class _WrapKeyData(Protocol):
    def __call__(self, key_bits: jax.Array, /, *, impl: Any = None) -> jax.Array: ...


class FloatInfo(Protocol):
    """The limits of a type of floats, NumPy's or one of the narrow ones."""

    @property
    def bits(self) -> int: ...
    @property
    def nmant(self) -> int: ...
    @property
    def maxexp(self) -> int: ...
    @property
    def tiny(self) -> Any: ...


jit: _Jit = jax.jit
make_jaxpr: _MakeJaxpr = jax.make_jaxpr
eval_shape: _EvalShape = jax.eval_shape
switch: _Switch = jax.lax.switch
checkpoint_name: Callable[[Any, str], Any] = _checkpoint_name
leaves_with_path: Callable[[Any], list[tuple[Path, Any]]] = jax.tree_util.tree_leaves_with_path
keystr: _KeyStr = jax.tree_util.keystr
finfo: Callable[[Any], FloatInfo] = jnp.finfo
wrap_key_data: _WrapKeyData = jax.random.wrap_key_data


def is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    """True for tuples and lists, as parameters of equations may be."""
    return isinstance(value, tuple | list)


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """True for dictionaries and their like, as a state may be."""
    return isinstance(value, Mapping)
