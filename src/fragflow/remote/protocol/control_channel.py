"""The control channel between a coordinator and one process: requests, answers, heartbeats."""

from collections.abc import Sequence
from typing import Any

import zmq

from fragflow.remote.protocol.codec import Codec
from fragflow.remote.transport.endpoint import (
    Keys,
    Network,
    bind_tcp,
    connect_to,
    curve_client,
    curve_server,
)

BEAT_SECONDS = 1.0
"""interval of a process's heartbeats"""
BEAT = b"beat"
SEND_MILLISECONDS = 2000
"""time after which sending fails, as nobody seems to listen: zmq.Again"""
MAX_QUEUED = 100_000
"""outgoing messages that may queue while the coordinator is busy: a day of heartbeats"""


class ControlChannel:
    """One end of the channel. Used by one thread at a time."""

    def __init__(self, context: "zmq.Context[Any]", codec: Codec):
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDTIMEO, SEND_MILLISECONDS)
        self._codec = codec
        self.endpoint = ""

    def bind(self, endpoint: str) -> None:
        """Binds the coordinator's end."""
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = endpoint

    def bind_network(self, network: Network, keys: Keys) -> None:
        """Binds the coordinator's end, encrypted: only for clients that know the public key."""
        self._socket.setsockopt(zmq.LINGER, 0)
        curve_server(self._socket, keys)
        self.endpoint = bind_tcp(self._socket, network)

    def connect(self, endpoint: str, server_key: str | None = None) -> None:
        """Connects the process's end."""
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        if server_key is not None:
            curve_client(self._socket, server_key)
        connect_to(self._socket, endpoint)
        self.endpoint = endpoint

    def say(self, word: str, content: Any = None) -> None:
        """Sends a word and plain data."""
        text, blobs = self._codec.encode(content)
        # Copied: to send memory that is not its own, pyzmq would start a thread that never ends.
        self._socket.send_multipart([word.encode(), text, *blobs])

    def beat(self) -> None:
        self._socket.send(BEAT)

    def hear(self, milliseconds: int, bell: int | None = None) -> tuple[str, Any] | None:
        """Waits for the next word and its data; ("beat", None) is a heartbeat, None silence.

        `bell` is the end of a pipe: a byte in it ends the wait.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if bell is not None:
            poller.register(bell, zmq.POLLIN)
        if self._socket not in dict(poller.poll(milliseconds)):
            return None
        frames = self._socket.recv_multipart(copy=False)
        word = bytes(frames[0].buffer).decode()
        if len(frames) == 1:
            return word, None
        return word, self._codec.decode(frames[1].buffer, _buffers(frames[2:]))

    def is_silent(self) -> bool:
        """True if no message waits to be heard."""
        return not self._socket.poll(0)

    def close(self) -> None:
        self._socket.close()


def _buffers(frames: Sequence[Any]) -> list[Any]:
    return [frame.buffer for frame in frames]
