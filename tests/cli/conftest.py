"""A tiny run of the command line, and somewhere for what it leaves behind."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from cli.tiny import TINY, Finished
from fragflow.tools.cli.main import main


@pytest.fixture(autouse=True, scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs are kept for this session only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default run directories are relative to the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run of 100 steps, which are rounded up to 128."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main([*TINY, "--total-steps", "100", "--run-dir", str(path), "--eval-every", "64"])
    assert code == 0
    return Finished(path, output.getvalue())
