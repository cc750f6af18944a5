"""Threads that take jobs in turn, and that do not keep a process alive."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class JobThread:
    """One thread; an environment that never returns must not stop the process from ending."""

    def __init__(self, name: str):
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def end(self, grace_seconds: float) -> None:
        """Ends the thread after its last job, if that ends in time."""
        self._jobs.put(None)
        self._thread.join(grace_seconds)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
