"""Starts worker processes on this machine, talks to them, and leaves nothing behind."""

import contextlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from fragflow import errors
from fragflow._jax import setting
from fragflow.errors import FragflowError, RunError
from fragflow.remote.lanes import POLL_MILLISECONDS
from fragflow.remote.orders import CODEC
from fragflow.remote.versions import refuse_other
from fragflow.remote.wire import BEAT_SECONDS, Line
from fragflow.runtime.channels import Closed

START_SECONDS = 60.0
"""for a process to start"""
SILENCE_SECONDS = 10 * BEAT_SECONDS
"""without a sign of life, after which a process counts as stuck"""
GRACE_SECONDS = 5.0
"""for a process to end by itself"""
LAST_LINES = 12
"""of a dead process's output, to be shown"""

PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMPDIR", "XDG_", "VIRTUAL_ENV", "PYTHON"),
    *("JAX_", "XLA_", "TPU_", "CUDA_", "NVIDIA_", "NCCL_", "LD_", "NPROC", "OMP_", "MKL_"),
    *("MUJOCO_", "SDL_", "DISPLAY", "FRAGFLOW_"),
)
"""beginnings of environment variables that a worker's process gets"""


class WorkerLost(RunError):
    """A worker's process has died, or gives no sign of life."""


class RemoteProcess:
    """One worker's process, as its coordinator sees it."""

    def __init__(
        self,
        name: str,
        directory: Path,
        context: Any,
        environment: Mapping[str, str],
        incarnation: int = 0,
    ):
        self.name = name
        self.is_closing = False
        self._errands: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        label = f"{name}.{incarnation}"
        self._log = directory / f"{label}.log"
        endpoint = f"ipc://{directory}/{label}.line"
        self._line = Line(context, endpoint, CODEC, is_server=True)
        self._lock = threading.Lock()
        words = [sys.executable, "-m", "fragflow.remote.process"]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*words, endpoint, str(directory), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
            )

    def greet(self) -> None:
        """Waits for it to be ready; refuses one of another version."""
        word, theirs = self._answer(START_SECONDS)
        assert word == "ready"
        refuse_other(theirs, f"worker process {self.name}")

    def call(
        self, word: str, content: Any = None, on_mark: Callable[[Any], None] | None = None
    ) -> Any:
        """Has the process do something, and returns what comes of it.

        `on_mark` hears of what it tells meanwhile.
        """
        try:
            with self._lock:
                self.begin(word, content)
                return self.finish(on_mark)
        finally:
            self._run_errands_if_idle()

    def errand(self, word: str, content: Any) -> None:
        """Tells the process something, from any thread; it does not answer."""
        self._errands.put((word, content))
        self._run_errands_if_idle()

    def begin(self, word: str, content: Any = None) -> None:
        """Has the process do something; `finish` waits for it."""
        self._run_errands()
        self._say(word, content)

    def finish(self, on_mark: Callable[[Any], None] | None = None) -> Any:
        answer, result = self._answer(None)
        while answer == "mark" and on_mark is not None:
            on_mark(result)
            answer, result = self._answer(None)
        if answer == "failed":
            kind = getattr(errors, result["kind"], RunError)
            raise kind(result["words"])
        if answer == "closed":
            raise Closed
        return result

    def end(self) -> None:
        """Asks the process to end."""
        self.is_closing = True
        if self._lock.acquire(timeout=GRACE_SECONDS):
            try:
                self._say("end")
            finally:
                self._lock.release()

    def reap(self, deadline: float) -> None:
        """Waits for its end, or makes it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()  # also one that was stopped
            self._process.wait()
        self._line.close()

    def _answer(self, seconds: float | None) -> tuple[str, Any]:
        """The next answer; an error if the process dies, or gives no sign of life."""
        began = heard = time.monotonic()
        told_to_stop = False
        while True:
            self._run_errands()
            message = self._line.hear(POLL_MILLISECONDS)
            now = time.monotonic()
            if message is not None:
                heard = now
                if message[0] != "beat":
                    return message
            if self._process.poll() is not None and self._line.is_silent():
                raise WorkerLost(self._obituary(self._process.returncode))
            if seconds is not None and now - began > seconds:
                raise RunError(
                    f"worker process {self.name} did not start within {seconds:.0f} seconds"
                    f"{self._last_words()}"
                )
            if seconds is None and now - heard > SILENCE_SECONDS:
                raise WorkerLost(
                    f"worker process {self.name} has given no sign of life for "
                    f"{SILENCE_SECONDS:.0f} seconds: it is stopped or stuck"
                )
            if self.is_closing and not told_to_stop:
                told_to_stop = True
                self._say("stop")
            if told_to_stop and now - heard > GRACE_SECONDS:
                raise Closed

    def _run_errands_if_idle(self) -> None:
        """Who holds the line runs them otherwise: while it waits, or when it lets go."""
        while not self._errands.empty() and self._lock.acquire(blocking=False):
            try:
                self._run_errands()
            except WorkerLost:
                return  # whoever needs it will notice
            finally:
                self._lock.release()

    def _run_errands(self) -> None:
        while not self._errands.empty():
            self._say(*self._errands.get())

    def _say(self, word: str, content: Any = None) -> None:
        code = self._process.poll()
        if code is not None:
            raise WorkerLost(self._obituary(code))
        try:
            self._line.say(word, content)
        except zmq.Again:
            raise WorkerLost(f"worker process {self.name} does not listen") from None

    def _obituary(self, code: int) -> str:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"worker process {self.name} {how}{self._last_words()}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            if lines:
                return ". Its last words: " + " | ".join(lines)
        return ""


class Launcher:
    """All processes of a run, with a directory that only this user can enter."""

    def __init__(self) -> None:
        name = f"fragflow-{os.getpid()}-"
        self.directory = Path(tempfile.mkdtemp(prefix=name, dir=_shared_memory()))
        self._context: Any = zmq.Context()
        self.processes: dict[str, RemoteProcess] = {}

    def start(self, devices: Mapping[str, int]) -> None:
        """Starts a process of each name, with so many CPU devices, and waits for all of them."""
        for name, count in devices.items():
            self.processes[name] = RemoteProcess(
                name, self.directory, self._context, _environment(count)
            )
        for process in self.processes.values():
            process.greet()

    def replace(self, name: str, devices: int, incarnation: int) -> RemoteProcess:
        """Starts a process in the place of one that is lost."""
        old = self.processes[name]
        old.reap(time.monotonic())
        new = RemoteProcess(name, self.directory, self._context, _environment(devices), incarnation)
        new.is_closing = old.is_closing
        self.processes[name] = new
        new.greet()
        return new

    def stop(self) -> None:
        """Wakes all processes that wait for one another."""
        for process in self.processes.values():
            process.is_closing = True

    def close(self) -> None:
        """Ends all processes and removes their directory."""
        for process in self.processes.values():
            with contextlib.suppress(FragflowError, zmq.ZMQError):
                process.end()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self.processes.values():
            process.reap(deadline)
        self._context.destroy(linger=0)
        shutil.rmtree(self.directory, ignore_errors=True)


def _shared_memory() -> str | None:
    """Where files are memory, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def _environment(devices: int) -> dict[str, str]:
    """What a worker's process finds: ours, as far as it concerns it, and JAX set up alike."""
    passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    passed["JAX_NUM_CPU_DEVICES"] = str(devices)
    for name in (
        *("jax_cpu_enable_async_dispatch", "jax_enable_x64", "jax_disable_most_optimizations"),
        *("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"),
        "jax_persistent_cache_enable_xla_caches",
    ):
        value = setting(name)
        if value is not None:
            passed[name.upper()] = str(value)
    return passed
