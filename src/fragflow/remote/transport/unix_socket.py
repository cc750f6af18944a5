"""Messages between processes of one host: Unix sockets, used by the threads that send and receive.

ZeroMQ passes every message to threads of its own, on both sides. On one host, waking them costs
several times as much as the message.
"""

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from fragflow.errors import RunError

_COUNT = struct.Struct("<I")
MAX_FRAMES = 1 << 16
MAX_BYTES = 1 << 40
"""of one message; a larger size means that the sender is not one of fragflow's"""
ROOM = 1 << 17
"""bytes that are read at once; a larger message gets a buffer of its own"""
AT_ONCE = 512
"""most buffers that are given to the system in one call"""
ALIGNMENT = 8
"""of every frame in its message, so that arrays over it are aligned"""
_PADDING = memoryview(bytes(ALIGNMENT))

Frames = list[memoryview]


class UnixReceiver:
    """Receives from any number of processes. Used by one thread at a time."""

    def __init__(self, path: str):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._senders: dict[int, _Incoming] = {}
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._complete: deque[Frames] = deque()

    @property
    def files(self) -> set[int]:
        """Files, of which one is readable if there is something to receive."""
        return {self._listener.fileno(), *self._senders}

    def receive(self, milliseconds: int) -> Frames | None:
        """Waits for the next message, in frames; None if none is complete by then."""
        if not self._complete:
            for file, _ in self._poll.poll(milliseconds):
                sender = self._senders.get(file)
                if sender is None:
                    self._accept()
                elif not sender.read(self._complete):
                    self._poll.unregister(file)
                    self._senders.pop(file).socket.close()
        return self._complete.popleft() if self._complete else None

    def close(self) -> None:
        self._listener.close()
        for sender in self._senders.values():
            sender.socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._senders[connection.fileno()] = _Incoming(connection)
            self._poll.register(connection, select.POLLIN)


class _Incoming:
    """Assembles messages from the bytes of one sender."""

    def __init__(self, connection: socket.socket):
        self.socket = connection
        self._room = memoryview(bytearray(ROOM))
        self._filled = 0
        self._lengths: Sequence[int] = ()
        self._body: memoryview | None = None
        """of a message that is larger than the room"""
        self._have = 0

    def read(self, complete: deque[Frames]) -> bool:
        """Adds the messages that are complete; False if the sender has gone."""
        is_open = True
        while is_open:
            free = self._room[self._filled :] if self._body is None else self._body[self._have :]
            try:
                count = self.socket.recv_into(free)
            except BlockingIOError:
                return True
            except OSError:
                return False
            is_open = count > 0
            if self._body is None:
                self._filled += count
                self._cut(complete)
            else:
                self._have += count
                if self._have == len(self._body):
                    complete.append(_divided(self._body, self._lengths))
                    self._body = None
            if count < len(free):
                return is_open  # no more bytes have come
        return is_open

    def _cut(self, complete: deque[Frames]) -> None:
        """Takes whole messages out of the room, and the beginning of one that it cannot hold."""
        start = 0
        while self._body is None and start < self._filled:
            found = _lengths(self._room[start : self._filled])
            if found is None:
                break
            lengths, size = found
            begin = start + size
            total = sum([_padded(length) for length in lengths])
            there = min(self._filled - begin, total)
            if there < total and size + total <= ROOM:
                break
            body = memoryview(bytearray(total))
            body[:there] = self._room[begin : begin + there]
            start = begin + there
            if there == total:
                complete.append(_divided(body, lengths))
            else:
                self._body, self._have, self._lengths = body, there, lengths
        if start == self._filled:
            self._filled = 0
        elif start:
            rest = bytes(self._room[start : self._filled])
            self._room[: len(rest)] = rest
            self._filled = len(rest)


def _lengths(data: memoryview) -> tuple[Sequence[int], int] | None:
    """Reads the lengths of a message's frames, and their own size; None if not all are there."""
    if len(data) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(data)
    if count > MAX_FRAMES:
        raise RunError(f"a message announces {count} frames: it is not one of fragflow's")
    size = _COUNT.size + 8 * count
    if len(data) < size:
        return None
    lengths = struct.unpack_from(f"<{count}Q", data, _COUNT.size)
    if sum(lengths) > MAX_BYTES:
        raise RunError(f"a message announces {sum(lengths)} bytes: it is not one of fragflow's")
    return lengths, size


def _divided(body: memoryview, lengths: Sequence[int]) -> Frames:
    frames, start = [], 0
    for length in lengths:
        frames.append(body[start : start + length])
        start += _padded(length)
    return frames


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


class UnixSender:
    """Sends to one process. A message may go out in pieces; `flush` says when all is out."""

    def __init__(self, path: str):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLOUT)
        self._rest: list[memoryview] = []
        self._is_broken = False
        try:
            self._socket.connect(path)
        except OSError:
            self._is_broken = True  # the process is gone; its coordinator will say so

    def send(self, frames: Sequence[Any]) -> None:
        """Takes a message; the one before it must be out."""
        assert not self._rest
        views = [memoryview(frame) for frame in frames]
        sizes = [view.nbytes for view in views]
        rest = [memoryview(struct.pack(f"<I{len(views)}Q", len(views), *sizes))]
        for view, size in zip(views, sizes, strict=True):
            if size:
                rest.append(view)
            if size % ALIGNMENT:
                rest.append(_PADDING[: -size % ALIGNMENT])
        self._rest = rest
        self._write()

    def flush(self, milliseconds: int) -> bool:
        """True if all is out, and the next message can be taken; waits a while for it."""
        if self._is_broken:
            time.sleep(milliseconds / 1000)
            return False
        if self._rest and self._poll.poll(milliseconds):
            self._write()
        return not self._rest

    def close(self) -> None:
        self._socket.close()

    def _write(self) -> None:
        while self._rest and not self._is_broken:
            try:
                count = self._socket.sendmsg(self._rest[:AT_ONCE])
            except BlockingIOError:
                return
            except OSError:
                self._is_broken = True
                return
            done = 0
            while done < len(self._rest) and count >= len(self._rest[done]):
                count -= len(self._rest[done])
                done += 1
            self._rest = self._rest[done:]
            if count:
                self._rest[0] = self._rest[0][count:]
