"""A kernel in C++ that cannot be built, loaded or registered is absent, and nothing else."""

import importlib.util
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jaxlib
import pytest

from fragflow.ops.kernels import native
from install.fresh import ROOT, run

SOURCE = ROOT / "src/fragflow/ops/kernels/kernels.cc"
HEADERS = Path(jaxlib.__file__).parent / "include"
pytestmark = pytest.mark.timeout(600)
VERSION = re.compile(r"(#define XLA_FFI_API_MINOR) (\d+)")


@pytest.fixture
def builder() -> ModuleType:
    """`hatch_build.py`, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAYS = """
import contextlib, io, json, pathlib, sys
from fragflow.ops.kernels import native
native.LIBRARY = pathlib.Path(sys.argv[1])
print(native.absent())
import jax.numpy as jnp
print(jnp.ones(2).sum())
from fragflow.tools.cli.main import main
for words in json.loads(sys.argv[2]):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(words)
    print(json.dumps([code, out.getvalue(), errors.getvalue()]))
"""


def said(
    library: Path, tmp_path: Path, *commands: list[str]
) -> tuple[str, str, Iterator[tuple[int, str, str]]]:
    """What an installation says whose kernels are in `library`: why they are absent, what JAX
    computes afterwards, and each command's exit code, output and errors."""
    variables = {
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    words = (library, json.dumps(commands))
    done = run(sys.executable, "-c", SAYS, *words, cwd=tmp_path, variables=variables)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    why, computed, *answers = done.stdout.splitlines()
    return why, computed, map(json.loads, answers)


def test_built_with_headers_of_a_newer_xla(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not builder._compiler():
        pytest.skip("there is no C++ compiler")
    newer = tmp_path / "include"
    shutil.copytree(HEADERS, newer)
    header = newer / "xla/ffi/api/c_api.h"
    text, count = VERSION.subn(lambda m: f"{m[1]} {int(m[2]) + 9}", header.read_text())
    assert count == 1, "the headers have changed"
    header.write_text(text)
    library = tmp_path / "kernels.so"
    monkeypatch.setattr(builder, "_headers", lambda: newer)
    assert builder.build(SOURCE, library) is None

    common = ["ppo", "--env", "gymnasium:CartPole-v1", "--num-envs", "4"]
    steps = ["--total-steps", "64", "--eval-episodes", "0", "--rollout-length", "16"]
    asked = ["--implementation", "discounted_sums=cpp"]
    why, computed, answers = said(
        *(library, tmp_path, ["show", *common], ["train", *common, *steps]),
        ["train", *common, *steps, *asked],
    )
    assert why.startswith("its library does not load: ")
    assert computed == "2.0"

    code, output, errors = next(answers)
    assert code == 0, errors
    (line,) = (line for line in output.splitlines() if "discounted_sums by" in line)
    assert "discounted_sums by xla (cpp is absent: its library does not load: " in line

    code, output, errors = next(answers)
    assert code == 0, errors
    assert "discounted_sums by xla (cpp is absent: " in " ".join(output.split())
    assert "Traceback" not in errors

    code, _, errors = next(answers)
    assert code == 2
    assert "discounted_sums=cpp: cpp is absent: its library does not load" in " ".join(
        errors.split()
    )


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_library_that_is_none(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "kernels.so"
    if content is not None:
        library.write_bytes(content)
    monkeypatch.setattr(native, "LIBRARY", library)
    reason = native._load.__wrapped__()
    assert reason is not None
    assert reason.startswith("it was not built" if content is None else "its library does not load")
    assert "\n" not in reason


def test_a_library_of_something_else(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not builder._compiler():
        pytest.skip("there is no C++ compiler")
    other = tmp_path / "other.cc"
    other.write_text("int answer() { return 42; }\n")
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "other.so")
    assert builder.build(other, native.LIBRARY) is None
    assert "fragflow_discounted_sums" in str(native._load.__wrapped__())


def compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "reason"),
    {
        "echo 'no such' standard >&2; exit 3": "failed with exit code 3: no such standard",
        "kill -9 $$": "failed with exit code -9",
    }.items(),
)
def test_a_compiler_that_fails(
    builder: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    reason: str,
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", script))
    assert reason in builder.build(SOURCE, tmp_path / "kernels.so")


@pytest.mark.parametrize("cxx", ["/no/such/compiler", "'unbalanced"])
def test_a_compiler_that_is_not_there(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: str
) -> None:
    monkeypatch.setenv("CXX", cxx)
    assert builder.build(SOURCE, tmp_path / "kernels.so") is not None
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert builder.build(SOURCE, tmp_path / "kernels.so") == "there is no C++ compiler (c++)"


def test_a_compiler_that_hangs_is_ended_with_all_it_has_started(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! $$ > {pids}; wait"
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", script))
    monkeypatch.setenv(builder.SECONDS, "1")
    reason = builder.build(SOURCE, tmp_path / "kernels.so")
    assert reason == f"{tmp_path / 'cxx'} has not finished within 1 s"
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids.read_text().split() if _is_running(pid)]:
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.05)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
