"""Runs a component's network in ONNX Runtime, between two programs of XLA."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fragflow._jax import ClosedJaxpr, Literal
from fragflow.errors import ConfigError
from fragflow.runtime.divide import Division, Name, Operand, Step, divide, needs, run_steps
from fragflow.runtime.onnx_graph import IR_VERSION, OPSET, Graph, can_write, is_heavy


def absent() -> str | None:
    """Why ONNX Runtime cannot be used on this machine, if it cannot."""
    missing = [m for m in ("onnx", "onnxruntime") if importlib.util.find_spec(m) is None]
    return f"{missing[0]} is not installed: pip install 'fragflow[onnx]'" if missing else None


def through_onnx(
    closed: ClosedJaxpr,
    component: str,
    device: Any,
    compiler_options: dict[str, Any],
    sharers: int = 1,
) -> Callable[..., Sequence[Any]]:
    """A function that does what `closed` does, with the layers of `component` in ONNX Runtime.

    `sharers` are the fragments that run this at the same time, on the same cores.
    """
    division = divide(closed, component, can_write)
    if not any(map(is_heavy, division.middle)):
        raise ConfigError(
            f"implementation {component}=onnx: no layer was found in {component!r} that ONNX "
            "Runtime could compute"
        )
    return _Divided(closed, division, device, compiler_options, sharers).call


class _Divided:
    def __init__(
        self,
        closed: ClosedJaxpr,
        division: Division,
        device: Any,
        compiler_options: dict[str, Any],
        sharers: int,
    ):
        avals: dict[Name, Any] = dict(zip(division.inputs, closed.in_avals, strict=True))
        for step in (*division.before, *division.middle, *division.after):
            avals.update(zip(step.outputs, (v.aval for v in step.eqn.outvars), strict=True))
        self._constants = division.constants
        constants = set(division.constants)
        inputs = set(division.inputs)
        later = needs(division.after, division.outputs)
        used = needs(division.middle)
        made_before = {n for s in division.before for n in s.outputs}
        made_middle = {n for s in division.middle for n in s.outputs}
        self._prepared = sorted(made_before & (used | later))
        self._fed = sorted(used & (inputs | made_before))
        self._fetched = sorted(made_middle & later)
        self._rest = sorted((later & (inputs | made_before)) - constants)
        self._input_names = division.inputs
        options = compiler_options or None

        def compiled(steps: Sequence[Step], takes: Sequence[Name], gives: Sequence[Operand]) -> Any:
            def function(*args: Any) -> list[Any]:
                env = {**self._constants, **dict(zip(takes, args, strict=True))}
                run_steps(steps, env)
                return [g.val if isinstance(g, Literal) else env[g] for g in gives]

            sharding = jax.sharding.SingleDeviceSharding(device)
            types = [
                jax.ShapeDtypeStruct(avals[n].shape, avals[n].dtype, sharding=sharding)
                for n in takes
            ]
            return jax.jit(function).lower(*types).compile(compiler_options=options)

        self._before_inputs = sorted(needs(division.before) & inputs)
        self._before = (
            compiled(division.before, self._before_inputs, self._prepared)
            if division.before
            else None
        )
        self._after = compiled(division.after, [*self._rest, *self._fetched], division.outputs)
        self._session = _session(division, avals, self._fed, self._fetched, sharers)
        self._feeds = [f"v{name}" for name in self._fed]

    def call(self, *args: jax.Array) -> Sequence[Any]:
        env: dict[Name, Any] = dict(zip(self._input_names, args, strict=True))
        if self._before is not None:
            prepared = self._before(*(env[n] for n in self._before_inputs))
            env.update(zip(self._prepared, prepared, strict=True))
        fed = {feed: np.asarray(env[n]) for feed, n in zip(self._feeds, self._fed, strict=True)}
        fetched = self._session.run(None, fed)
        return self._after(*(env[n] for n in self._rest), *fetched)


def _session(
    division: Division,
    avals: dict[Name, Any],
    fed: Sequence[Name],
    fetched: Sequence[Name],
    sharers: int,
) -> Any:
    import onnxruntime
    from onnx import helper

    constants = {n: v for n, v in division.constants.items() if n in needs(division.middle)}
    graph = Graph({n: avals[n] for n in fed}, constants)
    for step in division.middle:
        graph.write(step)
    results = [graph.name_of(n, avals[n].shape) for n in fetched]

    def described(tensor: str, name: Name) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(avals[name].dtype))
        return helper.make_tensor_value_info(tensor, kind, avals[name].shape)

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "network",
            [described(f"v{n}", n) for n in fed],
            [described(r, n) for r, n in zip(results, fetched, strict=True)],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, (os.cpu_count() or 1) // sharers)
    options.inter_op_num_threads = 1
    # Threads that spin while they wait would take the cores from environments.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
