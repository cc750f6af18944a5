"""The line between a coordinator and one process: requests, answers, signs of life."""

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
"""how often a process says that it lives"""
BEAT = b"beat"
SEND_MILLISECONDS = 2000
"""after which a word that cannot be sent has no one to hear it: zmq.Again"""
MAX_QUEUED = 100_000
"""outgoing messages that may queue while the coordinator is busy: a day of heartbeats"""


class ControlChannel:
    """One end of it. Used by one thread at a time."""

    def __init__(self, context: "zmq.Context[Any]", codec: Codec):
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDTIMEO, SEND_MILLISECONDS)
        self._codec = codec
        self.endpoint = ""

    def bind(self, endpoint: str) -> None:
        """The coordinator's end."""
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = endpoint

    def bind_network(self, network: Network, keys: Keys) -> None:
        """The coordinator's end, encrypted: for those who know the public key."""
        self._socket.setsockopt(zmq.LINGER, 0)
        curve_server(self._socket, keys)
        self.endpoint = bind_tcp(self._socket, network)

    def connect(self, endpoint: str, server_key: str | None = None) -> None:
        """The process's end."""
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        if server_key is not None:
            curve_client(self._socket, server_key)
        connect_to(self._socket, endpoint)
        self.endpoint = endpoint

    def say(self, word: str, content: Any = None) -> None:
        """Sends a word and plain data."""
        text, blobs = self._codec.encode(content)
        # Copied: to send what is not its own, pyzmq would start a thread that stays for good.
        self._socket.send_multipart([word.encode(), text, *blobs])

    def beat(self) -> None:
        self._socket.send(BEAT)

    def hear(self, milliseconds: int, bell: int | None = None) -> tuple[str, Any] | None:
        """The next word and its data; ("beat", None) for a sign of life, None for silence.

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
        """Whether nothing waits to be heard."""
        return not self._socket.poll(0)

    def close(self) -> None:
        self._socket.close()


def _buffers(frames: Sequence[Any]) -> list[Any]:
    return [frame.buffer for frame in frames]
