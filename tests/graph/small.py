"""Programs of a few operations, written down by hand, for tests of single passes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fragflow._jax import Eqn
from fragflow.api.reduce import all_mean
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import (
    Carry,
    Loop,
    Node,
    Op,
    Parcel,
    Program,
    Receive,
    Send,
    Transfer,
    Value,
    walk,
)
from fragflow.graph.passes.dataflow import dataflow
from fragflow.graph.passes.split import Split, split
from fragflow.policies.policy import Placed

WHOLE = Extent(4)
FRAGMENTS = ("actor", "learner")


def _equation(function: Any) -> Eqn:
    return jax.make_jaxpr(function)(jnp.zeros(4)).jaxpr.eqns[0]


SINE, MEAN = _equation(jnp.sin), _equation(all_mean)


def op(output: Value, *inputs: Value, of: str = "", eqn: Eqn = SINE) -> Op:
    """An operation that makes `output`, and has its name; part of a component `of`, or glue."""
    return Op(
        path=output,
        eqns={WHOLE: eqn},
        inputs=inputs,
        outputs=(output,),
        components=frozenset({of} if of else ()),
    )


def loop(path: str, *body: Node, **ends: Any) -> Loop:
    return Loop(path=path, length=3, body=body, **ends)


def message(source: str, target: str, *values: Value) -> Transfer:
    parcels = tuple(Parcel(value=value, collective="") for value in values)
    return Transfer(name="", source=source, target=target, parcels=parcels)


def program(
    *body: Node,
    state: Mapping[Value, Value] | None = None,
    sizes: Mapping[Value, int] | None = None,
) -> Program:
    """A training loop; `state` has the next value of each leaf, `sizes` what is not of length 4."""
    carries = tuple(
        Carry(inside=leaf, init=f"init {leaf}", next=after, final=f"final {leaf}")
        for leaf, after in (state or {}).items()
    )
    train = Loop(path="train", length=None, counter="iteration", carries=carries, body=body)
    values = {"key", "iteration", *(c.init for c in carries)}
    for node in walk((train,)):
        if isinstance(node, Op):
            values |= {v for v in node.outputs if v is not None}
        if isinstance(node, Loop):
            values |= {v for c in node.carries for v in (c.inside, c.final)}
            values |= {s.inside for s in node.slices} | {s.outside for s in node.stacks}
    lengths = dict.fromkeys(values, 4) | dict(sizes or {})
    return Program(
        loop=train,
        constants=(),
        sources={"key": "key"},
        avals={WHOLE: {v: jax.ShapeDtypeStruct((n,), jnp.float32) for v, n in lengths.items()}},
        extent=WHOLE,
        labels={c.inside: c.inside for c in carries},
        params=frozenset(),
        episodes={},
    )


def owned(made: Program, **others: str) -> Mapping[str, str]:
    """The owner of each operation: its component's name, or what `others` say of glue."""
    return {
        node.path: others.get(node.path) or next(iter(node.components))
        for node in walk((made.loop,))
        if isinstance(node, Op)
    }


def split_of(made: Program, options: Any, **others: str) -> Split:
    return split(made, dataflow(made), owned(made, **others), FRAGMENTS, options)


def placed(name: str, replicas: int) -> Placed:
    return Placed(
        name=name,
        places=(name,),
        components=(name,),
        replicas=replicas,
        device="cpu",
        num_envs=4 // replicas,
        asked_replicas=replicas,
    )


def written(nodes: tuple[Node, ...]) -> list[Any]:
    """A short form to compare with: operations, messages, and loops as lists."""
    return [_written(node) for node in nodes]


def _written(node: Node) -> Any:
    match node:
        case Op():
            return node.path
        case Loop():
            return written(node.body)
        case Transfer():
            return f"{node.source}>{node.target}: {_values(node)}"
        case Send():
            return f"send {_values(node.transfer)}"
        case Receive():
            return f"receive {_values(node.transfer)}"
        case other:
            raise AssertionError(other)


def _values(transfer: Transfer) -> str:
    return " ".join(
        f"{p.collective}({p.value})" if p.collective else p.value for p in transfer.parcels
    )
