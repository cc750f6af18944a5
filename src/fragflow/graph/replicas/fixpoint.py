"""Infers what replicas hold of every value: a fixpoint over fragments and messages."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from fragflow._jax import ClosedJaxpr
from fragflow.graph.fragment_extent import Axis
from fragflow.graph.ir import Constant, Loop, Node, Op, Program, Transfer, Value
from fragflow.graph.replicas.constants import constant_kind
from fragflow.graph.replicas.eqn_pair import sized_dims
from fragflow.graph.replicas.interpret import Context, analyse
from fragflow.graph.replicas.kinds import COUNT, NEEDED, UNIFORM, Kind, Tag, join, mixed, varying
from fragflow.graph.replicas.rule_guards import well_formed
from fragflow.graph.replicas.rules.calls import stack_kind, step_kind
from fragflow.graph.tracing.trace import SOURCES


def initial_kinds(a: ClosedJaxpr, b: ClosedJaxpr, axis: Axis) -> list[Kind]:
    """Kinds of the state's leaves; the first state is made once, for all environments."""
    context = Context(axis=axis)
    if axis.over == "agents":
        return context.of_all_agents(a.jaxpr, b.jaxpr)
    results = analyse(a, b, [UNIFORM, varying(0)], context)
    return [
        replace(kind, degree=0) if kind.tag is Tag.VARYING else kind if sized else UNIFORM
        for kind, sized in (
            (kind, sized_dims(x.aval, y.aval))
            for x, y, kind in zip(a.jaxpr.outvars, b.jaxpr.outvars, results, strict=True)
        )
    ]


def _env_ids(axis: Axis) -> Kind:
    return varying(0) if axis.over == "environments" else UNIFORM


class Inference:
    """Kinds per fragment, refined until nothing changes."""

    def __init__(
        self,
        program: Program,
        axes: Mapping[str, Axis],
        state: Mapping[Axis, Mapping[Value, Kind]],
        replicas: Mapping[str, int],
        holds_all: Callable[[Op], bool] = lambda _: False,
    ):
        """`axes` are by fragment, all over the same; `holds_all` finds operations that hold all."""
        self.kinds: dict[str, dict[Value, Kind]] = {}
        self._axes = axes
        self._avals = program.avals
        self._replicas = replicas
        self._holds_all = holds_all
        self._contexts = {
            name: Context(axis=axes[name], whole=count == 1) for name, count in replicas.items()
        }
        self._cache: dict[tuple[str, str], tuple[list[Kind], list[Kind]]] = {}
        for name in replicas:
            context = self._contexts[name]
            known = {value: context.settle(kind) for value, kind in state[axes[name]].items()}
            known |= dict.fromkeys(SOURCES, UNIFORM)
            known["env_ids"] = _env_ids(axes[name])
            known[program.loop.counter or ""] = UNIFORM
            for constant in program.constants:
                known[constant.output] = self._constant(constant, name)
            self.kinds[name] = known
        self._changed = False

    def run(self, loops: Mapping[str, Loop]) -> Mapping[str, Mapping[Value, Kind]]:
        while True:
            self._changed = False
            for name, loop in loops.items():
                self._node(loop, name)
            if not self._changed:
                return self.kinds

    def _constant(self, constant: Constant, name: str) -> Kind:
        axis = self._axes[name]
        a, b = (constant.arrays[extent] for extent in axis.extents)
        return self._contexts[name].settle(constant_kind(a, b, axis.sizes))

    def _write(self, name: str, value: Value | None, kind: Kind | None, line: str = "") -> None:
        if value is None or kind is None:
            return
        env = self.kinds[name]
        merged = join(env.get(value), kind, line)
        if merged is not None and merged != env.get(value):
            env[value] = merged
            self._changed = True

    def _node(self, node: Node, name: str) -> None:
        env = self.kinds[name]
        match node:
            case Op():
                self._op(node, name)
            case Constant():
                self._write(name, node.output, self._constant(node, name))
            case Loop():
                line = f"loop {node.path}"
                for carry in node.carries:
                    self._write(name, carry.inside, env.get(carry.init), line)
                for slice_ in node.slices:
                    outside = env.get(slice_.outside)
                    if outside is not None:
                        self._write(name, slice_.inside, step_kind(outside, line))
                for inner in node.body:
                    self._node(inner, name)
                for carry in node.carries:
                    self._write(name, carry.inside, env.get(carry.next), line)
                    self._write(name, carry.final, env.get(carry.inside), line)
                for stack in node.stacks:
                    element = env.get(stack.element)
                    if element is not None:
                        self._write(name, stack.outside, stack_kind(element))
            case Transfer():
                if node.target == name:
                    for parcel in node.parcels:
                        sent = self.kinds[node.source].get(parcel.value)
                        if sent is not None:
                            received = self._received(node, parcel.value, sent)
                            self._write(name, parcel.value, received)
            case _:
                pass

    def _op(self, op: Op, name: str) -> None:
        env = self.kinds[name]
        inputs: list[Kind] = []
        axis = self._axes[name]
        a, b = (op.eqns[extent] for extent in axis.extents)
        context = self._contexts[name]
        if self._holds_all(op):
            context = replace(context, whole=True)
        for value, x, y in zip(op.inputs, a.invars, b.invars, strict=True):
            kind = (
                context.settle(constant_kind(x.val, y.val, axis.sizes))
                if value is None
                else env.get(value)
            )
            if kind is None:
                return
            inputs.append(kind)
        cached = self._cache.get((name, op.path))
        if cached is not None and cached[0] == inputs:
            return
        # An environment on the host is opened, down to the calls of it.
        is_world = any(c.startswith("environment.") for c in op.components)
        of_all = axis.over == "agents" and is_world
        results = context.of_all_agents(a, b) if of_all else context.apply(a, b, inputs)
        self._cache[(name, op.path)] = (inputs, results)
        for value, kind in zip(op.outputs, results, strict=True):
            self._write(name, value, kind)

    def _received(self, transfer: Transfer, value: Value, sent: Kind) -> Kind:
        source, target = self._replicas[transfer.source], self._replicas[transfer.target]
        if source == target:
            return sent
        if sent.tag is Tag.PARTIAL and target == 1:
            return UNIFORM
        if sent.tag in (Tag.UNIFORM, Tag.VARYING) and sent.degree and not sent.zero:
            return mixed(COUNT, "")
        axis = self._axes[transfer.target if target > source else transfer.source]
        a, b = (self._avals[extent][value] for extent in axis.extents)
        if not well_formed(sent, a, b, axis.sizes):
            return mixed(NEEDED, "")
        if sent.tag is Tag.VARYING and not sent.is_cuttable:
            return mixed("has other axes folded around the environment axis", "")
        if sent.tag is Tag.VARYING:
            return replace(sent, flexible=False)
        return sent
