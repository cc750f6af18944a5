"""Keeps compiled programs on disk, so that the second run starts faster."""

import os
from pathlib import Path

import jax

SECONDS_WORTH_KEEPING = 0.5


def use_compilation_cache() -> str | None:
    """Switches JAX's cache on unless the user has chosen one; what went wrong, if something did."""
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is not None:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(home) / "fragflow" / "xla"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "not writable")
    except OSError as error:
        return f"compiled programs are not kept: {path}: {error.strerror}"
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SECONDS_WORTH_KEEPING)
    # XLA's own caches are for GPUs, and warn elsewhere.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    return None
