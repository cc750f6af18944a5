"""Builds the kernels in C++ when the package is installed, if there is a compiler."""

import contextlib
import ctypes
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/fragflow/ops/kernels/kernels.cc")
LIBRARY = SOURCE.with_suffix(".so")
SECONDS = "FRAGFLOW_COMPILER_SECONDS"
"""the variable that says how long the compiler may take"""


class KernelHook(BuildHookInterface):
    """Without a compiler, or where it fails, the package is installed without these kernels."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        self._directory = tempfile.TemporaryDirectory(prefix="fragflow-kernels-")
        made = Path(self._directory.name) / LIBRARY.name
        reason = build(root / SOURCE, made)
        if version == "editable":  # it is looked for beside the source
            reason = _put(made if reason is None else None, root / LIBRARY) or reason
        if reason:
            self.app.display_warning(f"kernels in C++ are left out: {reason}")
            return
        if version != "editable":
            inside = LIBRARY.relative_to("src")
            build_data["force_include"][str(made)] = str(inside)
        build_data["pure_python"] = False
        # The library speaks to XLA, not to Python: any Python of this platform can load it.
        build_data["tag"] = f"py3-none-{_platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if self.target_name == "wheel":
            self._directory.cleanup()

    def clean(self, versions: list[str]) -> None:
        del versions
        (Path(self.root) / LIBRARY).unlink(missing_ok=True)


def build(source: Path, library: Path) -> str | None:
    """Compiles `source`; why that was not possible, if it was not."""
    if sys.platform == "win32":
        return "they are not built on Windows"
    headers = _headers()
    if headers is None:
        return "jaxlib, which has the headers, is not there"
    try:
        seconds = float(os.environ.get(SECONDS) or 120)
        compiler = shlex.split(os.environ.get("CXX", "")) or _compiler()
    except ValueError as error:
        return f"CXX or {SECONDS}: {error}"
    if not compiler:
        return "there is no C++ compiler (c++)"
    options = ["-O3", "-std=c++17", "-fPIC", "-shared", "-w", "-isystem", str(headers)]
    return _run([*compiler, *options, str(source), "-o", str(library)], library, seconds)


def _run(command: list[str], library: Path, seconds: float) -> str | None:
    """Runs a compiler that makes `library`; why it failed, if it did."""
    with tempfile.TemporaryFile() as output:  # no pipe: who holds its end could make us wait
        try:
            # A group of its own: a compiler starts others, which must not outlive it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"{command[0]} has not finished within {seconds:g} s"
        except BaseException:
            _end(process)
            raise
        if code == 0:
            return None if _loads(library) else f"{command[0]} has not made a library"
        output.seek(0)
        words = " ".join(output.read().decode(errors="replace").split())
        return f"{command[0]} failed with exit code {code}: {words[-500:]}"


def _loads(library: Path) -> bool:
    """Whether there is a library that can be loaded: some compilers only say that they are done."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(library))
        return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a compiler and whom it has started."""
    os.killpg(process.pid, signal.SIGKILL)  # it is there: nobody has waited for it
    process.wait()


def _put(made: Path | None, library: Path) -> str | None:
    """Has `library` be what was made, or not be there; why that was not possible, if it was not."""
    try:
        if made is None:
            library.unlink(missing_ok=True)
        else:  # at once: another process may be about to load it
            half = library.with_suffix(".tmp")
            shutil.copyfile(made, half)
            half.replace(library)
    except OSError as error:
        return f"{library}: {error.strerror}"
    return None


def _compiler() -> list[str]:
    found = shutil.which("c++") or shutil.which("g++")
    return [found] if found else []


def _headers() -> Path | None:
    spec = importlib.util.find_spec("jaxlib")
    places = spec.submodule_search_locations if spec else None
    found = [Path(p) / "include" for p in places or () if (Path(p) / "include").is_dir()]
    return found[0] if found else None


def _platform_tag() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))
