"""Leaves the user's process as it was: what a run sets in it is put back when the run has ended.

Not the number of JAX's devices, nor whether its CPU computes in the calling thread: JAX decides
both once, when it starts.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax

from fragflow._jax_process import forget_compilation_cache, setting

VARIABLES = ("NPROC", "XLA_FLAGS")
CACHE = "jax_compilation_cache_dir"
SETTINGS = (
    CACHE,
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
    "jax_cpu_enable_async_dispatch",
)
"""those of JAX that `runtime/programs/devices.py` and `compile_cache.py` change"""


@contextmanager
def as_before() -> Iterator[None]:
    """Puts everything back; of several runs at a time, the last one does."""
    _runs.enter()
    try:
        yield
    finally:
        _runs.leave()


class _Runs:
    """Those that are under way, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._variables: Mapping[str, str | None] = {}
        self._settings: Mapping[str, Any] = {}
        self._new_path: str | None = None

    def enter(self) -> None:
        with self._lock:
            if self._count == 0:
                self._variables = {name: os.environ.get(name) for name in VARIABLES}
                self._settings = {name: setting(name) for name in SETTINGS}
                self._new_path = _here_if_new()
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._put_back()

    def _put_back(self) -> None:
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        changed = [name for name, value in self._settings.items() if setting(name) != value]
        for name in changed:
            jax.config.update(name, self._settings[name])
        if CACHE in changed:
            forget_compilation_cache()
        if self._new_path in sys.path:
            sys.path.remove(self._new_path)


def _here_if_new() -> str | None:
    """The directory that `resolve.py` looks for modules in, unless others do already."""
    with suppress(OSError):  # it may have been removed
        return None if (here := os.getcwd()) in sys.path else here
    return None


_runs = _Runs()
