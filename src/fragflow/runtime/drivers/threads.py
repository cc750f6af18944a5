"""Threads of a run: some carry out jobs, others make iteration after iteration."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

GRACE_SECONDS = 5.0
"""time that threads have to end by themselves"""
POLL_SECONDS = 0.2
"""short, so that the main thread reacts to Ctrl-C"""

_Made = TypeVar("_Made")


class JobThread(Generic[_Made]):
    """One thread, a daemon: an environment that never returns must not keep the process alive."""

    def __init__(self, name: str):
        self._jobs: queue.SimpleQueue[tuple[Future[_Made], Callable[[], _Made]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], _Made]) -> Future[_Made]:
        future: Future[_Made] = Future()
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


class Streams(Generic[_Made]):
    """Runs `makers`, each in a thread of its own: `maker(iteration) -> result`."""

    def __init__(
        self,
        names: Sequence[str],
        makers: Sequence[Callable[[int], _Made]],
        on_failure: Callable[[int, BaseException], None],
    ):
        """`on_failure` is called with every error, in the thread where it occurs."""
        self.begun = [0] * len(makers)
        self.results: list[dict[int, _Made]] = [{} for _ in makers]
        """by thread, the result of each iteration"""
        self._makers = makers
        self._on_failure = on_failure
        self._made = [0] * len(makers)
        self._limit = 0
        self._is_closed = False
        self._change = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=name, daemon=True)
            for k, name in enumerate(names)
        ]
        for thread in self._threads:
            thread.start()

    def allow(self, limit: int) -> None:
        """Lets every thread make the iterations before `limit`."""
        with self._change:
            self._limit = max(limit, self._limit)
            self._change.notify_all()

    def stop(self) -> int:
        """Limits all threads to the iterations that any has begun; returns their number."""
        with self._change:
            self._limit = max(self.begun)
            self._change.notify_all()
            return self._limit

    def have_made(self, count: int) -> bool:
        """True if all threads have made `count` iterations; waits a short while for it."""
        with self._change:
            self._change.wait_for(
                lambda: self._is_closed or min(self._made) >= count, timeout=POLL_SECONDS
            )
            return min(self._made) >= count

    def close(self, grace_seconds: float) -> None:
        """Ends all threads after their current iterations, if these end in time."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(grace_seconds)

    def _work(self, k: int) -> None:
        index = 0
        while True:
            with self._change:
                self._change.wait_for(lambda now=index: self._is_closed or now < self._limit)
                if self._is_closed:
                    return
                self.begun[k] = index + 1
            try:
                result = self._makers[k](index)
            except BaseException as error:  # whatever it is, the run must hear of it
                self._on_failure(k, error)
                return
            index += 1
            with self._change:
                self.results[k][index - 1] = result
                self._made[k] = index
                self._change.notify_all()
