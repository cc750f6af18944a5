"""Recipes by which other processes make environments on the host: a class, and its fields.

Nothing is pickled: a recipe names a class of an installed module, or of the user's, which the
worker's process imports, and holds plain data.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from fragflow.errors import ConfigError, RunError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An object made by calling a class with fields."""

    module: str
    name: str
    fields: Mapping[str, Any]
    code: str = ""
    """digest of the module's code, which must be the same in the other process"""


def recipe_of(value: Any, title: str) -> Any:
    """Converts `value` to plain data and recipes; errors call it `title`."""
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.dtype):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(recipe_of(v, title) for v in value)
    if isinstance(value, list):
        return [recipe_of(v, title) for v in value]
    if isinstance(value, Mapping):
        return {k: recipe_of(v, title) for k, v in value.items()}
    kind = type(value)
    if isinstance(value, Enum):
        return _recipe(kind, {"": value.value})
    is_importable = "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__"
    if dataclasses.is_dataclass(value) and is_importable:
        fields = {
            f.name: recipe_of(getattr(value, f.name), title)
            for f in dataclasses.fields(value)
            if f.init
        }
        return _recipe(kind, fields)
    if is_importable and kind.__module__ != "builtins" and getattr(value, "__dict__", None) == {}:
        return _recipe(kind, {})
    raise ConfigError(
        f"{title} cannot be made in another process: it holds a {kind.__qualname__} of "
        f"{kind.__module__}. Make it a dataclass of plain fields in a module of its own (not in "
        "the script that is run), or use --runtime local."
    )


def _recipe(kind: type, fields: Mapping[str, Any]) -> Recipe:
    name, module = kind.__qualname__, kind.__module__
    return Recipe(module=module, name=name, fields=fields, code=_digest(sys.modules[module]))


def _digest(module: Any) -> str:
    """The digest of a module's source; empty if it has none."""
    with contextlib.suppress(OSError, TypeError):
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    return ""


def make(recipe: Any) -> Any:
    """Makes the object that a recipe describes."""
    if isinstance(recipe, Recipe):
        made: Any = importlib.import_module(recipe.module)
        if _digest(made) != recipe.code:
            raise RunError(
                f"module {recipe.module}, which makes environments, has other code here "
                f"({getattr(made, '__file__', None)}) than where the run was started: use the same"
            )
        for part in recipe.name.split("."):
            made = getattr(made, part)
        fields = {k: make(v) for k, v in recipe.fields.items()}
        return made(fields[""]) if "" in fields else made(**fields)
    if isinstance(recipe, tuple):
        return tuple(make(v) for v in recipe)
    if isinstance(recipe, list):
        return [make(v) for v in recipe]
    if isinstance(recipe, dict):
        return {k: make(v) for k, v in recipe.items()}
    return recipe


def search_path() -> list[str]:
    """Directories in which the other process finds the user's modules."""
    return [path for path in sys.path if path]
