"""Builds the kernels in C++ when the package is installed, if there is a compiler."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/fragflow/ops/native/kernels.cc")
LIBRARY = SOURCE.with_suffix(".so")


class KernelHook(BuildHookInterface):
    """Without a compiler, or where it fails, the package is installed without these kernels."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        reason = build(root / SOURCE, root / LIBRARY)
        if reason:
            self.app.display_warning(f"kernels in C++ are left out: {reason}")
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        # The library speaks to XLA, not to Python: any Python of this platform can load it.
        build_data["tag"] = f"py3-none-{_platform_tag()}"

    def clean(self, versions: list[str]) -> None:
        del versions
        (Path(self.root) / LIBRARY).unlink(missing_ok=True)


def build(source: Path, library: Path) -> str | None:
    """Compiles `source`; why that was not possible, if it was not."""
    library.unlink(missing_ok=True)
    if sys.platform == "win32":
        return "they are not built on Windows"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return "there is no C++ compiler (c++)"
    headers = _headers()
    if headers is None:
        return "jaxlib, which has the headers, is not there"
    made = library.with_suffix(".tmp")
    command = [compiler, "-O3", "-std=c++17", "-fPIC", "-shared", "-w", "-isystem", str(headers)]
    try:
        done = subprocess.run(
            [*command, str(source), "-o", str(made)], capture_output=True, text=True, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler}: {error}"
    if done.returncode:
        return f"{compiler} failed: {done.stderr.strip()[-500:]}"
    made.replace(library)
    return None


def _headers() -> Path | None:
    spec = importlib.util.find_spec("jaxlib")
    places = spec.submodule_search_locations if spec else None
    found = [Path(p) / "include" for p in places or () if (Path(p) / "include").is_dir()]
    return found[0] if found else None


def _platform_tag() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))
