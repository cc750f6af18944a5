"""Write a training loop once; a distribution policy cuts it into fragments at deployment."""

import ast
import importlib
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Public names with the modules they come from, read off the stub beside this file.

    Each is loaded at its first use: `fragflow --help` must not wait for JAX.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _homes()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fragflow' has no attribute {name!r}")
    home = _HOMES[name]
    if home == __name__:  # a module of ours
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
