"""Worker processes on this machine, with a directory that only this user can enter."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from fragflow._python_command import search_path
from fragflow._python_command import words as interpreter
from fragflow.remote.launch.launcher import Demand, Launcher, jax_settings, label_of
from fragflow.remote.protocol.control_channel import ControlChannel
from fragflow.remote.protocol.jobs import CODEC
from fragflow.remote.protocol.process_client import RemoteProcess

LAST_LINES = 12
"""of a dead process's output, which are shown"""
PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMPDIR", "XDG_", "VIRTUAL_ENV", "PYTHON"),
    *("JAX_", "XLA_", "TPU_", "CUDA_", "NVIDIA_", "NCCL_", "LD_", "NPROC", "OMP_", "MKL_"),
    *("MUJOCO_", "SDL_", "DISPLAY", "FRAGFLOW_"),
)
"""prefixes of environment variables that a worker process gets"""


class LocalLauncher(Launcher):
    """Starts processes on this machine."""

    def __init__(self) -> None:
        super().__init__()
        name = f"fragflow-{os.getpid()}-"
        self.directory = Path(tempfile.mkdtemp(prefix=name, dir=shared_memory()))

    def _launch(self, name: str, demand: Demand, incarnation: int) -> RemoteProcess:
        label = label_of(name, incarnation)
        control = ControlChannel(self._context, CODEC)
        control.bind(f"ipc://{self.directory}/{label}.ctl")
        words = [control.endpoint, str(self.directory), label, str(os.getpid())]
        passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
        variables = passed | search_path() | jax_settings(demand)
        handle = Subprocess(words, variables, self.directory / f"{label}.log")
        return RemoteProcess(name, control, handle)

    def _clear_up(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Subprocess:
    """A process on this machine."""

    def __init__(self, words: list[str], environment: Mapping[str, str], log: Path):
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*interpreter("fragflow.remote.worker.main"), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                # Ctrl-C and `timeout` signal a whole group: only the coordinator is to react.
                process_group=0,
            )

    def how_it_ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            if lines:
                return ". Its last words: " + " | ".join(lines)
        return ""

    def end(self, deadline: float) -> None:
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def shared_memory() -> str | None:
    """The directory whose files are in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
