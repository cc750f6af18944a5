"""Errors that nobody foresaw, in processes and Ray actors: said as in threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.mistakes import MISTAKES, SOUND, module_name
from cli.said import PLANTED, check_is_ours, check_said
from remote.ray_nodes import WARNINGS

pytestmark = WARNINGS

PLANT = f"""
import functools, importlib.abc, importlib.util, os, sys

MODULE, _, PLACE = os.environ["FRAGFLOW_BROKEN"].partition(":")


class Gardener(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            scope, file = dict(), os.path.join(os.path.dirname(module.__file__), "planted.py")
            exec(compile({PLANTED!r}, file, "exec"), scope)
            *owners, last = PLACE.split(".")
            setattr(functools.reduce(getattr, owners, module), last, scope["fail"])

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Gardener())
"""
"""breaks a function of a module as it is imported, in every process"""


def fragflow(words: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """Exit code and errors of a command in a process of its own."""
    foreign = ("RAY_", "JAX_", "NPROC", "FRAGFLOW_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    done = subprocess.run(
        [sys.executable, "-m", "fragflow.tools.cli.main", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=kept | {"XDG_CACHE_HOME": str(folder / "cache")} | variables,
    )
    return done.returncode, done.stderr


def check_mistake(case: str, runtime: str, folder: Path) -> None:
    mistake, name = MISTAKES[case], module_name(case)
    place = mistake.write(folder, name)
    code, error = fragflow([*mistake.words(name), "--runtime", runtime], folder)
    if mistake.travels:
        check_said(mistake, place, code, error, folder)
    else:
        assert code == 2, error
        assert "calls back into Python, which only this process can do" in error


@pytest.mark.parametrize("case", ["matrix shape", "host environment", "callback"])
def test_a_users_mistake_in_processes(case: str, tmp_path: Path) -> None:
    check_mistake(case, "processes", tmp_path)


def test_a_users_mistake_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    check_mistake("host environment", "ray", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake(case: str, runtime: str, tmp_path: Path) -> None:
    check_mistake(case, runtime, tmp_path)


def check_fault(broken: str, runtime: str, folder: Path) -> None:
    (folder / "plants").mkdir()
    (folder / "plants" / "sitecustomize.py").write_text(PLANT)
    SOUND.write(folder, "sound")
    path = os.pathsep.join([str(folder / "plants"), os.environ.get("PYTHONPATH", "")])
    words = [*SOUND.words("sound"), "--runtime", runtime]
    words[words.index("--total-steps") + 1] = "40000"  # so long that a worker gives a sign of life
    code, error = fragflow(words, folder, PYTHONPATH=path, FRAGFLOW_BROKEN=broken)
    assert code == 70, error
    check_is_ours(error, folder)


BROKEN = {
    "compiler": "fragflow.remote.protocol.exported:compile_exported",
    "driver": "fragflow.runtime.drivers.driver:ThreadDriver.run",
    "line": "fragflow.remote.protocol.control_channel:ControlChannel.beat",
}
"""what only workers call"""


@pytest.mark.parametrize("broken", ["driver", "line"])
def test_a_fault_of_ours_in_processes(broken: str, tmp_path: Path) -> None:
    check_fault(BROKEN[broken], "processes", tmp_path)


@pytest.mark.slow
def test_a_fault_of_ours_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    check_fault(BROKEN["driver"], "ray", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
@pytest.mark.parametrize("broken", BROKEN)
def test_every_fault(broken: str, runtime: str, tmp_path: Path) -> None:
    check_fault(BROKEN[broken], runtime, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
@pytest.mark.parametrize("broken", ["run:cut", "tools.rundir:RunDirectory.write_weights"])
def test_every_fault_of_the_coordinator(broken: str, runtime: str, tmp_path: Path) -> None:
    check_fault(f"fragflow.{broken}", runtime, tmp_path)
