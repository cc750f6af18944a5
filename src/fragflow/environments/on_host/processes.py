"""A batch of Gymnasium environments in several processes, joined by shared memory."""

import itertools
import mmap
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fragflow._python_command import search_path, words
from fragflow.api.host import HostStep
from fragflow.api.spaces import Space
from fragflow.environments.on_host.process_worker import BatchSpec, size_of, views
from fragflow.environments.on_host.sequential import Failed
from fragflow.error_owner import Elsewhere
from fragflow.errors import EnvironmentFault

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
"""time that a process may take to answer; one that takes longer hangs"""
CLOSE_SECONDS = 1.0


class ProcessBatch:
    """Environments `ids` in `processes` processes of about equally many."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        ids: Sequence[int],
        observation: Space,
        action: Space,
        processes: int,
        answer_seconds: float = ANSWER_SECONDS,
    ):
        self._name = name
        self._ids = tuple(ids)
        self._answer_seconds = answer_seconds
        count = min(processes, len(ids))
        bounds = np.linspace(0, len(ids), count + 1).astype(int).tolist()
        common: dict[str, Any] = dict(
            name=name,
            arguments=dict(arguments),
            total=len(ids),
            shape=observation.shape,
            dtype=observation.dtype,
            action_shape=action.shape,
            action_dtype=action.dtype,
        )
        whole = BatchSpec(first=0, number=len(ids), **common)
        descriptor = _shared_memory(size_of(whole))
        self._memory = mmap.mmap(descriptor, size_of(whole))
        *rows, self._actions, self._seeds = views(whole, self._memory)
        self._rows = rows
        self._workers: list[tuple[subprocess.Popen[bytes], Any, range]] = []
        try:
            for low, high in itertools.pairwise(bounds):
                spec = BatchSpec(first=low, number=high - low, **common)
                self._workers.append((*_start(spec, descriptor), range(low, high)))
            self._await("start", START_SECONDS)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._seeds[:] = seeds
        self._tell("reset")
        return self._rows[0].copy()

    def step(self, action: np.ndarray) -> HostStep:
        self._actions[:] = action
        self._tell("step")
        # Copied once: JAX may still read the last answer while the next one is written.
        return HostStep(*(row.copy() for row in self._rows))

    def close(self) -> None:
        for _, connection, _ in self._workers:
            connection.close()
        for process, _, _ in self._workers:
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers = []

    def _tell(self, word: str) -> None:
        for process, connection, rows in self._workers:
            try:
                connection.send(word)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise self._died(process, rows) from error
        self._await(word, self._answer_seconds)

    def _await(self, word: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process, connection, rows in self._workers:
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise EnvironmentFault(
                        f"{self._name}: environments {self._which(rows)} have not answered a "
                        f"{word} for {seconds:.0f} seconds"
                    )
                failure = connection.recv()
            except (EOFError, ConnectionResetError) as error:
                raise self._died(process, rows) from error
            if failure is not None:
                index, words, story = failure
                raise Failed(rows.start + index, words) from Elsewhere(story)

    def _died(self, process: subprocess.Popen[bytes], rows: range) -> EnvironmentFault:
        try:
            code = process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return EnvironmentFault(
            f"{self._name}: the process of environments {self._which(rows)} died ({how})"
        )

    def _which(self, rows: range) -> str:
        first, last = self._ids[rows.start], self._ids[rows.stop - 1]
        return str(first) if first == last else f"{first} to {last}"


def _shared_memory(size: int) -> int:
    """A file descriptor of memory without a name: nothing is left of it, however a run ends."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fragflow")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _start(spec: BatchSpec, memory: int) -> tuple[subprocess.Popen[bytes], Any]:
    """A worker process. It is a new interpreter: threads of JAX must not be copied into it, and
    the user's script must not be run again."""
    ours, theirs = multiprocessing.Pipe()
    descriptors = [theirs.fileno(), memory]
    process = subprocess.Popen(
        [*words("fragflow.environments.on_host.process_worker"), *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env=os.environ | search_path(),
    )
    theirs.close()
    ours.send(spec)
    return process, ours


def default_processes() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
