"""A worker process as its coordinator sees it: sends requests, hears answers, ends it."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import zmq

from fragflow import errors
from fragflow.error_owner import Elsewhere
from fragflow.errors import FragflowError, RunError
from fragflow.remote.protocol.control_channel import BEAT_SECONDS, ControlChannel
from fragflow.remote.protocol.versions import refuse_other
from fragflow.remote.transport.endpoint import Address
from fragflow.remote.transport.mailbox import POLL_MILLISECONDS
from fragflow.runtime.drivers.channels import Closed

START_SECONDS = 120.0
"""time for a process to start, even on a busy machine"""
SILENCE_SECONDS = 10 * BEAT_SECONDS
"""time without a sign of life after which a process counts as stuck"""
GRACE_SECONDS = 5.0
"""time for a process to end by itself"""


class WorkerLost(RunError):
    """Raised if a worker process has died, or gives no sign of life."""


class ProcessHandle(Protocol):
    """The launcher's handle on a process it started: exit status, last output, termination."""

    def how_it_ended(self) -> str | None:
        """Describes its end, such as "was killed by signal 9"; None while it runs."""
        ...

    def last_words(self) -> str:
        """The end of its output, if that is known."""
        ...

    def end(self, deadline: float) -> None:
        """Waits for it to end until the deadline, then kills it, even if it is stopped."""
        ...


class RemoteProcess:
    """The coordinator's client of one worker process."""

    address: Address
    """at which it receives messages; known once it is ready"""

    def __init__(self, name: str, control: ControlChannel, handle: ProcessHandle):
        self.name = name
        self.is_closing = False
        self._errands: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._control = control
        self._handle = handle
        self._lock = threading.Lock()
        self._last_error: Mapping[str, str] | None = None
        """the error that it sent before it ended, while nobody listened"""

    def wait_ready(self, deadline: float) -> None:
        """Waits for it to be ready; refuses other versions."""
        with self._lock:
            word, (theirs, self.address) = self._answer(deadline)
        assert word == "ready"
        refuse_other(theirs, f"worker process {self.name}")

    def call(
        self, word: str, content: Any = None, on_point: Callable[[Any], None] | None = None
    ) -> Any:
        """Sends the process a request, and returns the result.

        `on_point` is called with the recovery points that it sends meanwhile.
        """
        try:
            with self._lock:
                self.begin(word, content)
                return self.finish(on_point)
        finally:
            self._run_errands_if_idle()

    def notify(self, word: str, content: Any) -> None:
        """Sends the process a notice, which it does not answer; from any thread."""
        self._errands.put((word, content))
        self._run_errands_if_idle()

    def begin(self, word: str, content: Any = None) -> None:
        """Sends the process a request; `finish` waits for the result."""
        self._run_errands()
        self._say(word, content)

    def finish(self, on_point: Callable[[Any], None] | None = None) -> Any:
        answer, result = self._answer()
        while answer == "recovery point" and on_point is not None:
            on_point(result)
            answer, result = self._answer()
        if answer == "failed":
            raise _retold(result)
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
        """Waits for it to end until the deadline, then kills it."""
        self._handle.end(deadline)
        self._control.close()

    def _answer(self, deadline: float | None = None) -> tuple[str, Any]:
        """Waits for the next answer; raises if the process dies, or gives no sign of life.

        A process that is starting need not give any before its `deadline`.
        """
        silence, before = 0.0, time.monotonic()
        told_to_stop: float | None = None
        while True:
            if deadline is None:
                self._run_errands()  # a process that is starting does not listen yet
            message = self._control.hear(POLL_MILLISECONDS)
            now = time.monotonic()
            # If we were stopped ourselves (Ctrl-Z), nobody has listened meanwhile.
            silence, before = silence + min(now - before, BEAT_SECONDS), now
            if message is not None:
                silence = 0.0
                if message[0] != "beat":
                    return message
            self._check_alive(self._control.is_silent())
            if deadline is not None and now > deadline:
                raise RunError(
                    f"worker process {self.name} did not start within {START_SECONDS:.0f} seconds"
                    f"{self._handle.last_words()}"
                )
            if deadline is None and silence > SILENCE_SECONDS:
                raise WorkerLost(
                    f"worker process {self.name} has given no sign of life for "
                    f"{SILENCE_SECONDS:.0f} seconds: it is stopped or stuck"
                )
            if self.is_closing and told_to_stop is None:
                told_to_stop = now
                self._say("stop")
            # It may wait for a partner that has stopped: collectives are not interrupted.
            if told_to_stop is not None and now - told_to_stop > GRACE_SECONDS:
                raise Closed

    def _run_errands_if_idle(self) -> None:
        """Sends notices, unless another thread has the lock, which then sends them itself."""
        while not self._errands.empty() and self._lock.acquire(blocking=False):
            try:
                self._run_errands()
            except FragflowError:
                return  # the next request will fail as well
            finally:
                self._lock.release()

    def _run_errands(self) -> None:
        while not self._errands.empty():
            self._say(*self._errands.get())

    def _say(self, word: str, content: Any = None) -> None:
        self._check_alive()
        try:
            self._control.say(word, content)
        except zmq.Again:
            self._check_alive()  # it may have ended meanwhile, and have said why
            raise WorkerLost(f"worker process {self.name} does not listen") from None

    @property
    def loss(self) -> str | None:
        """A description of its end; None while it runs."""
        how = self._handle.how_it_ended()
        return how and f"worker process {self.name} {how}{self._handle.last_words()}"

    def _check_alive(self, is_silent: bool = True) -> None:
        loss = self.loss
        if loss is not None and is_silent:
            while self._last_error is None and (heard := self._control.hear(0)) is not None:
                self._last_error = heard[1] if heard[0] == "failed" else None
            raise WorkerLost(loss) if self._last_error is None else _retold(self._last_error)


def _retold(told: Mapping[str, str]) -> FragflowError:
    """Rebuilds an error that a process has reported."""
    error: FragflowError = getattr(errors, told["kind"], RunError)(told["words"])
    error.__cause__ = Elsewhere(told["story"]) if told["story"] else None
    return error
