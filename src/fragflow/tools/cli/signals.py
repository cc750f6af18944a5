"""Ctrl-C and SIGTERM: the first asks a run to end in good order, the second ends it at once."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}
"""after saving"""

SHOW_CURSOR = "\x1b[?25h"


class Interrupts:
    """Catches the two signals while it is entered. Does nothing outside the main thread.

    Python runs a signal's handler only between two of its own instructions, which a compilation
    may keep waiting for minutes. The interpreter writes the signal's number to a socket at once,
    so a thread can read it there.
    """

    def __init__(self, notice: Callable[[], None] = lambda: None):
        self._notice = notice
        self._received: signal.Signals | None = None
        self._undo: list[Callable[[], object]] = []

    @property
    def stopped(self) -> bool:
        return self._received is not None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self._received] if self._received is not None else 0

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self
        read, write = socket.socketpair()
        write.setblocking(False)
        for number in EXIT_CODES:
            before = signal.signal(number, _ignore)
            self._undo.append(lambda number=number, before=before: signal.signal(number, before))
        previous = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=self._listen, args=(read,), name="signals", daemon=True)
        thread.start()
        self._undo += [
            lambda: signal.set_wakeup_fd(previous),
            write.close,
            thread.join,
            read.close,
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for step in self._undo:
            step()
        self._undo.clear()

    def _listen(self, read: socket.socket) -> None:
        while numbers := read.recv(64):
            for number in numbers:
                if number in EXIT_CODES:
                    self._receive(signal.Signals(number))

    def _receive(self, number: signal.Signals) -> None:
        if self._received is None:
            self._received = number
            self._notice()
            return
        if sys.stdout is not None and sys.stdout.isatty():
            os.write(1, SHOW_CURSOR.encode())
        os._exit(128 + number)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Being there is enough: the thread above acts."""
