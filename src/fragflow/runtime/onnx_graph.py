"""Writes equations as an ONNX graph: the part of JAX that networks are made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fragflow._jax import Literal
from fragflow.runtime.divide import Name, Step

OPSET, IR_VERSION = 18, 9

_UNARY = {
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "sqrt": "Sqrt",
    "erf": "Erf",
    "logistic": "Sigmoid",
    "floor": "Floor",
    "copy": "Identity",
    "copy_p": "Identity",
    "stop_gradient": "Identity",
    "not": "Not",
}
_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "pow": "Pow",
    "eq": "Equal",
    "lt": "Less",
    "gt": "Greater",
    "le": "LessOrEqual",
    "ge": "GreaterOrEqual",
    "and": "And",
    "or": "Or",
}
_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}
_LOGICAL = ("and", "or", "not")
_TYPES = ("float32", "int32", "int64", "uint8", "bool")


def can_write(step: Step) -> bool:
    """Whether this file knows how to write an equation."""
    eqn = step.eqn
    variables = (*eqn.invars, *eqn.outvars)
    if any(str(v.aval.dtype) not in _TYPES for v in variables):
        return False
    name = eqn.primitive.name
    if name in _LOGICAL and any(v.aval.dtype != bool for v in eqn.invars):
        return False
    if name == "conv_general_dilated":
        return _is_plain_convolution(eqn)
    if name == "select_n":
        return len(eqn.invars) == 3 and eqn.invars[0].aval.dtype == bool
    if name == "div" and eqn.invars[0].aval.dtype != "float32":
        return False
    return name in _UNARY or name in _BINARY or name in _REDUCTIONS or name in _WRITERS


def is_heavy(step: Step) -> bool:
    """Whether an equation is a layer, which an engine is there for."""
    return step.eqn.primitive.name in ("dot_general", "conv_general_dilated")


class Graph:
    """An ONNX graph being written.

    Broadcast values are kept small as long as only elementwise operations use them: those
    broadcast by themselves.
    """

    def __init__(self, avals: Mapping[Name, Any], constants: Mapping[Name, Any]):
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._avals = avals
        self._names: dict[Name, str] = {name: f"v{name}" for name in avals}
        self._shapes: dict[str, tuple[int, ...]] = {f"v{n}": a.shape for n, a in avals.items()}
        self._count = 0
        for name, value in constants.items():
            self._names[name] = self.constant(np.asarray(value))

    def write(self, step: Step) -> None:
        """Adds an equation."""
        eqn, name = step.eqn, step.eqn.primitive.name
        (out,) = eqn.outvars
        operands = [self._operand(x) for x in step.inputs]
        if name in _UNARY:
            result = self.node(_UNARY[name], operands, self._shapes[operands[0]])
        elif name in _BINARY:
            result = self._elementwise(_BINARY[name], operands, out.aval.shape)
        elif name in _REDUCTIONS:
            axes = self.constant(np.asarray(eqn.params["axes"], np.int64))
            full = [self.full(operands[0], eqn.invars[0].aval.shape), axes]
            result = self.node(_REDUCTIONS[name], full, out.aval.shape, keepdims=0)
        else:
            shapes = [v.aval.shape for v in eqn.invars]
            result = _WRITERS[name](self, eqn, operands, shapes)
        self._names[step.outputs[0]] = result

    def name_of(self, name: Name, shape: tuple[int, ...]) -> str:
        """The tensor that holds a value in its full shape."""
        return self.full(self._names[name], shape)

    def constant(self, array: np.ndarray) -> str:
        from onnx import numpy_helper

        name = self._new()
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self._shapes[name] = array.shape
        return name

    def node(
        self, kind: str, operands: Sequence[str], shape: Sequence[int], **attributes: Any
    ) -> str:
        from onnx import helper

        name = self._new()
        self.nodes.append(helper.make_node(kind, list(operands), [name], **attributes))
        self._shapes[name] = tuple(shape)
        return name

    def full(self, tensor: str, shape: Sequence[int]) -> str:
        """`tensor` with all of its elements there."""
        if self._shapes[tensor] == tuple(shape):
            return tensor
        return self.node("Expand", [tensor, self.constant(np.asarray(shape, np.int64))], shape)

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        if self._shapes[tensor] == tuple(shape):
            return tensor
        return self.node("Reshape", [tensor, self.constant(np.asarray(shape, np.int64))], shape)

    def _elementwise(self, kind: str, operands: Sequence[str], shape: tuple[int, ...]) -> str:
        small = np.broadcast_shapes(*(self._shapes[o] for o in operands))
        result = self.node(kind, operands, small)
        return result if small == shape else self.full(result, shape)

    def _operand(self, operand: Name | Literal) -> str:
        if isinstance(operand, Literal):
            aval: Any = operand.aval
            return self.constant(np.asarray(operand.val, aval.dtype))
        return self._names[operand]

    def _new(self) -> str:
        self._count += 1
        return f"t{self._count}"


Writer = Callable[[Graph, Any, list[str], list[tuple[int, ...]]], str]


def _reshape(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    full = graph.full(operands[0], shapes[0])
    return graph.reshape(full, eqn.outvars[0].aval.shape)


def _broadcast(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    small = [1] * len(shape)
    for size, axis in zip(shapes[0], dims, strict=True):
        small[axis] = size
    return graph.reshape(graph.full(operands[0], shapes[0]), small)


def _transpose(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    full = graph.full(operands[0], shapes[0])
    order = list(eqn.params["permutation"])
    return graph.node("Transpose", [full], eqn.outvars[0].aval.shape, perm=order)


def _dot(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    full = [graph.full(o, s) for o, s in zip(operands, shapes, strict=True)]
    shape = eqn.outvars[0].aval.shape
    last = len(shapes[0]) - 1
    if not left_batch and tuple(left) == (last,) and tuple(right) == (0,) and len(shapes[1]) <= 2:
        return graph.node("MatMul", full, shape)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in shapes[0]]
    second = [next(letters) for _ in shapes[1]]
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        second[j] = first[i]
    kept = [x for i, x in enumerate(first) if i not in (*left, *left_batch)]
    kept += [x for j, x in enumerate(second) if j not in (*right, *right_batch)]
    result = "".join([first[i] for i in left_batch] + kept)
    equation = f"{''.join(first)},{''.join(second)}->{result}"
    return graph.node("Einsum", full, shape, equation=equation)


def _concatenate(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    full = [graph.full(o, s) for o, s in zip(operands, shapes, strict=True)]
    return graph.node("Concat", full, eqn.outvars[0].aval.shape, axis=eqn.params["dimension"])


def _slice(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    starts, ends = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or (1,) * len(starts)
    bounds = [
        graph.constant(np.asarray(b, np.int64)) for b in (starts, ends, range(len(starts)), steps)
    ]
    full = graph.full(operands[0], shapes[0])
    return graph.node("Slice", [full, *bounds], eqn.outvars[0].aval.shape)


def _convert(graph: Graph, eqn: Any, operands: list[str], _: list[tuple[int, ...]]) -> str:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(eqn.outvars[0].aval.dtype))
    return graph.node("Cast", operands[:1], graph._shapes[operands[0]], to=kind)


def _power(graph: Graph, eqn: Any, operands: list[str], _: list[tuple[int, ...]]) -> str:
    dtype = eqn.invars[0].aval.dtype
    exponent = graph.constant(np.asarray(eqn.params.get("y", 2), dtype))
    return graph.node("Pow", [operands[0], exponent], graph._shapes[operands[0]])


def _rsqrt(graph: Graph, _: Any, operands: list[str], __: list[tuple[int, ...]]) -> str:
    shape = graph._shapes[operands[0]]
    return graph.node("Reciprocal", [graph.node("Sqrt", operands[:1], shape)], shape)


def _iota(graph: Graph, eqn: Any, _: list[str], __: list[tuple[int, ...]]) -> str:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    small = [1] * len(shape)
    small[axis] = shape[axis]
    return graph.constant(np.arange(shape[axis], dtype=eqn.params["dtype"]).reshape(small))


def _select(graph: Graph, eqn: Any, operands: list[str], _: list[tuple[int, ...]]) -> str:
    which, if_false, if_true = operands
    return graph._elementwise("Where", [which, if_true, if_false], eqn.outvars[0].aval.shape)


def _is_plain_convolution(eqn: Any) -> bool:
    params = eqn.params
    ones = (1,) * len(params["lhs_dilation"])
    return params["lhs_dilation"] == ones and params["batch_group_count"] == 1


def _convolution(graph: Graph, eqn: Any, operands: list[str], shapes: list[tuple[int, ...]]) -> str:
    params, layout = eqn.params, eqn.params["dimension_numbers"]
    image, kernel = (graph.full(o, s) for o, s in zip(operands, shapes, strict=True))

    def permuted(tensor: str, shape: Sequence[int], order: Sequence[int]) -> str:
        return graph.node("Transpose", [tensor], [shape[i] for i in order], perm=list(order))

    image = permuted(image, shapes[0], layout.lhs_spec)
    kernel = permuted(kernel, shapes[1], layout.rhs_spec)
    out = eqn.outvars[0].aval.shape
    padding = params["padding"]
    result = graph.node(
        "Conv",
        [image, kernel],
        [out[i] for i in layout.out_spec],
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        group=params["feature_group_count"],
        pads=[low for low, _ in padding] + [high for _, high in padding],
    )
    order = [layout.out_spec.index(i) for i in range(len(out))]
    return graph.node("Transpose", [result], out, perm=order)


_WRITERS: dict[str, Writer] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "dot_general": _dot,
    "concatenate": _concatenate,
    "slice": _slice,
    "convert_element_type": _convert,
    "integer_pow": _power,
    "square": _power,
    "rsqrt": _rsqrt,
    "iota": _iota,
    "select_n": _select,
    "conv_general_dilated": _convolution,
}
