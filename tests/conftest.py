"""Settings and fixtures shared by all tests."""

import os

# XLA sizes its CPU thread pool by NPROC. Collectives over virtual devices need one thread per
# device at the same time and deadlock on machines with few cores. Must be set before JAX starts.
os.environ.setdefault("NPROC", "16")
# As runs have it whose JAX has not started before.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1024"
)

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import jax
import pytest

import shapes

shapes.check_shapes()
jax.config.update("jax_num_cpu_devices", 4)

THREAD_GRACE_SECONDS = 2.0


@pytest.fixture(scope="module", autouse=True)
def forget_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frees what a file has compiled: each program takes memory maps, which are limited."""
    yield
    for value in vars(request.module).values():
        clear = getattr(value, "cache_clear", None)
        if clear is not None:
            clear()
    jax.clear_caches()
    gc.collect()


COMPILED_QUICKLY = ("cli", "compiler", "docs", "graph", "hunt", "remote", "unit")
"""folders whose programs are compiled in the least time: most of the suite's would go there"""

_compiled_in = {"least time": False}


@pytest.fixture(scope="session")
def least_time() -> str:
    """The flags of XLA with which programs are compiled as the probe's are; JAX has no setting."""
    from jax._src import compiler  # noqa: TID251

    from fragflow.graph.probe.double_precision import _least_time

    options, more = compiler.get_compile_options, _least_time()

    def get_compile_options(*args: Any, **kwargs: Any) -> Any:
        if _compiled_in["least time"]:
            kwargs["env_options_overrides"] = more | (kwargs.get("env_options_overrides") or {})
        return options(*args, **kwargs)

    compiler.get_compile_options = get_compile_options
    return " ".join(f"--{name}={str(value).lower()}" for name, value in more.items())


@pytest.fixture(autouse=True)
def compile_quickly(
    request: pytest.FixtureRequest, least_time: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Tests that compare bits of real runs, or that compute for long, are not compiled so.

    Those marked `quick` have JAX's setting only: in the least time, a program that is cut may round
    otherwise than an undivided one.
    """
    has, folder = request.node.get_closest_marker, request.path.parent.name
    in_least_time = has("least_time") or (folder in COMPILED_QUICKLY and not has("optimised"))
    is_quick = bool(in_least_time or has("quick"))
    jax.config.update("jax_disable_most_optimizations", is_quick)
    if in_least_time:
        _compiled_in["least time"] = True
        # For processes that a test starts: this one's JAX has started.
        monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} {least_time}")
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    _compiled_in["least time"] = False


@pytest.fixture
def explicit_promotion() -> Iterator[None]:
    """JAX neither adds axes nor chooses types: a program says what it broadcasts and converts.

    For all threads, and so for those of a run.
    """
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    yield
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")


@pytest.fixture(autouse=True)
def believed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are not probed before they begin, except in tests of that: it takes its time."""
    if request.node.get_closest_marker("probed") is None:
        from fragflow.runtime.promises.run_probe import NOT_DIVIDED

        monkeypatch.setattr("fragflow.run.tried", lambda *_, **__: NOT_DIVIDED)
        monkeypatch.setattr("fragflow.run.other_bits", lambda *_, **__: None)


def pytest_configure(config: pytest.Config) -> None:
    # Many tests compile the same programs: most of the time goes there.
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


# The same examples every time: no new failure where nothing has changed. `thorough` draws others.
hypothesis.settings.register_profile(
    "ci", max_examples=100, deadline=None, print_blob=True, derandomize=True
)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves non-daemon threads running."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_GRACE_SECONDS
    leaked = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in leaked:
        thread.join(max(0.0, deadline - time.monotonic()))
    names = [thread.name for thread in leaked if thread.is_alive()]
    assert not names, f"The test left threads running: {', '.join(names)}."
