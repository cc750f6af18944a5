"""Versions that must be the same in all processes of a run."""

import platform
from importlib.metadata import PackageNotFoundError, version

from fragflow.errors import RunError


def versions() -> dict[str, str]:
    """Versions of software that could give other results, or speak another protocol."""
    found = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "fragflow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def refuse_other(theirs: dict[str, str], who: str) -> None:
    """Raises RunError if a process has other versions than this one."""
    ours = versions()
    different = [
        f"{name} {theirs.get(name)} instead of {wanted}"
        for name, wanted in ours.items()
        if theirs.get(name) != wanted
    ]
    if different:
        raise RunError(f"{who} has {', '.join(different)}: use the same versions everywhere")
