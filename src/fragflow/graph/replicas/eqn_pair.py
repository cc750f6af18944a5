"""An equation in two traces of the same program: that of the whole, and that of a replica."""

from dataclasses import dataclass
from typing import Any

from fragflow._jax import Eqn, source_line


@dataclass(frozen=True, slots=True, kw_only=True)
class EqnPair:
    """An equation in two traces, of `sizes` environments (or parts of the agents)."""

    a: Eqn
    b: Eqn
    sizes: tuple[int, int]
    teams: tuple[int, ...] = ()
    """of agents: their number in each team, in the second trace"""

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

    def keeps_length(self, axis: int) -> bool:
        """True if the first input and the first result are equally long there, in both traces."""
        return all(
            len(e.outvars[0].aval.shape) > axis
            and e.invars[0].aval.shape[axis] == e.outvars[0].aval.shape[axis]
            for e in (self.a, self.b)
        )

    def multiple(self, dim: int) -> int | None:
        """The dimension's size per environment, if it is a whole multiple of their number."""
        return dim // self.sizes[0] if dim % self.sizes[0] == 0 else None


def sized_dims(a: Any, b: Any) -> list[int]:
    """Axes whose length depends on the number of environments; all of them if the ranks differ."""
    if len(a.shape) != len(b.shape):
        return list(range(max(len(a.shape), len(b.shape))))
    return [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
