"""An equation in two traces of the same program, of different extents."""

from dataclasses import dataclass
from typing import Any

from fragflow._jax import Eqn, source_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An equation in two traces, of `sizes` environments (or parts of the agents)."""

    a: Eqn
    b: Eqn
    sizes: tuple[int, int]
    teams: tuple[int, ...] = ()
    """of agents: how many are in each team in the second trace"""

    @property
    def name(self) -> str:
        return self.a.primitive.name

    @property
    def line(self) -> str:
        return source_line(self.a)

    @property
    def params(self) -> Any:
        return self.a.params

    def input_sized(self, position: int) -> list[int]:
        return sized_dims(self.a.invars[position].aval, self.b.invars[position].aval)

    def output_sized(self, position: int = 0) -> list[int]:
        return sized_dims(self.a.outvars[position].aval, self.b.outvars[position].aval)

    def multiple(self, dim: int) -> int | None:
        """The dimension's size per environment, if it is a whole multiple of their number."""
        return size_multiple(dim, self.sizes[0])


def sized_dims(a: Any, b: Any) -> list[int]:
    """Axes whose length depends on the number of environments."""
    return [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]


def size_multiple(dim: int, num_envs: int) -> int | None:
    return dim // num_envs if dim % num_envs == 0 else None
