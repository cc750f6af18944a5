"""Plain data as bytes and back: a closed list of record types, JSON, and raw arrays beside it.

Bytes can only become one of the listed records, numbers, texts and arrays: no code runs.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import jax
import numpy as np

from fragflow.errors import RunError
from fragflow.remote.transport.frames import array_from, raw

Encoded = tuple[bytes, list[Any]]
"""text, and the arrays and bytes that it refers to"""


class Codec:
    """Encodes records of the given classes."""

    def __init__(self, records: Sequence[type]):
        self._classes = {cls.__name__: cls for cls in records}

    def encode(self, value: Any) -> Encoded:
        blobs: list[Any] = []
        return json.dumps(self._plain(value, blobs), separators=(",", ":")).encode(), blobs

    def decode(self, text: bytes | memoryview, blobs: Sequence[Any]) -> Any:
        try:
            return self._value(json.loads(bytes(text)), blobs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RunError(f"a record could not be read: {error!r}") from error

    def _plain(self, value: Any, blobs: list[Any]) -> Any:
        def inner(item: Any) -> Any:
            return self._plain(item, blobs)

        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [inner(v) for v in value]
        if isinstance(value, Enum):
            return {"": type(value).__name__, "value": value.value}
        if isinstance(value, bytes | bytearray):
            blobs.append(value)
            return {"": "bytes", "blob": len(blobs) - 1}
        if isinstance(value, np.dtype):
            return {"": "dtype", "name": value.name}
        if isinstance(value, np.generic):
            return value.item()  # a number; arrays without axes are arrays
        if isinstance(value, np.ndarray | jax.Array):
            array = np.asarray(value)
            blobs.append(raw(array))
            shape = list(array.shape)
            return {"": "array", "shape": shape, "dtype": array.dtype.name, "blob": len(blobs) - 1}
        if isinstance(value, jax.ShapeDtypeStruct):
            return {"": "type", "shape": list(value.shape), "dtype": np.dtype(value.dtype).name}
        for name, kind in _COLLECTIONS.items():
            if isinstance(value, kind):
                return {"": name, "of": [inner(v) for v in value]}
        if isinstance(value, Mapping):
            return {"": "dict", "of": [[inner(k), inner(v)] for k, v in value.items()]}
        name = type(value).__name__
        if self._classes.get(name) is not type(value):
            raise TypeError(f"{name} is not a record that travels")
        fields = {f.name: inner(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"": name, **fields}

    def _value(self, plain: Any, blobs: Sequence[Any]) -> Any:
        def inner(item: Any) -> Any:
            return self._value(item, blobs)

        if isinstance(plain, list):
            return [inner(v) for v in plain]
        if not isinstance(plain, dict):
            return plain
        match plain[""]:
            case "bytes":
                return bytes(blobs[plain["blob"]])
            case "dtype":
                return np.dtype(plain["name"])
            case "array":
                buffer = blobs[plain["blob"]]
                return array_from(buffer, plain["shape"], np.dtype(plain["dtype"]))
            case "type":
                return jax.ShapeDtypeStruct(tuple(plain["shape"]), np.dtype(plain["dtype"]))
            case "dict":
                return {inner(k): inner(v) for k, v in plain["of"]}
            case name if name in _COLLECTIONS:
                make: Callable[[Any], Any] = _COLLECTIONS[name]
                return make(inner(v) for v in plain["of"])
            case name:
                fields = {k: inner(v) for k, v in plain.items() if k}
                cls = self._classes[name]
                return cls(fields["value"]) if issubclass(cls, Enum) else cls(**fields)


_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "frozenset": frozenset, "set": set}
