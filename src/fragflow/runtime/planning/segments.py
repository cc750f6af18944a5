"""Segments: nodes of a fragment that compile into one program; the values they read and make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fragflow._jax import source_line
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Constant, Loop, Node, Op, Receive, Value, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOp:
    """An operation that the runtime adds: slicing, collecting, joining or cutting of messages."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    function: Callable[..., Sequence[Any]]
    stack: Value | None = None
    """the collected output that this adds a row to"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Nodes that compile into one program."""

    nodes: tuple[Node | RuntimeOp, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    donated: frozenset[Value] = frozenset()
    is_small: bool = False
    """runs at every step of a loop: what it costs to start it matters more than what it computes"""
    extent: Extent | None = None
    """extent that it is compiled for; None: the fragment's"""

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(
            sorted({c for n in walk(ops_in(self.nodes)) if isinstance(n, Op) for c in n.components})
        )

    @property
    def line(self) -> str:
        """A line of the user's code that this segment runs, a component's if it has one."""
        ops = [n for n in walk(ops_in(self.nodes)) if isinstance(n, Op)]
        ops.sort(key=lambda op: not op.components)
        return source_line(ops[0].eqn) if ops else "generated code"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call of environments on the host."""

    method: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value | None, ...]
    components: tuple[str, ...]

    @classmethod
    def of(cls, op: Op) -> "HostCall":
        return cls(
            method=op.eqn.params["method"],
            inputs=tuple(v for v in op.inputs if v is not None),
            outputs=op.outputs,
            components=tuple(sorted(op.components)),
        )


def ops_in(nodes: Sequence[Node | RuntimeOp]) -> tuple[Node, ...]:
    return tuple(n for n in nodes if not isinstance(n, RuntimeOp))


def defined_by(node: Node) -> set[Value]:
    match node:
        case Op():
            return {v for v in node.outputs if v is not None}
        case Constant():
            return {node.output}
        case Loop():
            return {c.final for c in node.carries} | {s.outside for s in node.stacks}
        case Receive():
            return {p.value for p in node.transfer.parcels}
        case _:
            return set()


def reads_of(nodes: Sequence[Node | RuntimeOp]) -> list[Value]:
    """Values that nodes read but do not define before, in order of first use."""
    defined: set[Value] = set()
    free: dict[Value, None] = {}

    def read(values: Sequence[Value | None]) -> None:
        free.update((v, None) for v in values if v is not None and v not in defined)

    def visit(node: Node | RuntimeOp) -> None:
        match node:
            case Op() | RuntimeOp():
                read(node.inputs)
                defined.update(v for v in node.outputs if v is not None)
            case Constant():
                defined.add(node.output)
            case Loop():
                read([c.init for c in node.carries])
                read([s.outside for s in node.slices])
                defined.update(c.inside for c in node.carries)
                defined.update(s.inside for s in node.slices)
                for inner in node.body:
                    visit(inner)
                read([c.next for c in node.carries])
                read([s.element for s in node.stacks])
                defined.update(c.final for c in node.carries)
                defined.update(s.outside for s in node.stacks)
            case _:
                raise AssertionError(f"{type(node).__name__} in a segment")

    for node in nodes:
        visit(node)
    return list(free)


def defines_of(nodes: Sequence[Node | RuntimeOp]) -> list[Value]:
    values: dict[Value, None] = {}
    for node in nodes:
        names = node.outputs if isinstance(node, RuntimeOp) else sorted(defined_by(node))
        values.update((v, None) for v in names)
    return list(values)
