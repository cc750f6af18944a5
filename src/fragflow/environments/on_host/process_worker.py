"""A process that steps some environments of a batch: waits for a word, answers in shared memory."""

import mmap
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from fragflow.environments.on_host.sequential import (
    Arrays,
    Failed,
    make_environment,
    reset_all,
    step_all,
)
from fragflow.error_owner import story_of


class BatchSpec(NamedTuple):
    """The environments of a worker process, and the shapes of its shared memory."""

    name: str
    arguments: Mapping[str, Any]
    first: int
    """its first environment's index in the batch"""
    number: int
    total: int
    shape: tuple[int, ...]
    dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str


def layout(spec: BatchSpec) -> list[tuple[tuple[int, ...], "np.dtype[Any]"]]:
    """The arrays in shared memory: answers, then actions and seeds."""
    rows = [((spec.total, *s), t) for s, t in Arrays.types(spec.shape, spec.dtype)]
    actions = ((spec.total, *spec.action_shape), np.dtype(spec.action_dtype))
    return [*rows, actions, ((spec.total,), np.dtype(np.int64))]


def size_of(spec: BatchSpec) -> int:
    """Bytes of shared memory."""
    return sum(_padded(s, t) for s, t in layout(spec))


def views(spec: BatchSpec, buffer: Any) -> list[np.ndarray]:
    """The arrays in shared memory, of all environments."""
    arrays, offset = [], 0
    for shape, dtype in layout(spec):
        arrays.append(np.ndarray(shape, dtype, buffer, offset))
        offset += _padded(shape, dtype)
    return arrays


def _padded(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> int:
    return -(-int(np.prod(shape)) * dtype.itemsize // 64) * 64


def serve(connection: "Connection[Any, Any]", descriptor: int) -> None:
    """Steps when told to, until the other side is gone."""
    spec: BatchSpec = connection.recv()
    for number in (signal.SIGINT, signal.SIGTERM):  # also to all of a job, as schedulers send it
        signal.signal(number, signal.SIG_IGN)  # the main process decides what it means
    memory = mmap.mmap(descriptor, size_of(spec))
    environments: list[Any] = []
    try:
        window = slice(spec.first, spec.first + spec.number)
        *rows, actions, seeds = (array[window] for array in views(spec, memory))
        out = Arrays(*rows)
        try:
            for _ in range(spec.number):
                environments.append(make_environment(spec.name, spec.arguments))
        except BaseException as error:  # also sys.exit, or the main process would wait in vain
            connection.send(
                (len(environments), f"{type(error).__name__}: {error}", story_of(error))
            )
            return
        connection.send(None)
        while True:
            word = connection.recv()
            try:
                if word == "reset":
                    reset_all(environments, seeds, out.obs)
                else:
                    step_all(environments, actions, out)
                connection.send(None)
            except Failed as error:
                connection.send((error.environment_index, str(error), story_of(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        for env in environments:
            env.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
