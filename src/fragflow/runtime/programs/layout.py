"""Placement of a fragment's values: on one device, or spread over a group's mesh.

A group of replicas runs as one program over a mesh. A value with the environment axis is sharded
along it, a uniform one is on every device, any other gets a leading axis with one entry per
replica. The mesh may have devices of several processes; each then has its own part of a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from fragflow._jax import REPLICA_AXIS, is_key, plain_aval, raw_key, wrapped_key
from fragflow.graph.ir import Value
from fragflow.graph.replicas.kinds import UNIFORM, Kind, Tag

Body = Callable[[dict[Value, Any]], dict[Value, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    """A replica by itself."""

    device: Any

    @property
    def devices(self) -> list[Any]:
        return [self.device]

    @property
    def replicas(self) -> int:
        return 1

    @property
    def platform(self) -> str:
        return self.device.platform

    def aval(self, _value: Value, aval: Any, _kind: Kind) -> jax.ShapeDtypeStruct:
        plain = plain_aval(aval)
        return jax.ShapeDtypeStruct(
            plain.shape, plain.dtype, sharding=SingleDeviceSharding(self.device)
        )

    def wrap(self, body: Callable[..., Any], _ins: Sequence[Kind], _outs: Sequence[Kind]) -> Any:
        return body

    def place(self, array: Any, _kind: Kind) -> jax.Array:
        return jax.device_put(array, self.device)

    def receive(self, parts: Sequence[Any], _kind: Kind) -> jax.Array:
        (part,) = parts
        is_here = isinstance(part, jax.Array) and part.device is self.device
        return part if is_here else jax.device_put(part, self.device)

    def pieces(self, array: jax.Array) -> Sequence[jax.Array]:
        return (array,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """All replicas of a fragment as one program."""

    mesh: Mesh

    @property
    def devices(self) -> list[Any]:
        """The devices of this process, in the order of their replicas."""
        here = jax.process_index()
        return [d for d in self.mesh.devices.flat if d.process_index == here]

    @property
    def replicas(self) -> int:
        return self.mesh.size

    @property
    def platform(self) -> str:
        return self.mesh.devices.flat[0].platform

    def _spec(self, kind: Kind) -> PartitionSpec:
        if kind.tag is Tag.UNIFORM:
            return PartitionSpec()
        if kind.is_cuttable:
            return PartitionSpec(*[None] * kind.axis, REPLICA_AXIS)
        return PartitionSpec(REPLICA_AXIS)

    def aval(self, _value: Value, aval: Any, kind: Kind) -> jax.ShapeDtypeStruct:
        plain = plain_aval(aval)
        shape = list(plain.shape)
        if kind.is_cuttable:
            shape[kind.axis] *= self.replicas
        elif kind.tag is not Tag.UNIFORM:
            shape.insert(0, self.replicas)
        return jax.ShapeDtypeStruct(shape, plain.dtype, sharding=self._sharding(kind))

    def _sharding(self, kind: Kind) -> NamedSharding:
        return NamedSharding(self.mesh, self._spec(kind))

    def _is_stacked(self, kind: Kind) -> bool:
        return kind.tag is not Tag.UNIFORM and not kind.is_cuttable

    def wrap(self, body: Callable[..., Any], ins: Sequence[Kind], outs: Sequence[Kind]) -> Any:
        def local(*args: Any) -> Any:
            args = tuple(a[0] if self._is_stacked(k) else a for a, k in zip(args, ins, strict=True))
            results = body(*args)
            return [
                r[None] if self._is_stacked(k) else r for r, k in zip(results, outs, strict=True)
            ]

        # Replication is checked by our own analysis; JAX's cannot follow rebound equations.
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=tuple(self._spec(k) for k in ins),
            out_specs=[self._spec(k) for k in outs],
            check_vma=False,
        )

    def place(self, array: Any, kind: Kind) -> jax.Array:
        """Places a value, given all of it, or the part of this process's replicas."""
        count = len(self.devices)
        if count == self.mesh.size:
            return jax.device_put(array, self._sharding(kind))
        if kind.is_cuttable:
            return self.receive(np.split(np.asarray(array), count, kind.axis), kind)
        is_stacked = self._is_stacked(kind)
        return self.receive(list(array) if is_stacked else [array] * count, kind)

    def receive(self, parts: Sequence[Any], kind: Kind) -> jax.Array:
        """Makes a global array from one local array per replica of this process."""
        placed = [
            p if isinstance(p, jax.Array) and p.devices() == {d} else jax.device_put(p, d)
            for p, d in zip(parts, self.devices, strict=True)
        ]
        shape = list(np.shape(placed[0]))
        if kind.is_cuttable:
            shape[kind.axis] *= self.replicas
        elif kind.tag is not Tag.UNIFORM:
            placed = [p[None] for p in placed]
            shape.insert(0, self.replicas)
        return jax.make_array_from_single_device_arrays(tuple(shape), self._sharding(kind), placed)

    def pieces(self, array: jax.Array) -> Sequence[jax.Array]:
        order = {d: i for i, d in enumerate(self.mesh.devices.flat)}
        shards = sorted(array.addressable_shards, key=lambda s: order[s.device])
        return tuple(s.data for s in shards)


Layout = OneDevice | DeviceGroup


def on_host(array: Any) -> np.ndarray:
    """A value as a NumPy array; of a group over several processes, this process's part."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    assert isinstance(array.sharding, NamedSharding)
    axis = next(i for i, name in enumerate(array.sharding.spec) if name is not None)
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards], axis)


def plain_function(
    body: Body, inputs: Sequence[Value], outputs: Sequence[Value], avals: Mapping[Value, Any]
) -> Callable[..., list[Any]]:
    """Wraps `body` as a function of positional plain arrays; random keys are numbers outside it."""

    def function(*args: Any) -> list[Any]:
        env = {}
        for value, arg in zip(inputs, args, strict=True):
            aval = avals.get(value)
            env[value] = wrapped_key(arg, aval) if aval is not None and is_key(aval) else arg
        env = body(env)
        results = [env[v] for v in outputs]
        return [raw_key(r) if is_key(r) else r for r in results]

    return function


def kind_of(value: Value, kinds: Mapping[Value, Kind]) -> Kind:
    """The kind of a value; values that the runtime adds are uniform."""
    return kinds.get(value, UNIFORM)
