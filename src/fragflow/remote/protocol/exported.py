"""Programs for other processes: exported where the algorithm is known, compiled where they run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import export

from fragflow.errors import ConfigError
from fragflow.graph.ir import Value
from fragflow.ops.kernels import native
from fragflow.runtime.programs.compile import Executable, SegmentFunction, compile_safely
from fragflow.runtime.programs.layout import DeviceGroup, Layout, OneDevice

FOREIGN_CALLS = {"fragflow_discounted_sums": native.absent}
"""C++ functions that programs call; each value makes one known to a process, or says why not"""

_TARGET = re.compile(r"\b\w+_\w+\b(?=[,'\]])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedProgram:
    """A compiled segment's program in JAX's portable format."""

    plain: bytes
    inlined: bytes
    """the same with components inlined: see `compile_safely`"""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    donated: tuple[int, ...]
    options: Mapping[str, Any]
    name: str
    line: str
    expected: tuple[tuple[str, str], ...]
    """kernels and the implementations that were picked"""


def export_program(function: SegmentFunction) -> ExportedProgram:
    """Exports a segment."""
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in FOREIGN_CALLS]

    def serialized(inline: bool) -> bytes:
        jitted = function.jitted(inline)
        platforms = [function.layout.platform]
        try:
            made = export.export(jitted, platforms=platforms, disabled_checks=checks)(
                *function.types
            )
            return bytes(made.serialize())
        except NotImplementedError as error:
            if "callback" not in str(error):
                raise
            raise ConfigError(
                f"{function.name}, which runs {function.line}, calls back into Python, which only "
                "this process can do: leave the callback out, or use --runtime local"
            ) from error
        except ValueError as error:
            if "custom calls whose targets" not in str(error):
                raise
            names = ", ".join(sorted(set(_TARGET.findall(str(error))))) or "of another library"
            raise ConfigError(
                f"{function.name}, which runs {function.line}, calls foreign functions ({names}) "
                "that only this process knows: leave them out, or use --runtime local"
            ) from error

    return ExportedProgram(
        plain=serialized(False),
        inlined=serialized(True),
        inputs=function.inputs,
        outputs=function.outputs,
        donated=function.donated,
        options=dict(function.options),
        name=function.name,
        line=function.line,
        expected=tuple(sorted(function.expected)),
    )


def compile_exported(exported: ExportedProgram, layout: Layout) -> Executable:
    """Compiles a program for the devices on which this process runs it."""
    for name, absent in FOREIGN_CALLS.items():
        if name.encode() in exported.plain and (reason := absent()):
            raise ConfigError(
                f"{exported.name} calls {name}, which this worker's machine does not have: {reason}"
                ". Alternatively, use XLA: --implementation discounted_sums=xla"
            )

    def lowered(inline: bool) -> Any:
        loaded = export.deserialize(bytearray(exported.inlined if inline else exported.plain))
        types = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
            for aval, sharding in zip(loaded.in_avals, _shardings(loaded, layout), strict=True)
        ]
        return jax.jit(loaded.call, donate_argnums=exported.donated).lower(*types)

    call, computed = compile_safely(
        lowered, dict(exported.options) or None, frozenset(exported.expected)
    )
    return Executable(
        call=call,
        inputs=exported.inputs,
        outputs=exported.outputs,
        name=exported.name,
        line=exported.line,
        computed=computed,
    )


def _shardings(loaded: export.Exported, layout: Layout) -> list[Any]:
    if isinstance(layout, DeviceGroup):
        return list(loaded.in_shardings_jax(layout.mesh))
    assert isinstance(layout, OneDevice)
    return [jax.sharding.SingleDeviceSharding(layout.device)] * len(loaded.in_avals)
