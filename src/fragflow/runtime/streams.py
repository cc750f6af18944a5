"""Threads that each make one iteration after the other, up to a limit that moves.

Where fragments need not wait for one another at the end of an iteration, they must not at the end
of a chunk of iterations either.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

POLL_SECONDS = 0.2
"""short waits keep the main thread open to Ctrl-C"""


class Streams:
    """Runs `makers`, each in a thread of its own: `maker(iteration) -> result`."""

    def __init__(
        self,
        names: Sequence[str],
        makers: Sequence[Callable[[int], Any]],
        on_failure: Callable[[int, BaseException], None],
    ):
        """`on_failure` hears of every error, in the thread where it occurs."""
        self.begun = [0] * len(makers)
        self.results: list[dict[int, Any]] = [{} for _ in makers]
        """by thread, what each iteration gave"""
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
        """Begins nothing new, but what others have begun; the number of iterations it comes to."""
        with self._change:
            self._limit = max(self.begun)
            self._change.notify_all()
            return self._limit

    def have_made(self, count: int) -> bool:
        """Whether all threads have made `count` iterations; waits a short while for it."""
        with self._change:
            self._change.wait_for(
                lambda: self._is_closed or min(self._made) >= count, timeout=POLL_SECONDS
            )
            return min(self._made) >= count

    def close(self, grace_seconds: float) -> None:
        """Ends all threads after what they are doing, if that ends in time."""
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
