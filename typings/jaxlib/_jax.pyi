# The types that JAX's modules take from its compiled library, which says none. All else is Any.
from collections.abc import Iterable
from typing import Any

class Device:
    id: int
    platform: str
    device_kind: str
    process_index: int

class JaxRuntimeError(RuntimeError): ...

class pytree:
    class PyTreeDef:
        num_leaves: int
        def unflatten(self, leaves: Iterable[Any], /) -> Any: ...
        def flatten_up_to(self, tree: Any, /) -> list[Any]: ...
        def children(self) -> list[pytree.PyTreeDef]: ...

def __getattr__(name: str) -> Any: ...
