"""Prepares the start of a graph's workers: their programs, devices and first values."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fragflow._jax import REPLICA_AXIS, plain_aval
from fragflow.api.kernel import REFERENCE
from fragflow.errors import ConfigError
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, REDUCTIONS, Fragment, Parcel, Transfer, Value
from fragflow.graph.replicas.kinds import UNIFORM, Kind, Tag
from fragflow.runtime.planning.message_pieces import fan, is_joined, piece_name, wholes
from fragflow.runtime.planning.plan import FragmentPlan, Plan
from fragflow.runtime.programs.canonical_blocks import blocked_operations
from fragflow.runtime.programs.compile import (
    Executable,
    SegmentFunction,
    compile_function,
    segment_function,
    training_function,
)
from fragflow.runtime.programs.implementations import Picks, as_compiled, kernel_programs, pick
from fragflow.runtime.programs.kernels_in_program import Computed
from fragflow.runtime.programs.layout import DeviceGroup, Layout, OneDevice, kind_of
from fragflow.runtime.programs.trace_nodes import EvalContext

Progress = Callable[[str, int, int], None]
"""(phase, done, total)"""


def no_progress(phase: str, done: int, total: int) -> None:
    """Reports nothing."""
    del phase, done, total


def devices_for(fragment: Fragment) -> list[Any]:
    """The devices that a fragment's replicas run on."""
    available = jax.devices(fragment.device)[fragment.first_device :]
    if fragment.group:
        if len(available) < fragment.replicas:
            needed = fragment.first_device + fragment.replicas
            more = f", or start Python with JAX_NUM_CPU_DEVICES={needed}"
            raise ConfigError(
                f"fragment {fragment.name!r} needs {fragment.replicas} {fragment.device} devices, "
                f"but JAX has started with {len(available)}. Use fewer workers or learners"
                f"{more if fragment.device == 'cpu' else ''}."
            )
        return list(available[: fragment.replicas])
    if fragment.device == "cpu" and not fragment.own_devices:
        return [available[0]] * fragment.replicas
    return [available[r % len(available)] for r in range(fragment.replicas)]


class Assembly:
    """Compiles the programs of a graph, and makes the first values of its workers."""

    def __init__(
        self,
        fdg: FDG,
        plan: Plan,
        state: Mapping[Value, np.ndarray | jax.Array],
        sources: Mapping[Value, np.ndarray],
        *,
        row_kinds: Mapping[Value, Kind] | None = None,
        implementations: Mapping[str, str] | None = None,
        compiler_options: Mapping[str, Any] | None = None,
        progress: Progress = no_progress,
    ):
        """`state` holds the first value of every state leaf, `row_kinds` asks for blocks.

        `implementations` are those asked for, by kernel; others are picked.
        """
        self.fdg = fdg
        self.plan = plan
        self.num_programs = 0
        self._picks = pick(plan, implementations, is_deterministic=row_kinds is not None)
        self._computed: dict[str, Computed] = {}
        self._state = state
        self._sources = sources
        self._row_kinds = row_kinds
        self._compiler_options = dict(compiler_options or {})
        self._progress = progress
        self._layouts = {name: _layouts(part) for name, part in plan.parts.items()}
        self._compiled: dict[tuple[str, Any], list[Any]] = {}
        self._total = sum(
            (1 if part.fused else len(part.segments))
            * len(set(map(_device_key, self._layouts[name])))
            for name, part in plan.parts.items()
        )

    @property
    def picks(self) -> Picks:
        """The implementation of each kernel in the programs that have been compiled."""
        return as_compiled(self._picks, self._computed)

    def found(self, name: str, computed: Computed) -> None:
        """Records the implementations found in a fragment's compiled programs."""
        self._computed[name] = self._computed.get(name, frozenset()) | computed

    def layouts(self, name: str) -> list[Layout]:
        """The layouts of a fragment's replicas; all replicas of a group share one."""
        return self._layouts[name]

    def programs(
        self,
        name: str,
        layout: Layout,
        finish: Callable[[SegmentFunction], Any] = compile_function,
    ) -> list[Any]:
        """A fragment's programs, compiled by `finish`; replicas on one device share them."""
        key = (name, _device_key(layout))
        if key not in self._compiled:
            made = self._compile(self.plan.parts[name], layout, finish)
            self._compiled[key] = made
            for program in made:
                if isinstance(program, Executable):
                    self.found(name, program.computed)
        return self._compiled[key]

    def first_values(
        self,
        part: FragmentPlan,
        layout: Layout,
        portion: tuple[int, int],
        kinds: Mapping[Value, Kind],
    ) -> dict[Value, jax.Array]:
        """Constants, sources and state of the replica `portion[0]` of `portion[1]`.

        `kinds` say which of these have the environment axis.
        """
        fragment = part.fragment
        index, count = portion

        def place(array: Any, name: Value) -> jax.Array:
            kind = kind_of(name, kinds)
            if count > 1 and kind.tag is Tag.VARYING:
                rows = np.shape(array)[kind.axis] // count
                window = slice(index * rows, (index + 1) * rows)
                array = array[(*[slice(None)] * kind.axis, window)]
            return layout.place(array, kind_of(name, self.fdg.kinds[fragment.name]))

        values: dict[Value, jax.Array] = {}
        for constant in fragment.constants:
            values[constant.output] = layout.place(constant.arrays[fragment.extent], UNIFORM)
        for name, array in self._sources.items():
            values[name] = place(array, name)
        for carry in fragment.loop.carries:
            first = place(self._state[carry.inside], carry.inside)
            if carry.inside in part.in_place:
                first = jnp.copy(first)  # written into, so that it must not be shared
            values[carry.init] = values[carry.inside] = first
        return values

    def _compile(
        self, part: FragmentPlan, layout: Layout, finish: Callable[[SegmentFunction], Any]
    ) -> list[Any]:
        fragment = part.fragment
        avals = self._avals(part, fragment.extent)
        kinds = self._kinds(part)
        context = self._setting(part, layout, fragment.extent)
        picked = self._picks[fragment.name]
        expected = frozenset((k, way.how) for k, way in picked.items() if way.how != REFERENCE)
        programs = []
        if part.fused:
            self._progress("compiling", self.num_programs, self._total)
            sources = list(self.fdg.program.sources.values())
            function = training_function(
                fragment,
                sources,
                avals,
                kinds,
                layout,
                context,
                self._compiler_options,
                part.in_place,
            )
            programs.append(finish(replace(function, expected=expected)))
            self.num_programs += 1
        for index, segment in enumerate(part.segments):
            self._progress("compiling", self.num_programs, self._total)
            name = f"{fragment.name}/{index}"
            types, how = avals, context
            if segment.extent is not None:
                types = self._avals(part, segment.extent)
                how = self._setting(part, layout, segment.extent)
            function = segment_function(
                segment, types, kinds, layout, how, name, self._compiler_options
            )
            programs.append(finish(replace(function, expected=expected)))
            self.num_programs += 1
        self._progress("compiling", self.num_programs, self._total)
        return programs

    def _setting(self, part: FragmentPlan, layout: Layout, extent: Extent) -> EvalContext:
        fragment = part.fragment
        replacements = (
            blocked_operations(fragment.loop, self._row_kinds, extent)
            if self._row_kinds is not None
            else {}
        )
        return EvalContext(
            extent=extent,
            group=fragment.replicas if fragment.group else 1,
            replacements=replacements,
            kernels=kernel_programs(self._picks[fragment.name], layout.platform),
        )

    def _kinds(self, part: FragmentPlan) -> dict[Value, Kind]:
        """The kinds of a fragment's values, and of those that its plan adds."""
        name = part.fragment.name
        kinds = self.fdg.kinds[name]
        pieces = {p: kind_of(whole, kinds) for p, whole in wholes(self.fdg, name).items()}
        # Packed values hold one replica's rows in a form that cannot be cut.
        packed = dict.fromkeys(part.packed_avals, Kind(tag=Tag.PARTIAL))
        return {**kinds, **pieces, **packed}

    def _avals(self, part: FragmentPlan, extent: Extent) -> dict[Value, Any]:
        fragment = part.fragment
        avals = dict(self.fdg.program.avals[extent])
        for constant in fragment.constants:
            array = constant.arrays[extent]
            avals[constant.output] = jax.ShapeDtypeStruct(np.shape(array), array.dtype)
        for loop in part.loops:
            avals[loop.counter] = jax.ShapeDtypeStruct((), np.int32)
        for transfer in self.fdg.transfers:
            if transfer.target == fragment.name:
                avals |= _piece_avals(self.fdg, transfer)
        return {**avals, **part.packed_avals}


def _layouts(part: FragmentPlan) -> list[Layout]:
    devices = devices_for(part.fragment)
    if part.fragment.group:
        return [DeviceGroup(mesh=Mesh(np.array(devices), (REPLICA_AXIS,)))]
    return [OneDevice(device=device) for device in devices]


def _device_key(layout: Layout) -> Any:
    return layout.device if isinstance(layout, OneDevice) else "group"


def _piece_avals(fdg: FDG, transfer: Transfer) -> dict[Value, Any]:
    """Types of the pieces that a receiver joins: one from each sender, cut for the receiver."""
    source, ends = fdg.fragments[transfer.source], fan(fdg, transfer)

    def aval(parcel: Parcel) -> Any:
        plain = plain_aval(fdg.program.avals[source.extent][parcel.value])
        shape = list(plain.shape)
        if parcel.cut is not None:
            shape[parcel.cut] //= ends.receivers
        # A partial value has a leading axis in a group, of one entry per replica.
        if source.group and parcel.collective in REDUCTIONS:
            shape.insert(0, 1)
        return jax.ShapeDtypeStruct(tuple(shape), plain.dtype)

    return {
        piece_name(p.value, k): aval(p)
        for p in transfer.parcels
        if is_joined(p)
        for k in range(ends.senders)
    }
