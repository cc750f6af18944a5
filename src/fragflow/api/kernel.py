"""Marks a function as a kernel: one body defines the result, others may be faster somewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from fragflow._jax import ClosedJaxpr, is_name_valid, kernel_call
from fragflow._jax_typed import make_jaxpr
from fragflow.errors import TraceError

P = ParamSpec("P")
T = TypeVar("T")

REFERENCE = "xla"
"""name of the implementation that every kernel has"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """Another way to compute a kernel."""

    name: str
    call: Callable[..., Any]
    """called with the kernel's arguments and the platform, while a program is traced"""
    picked_on: tuple[str, ...]
    """platforms on which it is the default; its results have the reference's bits there"""
    absent: Callable[[], str | None]
    """the reason that it cannot be used on this machine, or None"""
    fits: Callable[[Sequence[Any]], bool]
    """true if it can take arguments of these types"""


class Kernel(Generic[P, T]):
    """A function of arrays; the worker that runs it picks the implementation."""

    def __init__(self, name: str, reference: Callable[P, T]):
        self.name = name
        self.reference = reference
        self.implementations: dict[str, Implementation] = {}
        self.__name__, self.__doc__ = name, reference.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs:
            raise TypeError(f"kernel {self.name} takes arrays by position only")
        return kernel_call(self.name, self.reference, args)

    def implementation(
        self,
        name: str,
        *,
        picked_on: Sequence[str] = (),
        absent: Callable[[], str | None] = lambda: None,
        fits: Callable[[Sequence[Any]], bool] = lambda _: True,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates another way to compute this, `f(*args, platform)`.

        Args:
            name: of the implementation, as users pick it.
            picked_on: platforms on which it is the default; it has the reference's bits there.
            absent: the reason that it cannot be used on this machine, or None.
            fits: true if it can take arguments of these types.

        Returns:
            The decorator, which leaves the function as it is.
        """

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            self.implementations[name] = Implementation(
                name=name, call=function, picked_on=tuple(picked_on), absent=absent, fits=fits
            )
            return function

        return decorate


KERNELS: dict[str, Kernel[..., Any]] = {}
"""all kernels, by name"""


def kernel(name: str) -> Callable[[Callable[P, T]], Kernel[P, T]]:
    """Decorates a function of arrays that may have several implementations.

    The function itself is the reference: what runs in plain JAX, what is differentiated and mapped,
    and what every implementation is tested against.

    Args:
        name: dotted lower-case words, like `discounted_sums`, of one module only.

    Returns:
        The decorator. It makes a `Kernel`, which is called with arrays, by position.

    Raises:
        TraceError: the name is not such words, or another module has a kernel of that name.
    """
    if not is_name_valid(name):
        raise TraceError(
            f"kernel name {name!r}: expected dotted lower-case words, like 'discounted_sums'"
        )

    def decorate(function: Callable[P, T]) -> Kernel[P, T]:
        known = KERNELS.get(name)
        if known is not None and known.reference.__module__ != function.__module__:
            raise TraceError(
                f"kernel {name!r} of {function.__module__} is already one of "
                f"{known.reference.__module__}: choose another name"
            )
        KERNELS[name] = Kernel(name, function)
        return KERNELS[name]

    return decorate


def reference_program(name: str, avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a kernel's reference, for arguments of these types."""
    return make_jaxpr(KERNELS[name].reference)(*avals)
