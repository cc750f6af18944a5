"""Endpoints at which processes receive messages: sockets, bound before others learn of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zmq

from fragflow.errors import RunError
from fragflow.remote.transport.unix_socket import UnixReceiver

CAPACITY = 64
"""messages that may queue in a network socket before its sender has to wait"""

Keys = tuple[bytes, bytes]
"""(public, secret) of one socket

Only a client that knows the public one can connect; only the processes of a run are told it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address at which a process receives messages, as others know it."""

    path: str | None = None
    """of a Unix socket, for processes of the same host"""
    shared_memory: str | None = None
    """a directory of shared memory, for processes of the same host"""
    host: str = ""
    endpoint: str | None = None
    """for processes of all hosts"""
    public_key: str | None = None
    """of that endpoint: messages are encrypted"""

    def is_near(self, other: "Address") -> bool:
        """True if both are on the same host."""
        return self.path is not None and self.host == other.host

    def shares_memory_with(self, other: "Address") -> bool:
        return self.shared_memory is not None and (self.shared_memory, self.host) == (
            other.shared_memory,
            other.host,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The interface and ports at which other hosts reach a process."""

    interface: str
    """the only address of this host to listen at"""
    first_port: int = 0
    last_port: int = 0
    """0: any free one"""


class Endpoint:
    """The sockets at which a process receives messages. Used by one thread at a time."""

    def __init__(self) -> None:
        self.context = zmq.Context(io_threads=1)
        self.keys: Keys = zmq.curve_keypair()
        self._near: UnixReceiver | None = None
        self._far: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._watched: set[int] = set()

    def bind_path(self, path: str) -> None:
        """Opens the socket for messages from this host."""
        self._near = UnixReceiver(path)

    def bind_network(self, network: Network, is_encrypted: bool = True) -> str:
        """Opens the socket for messages from other hosts; returns its endpoint."""
        socket = self._far = self.context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, CAPACITY)
        self._poller.register(socket, zmq.POLLIN)
        if is_encrypted:
            curve_server(socket, self.keys)
        return bind_tcp(socket, network)

    def receive(self, milliseconds: int) -> Sequence[Any] | None:
        """Waits for the next message, in frames; None if none has come by then."""
        if self._far is None and self._near is not None:
            return self._near.receive(milliseconds)
        if self._near is not None and (frames := self._near.receive(0)) is not None:
            return frames
        ready = self._wait(milliseconds)
        if self._far is not None and self._far in ready:
            return [frame.buffer for frame in self._far.recv_multipart(copy=False)]
        return self._near.receive(0) if self._near is not None else None

    def _wait(self, milliseconds: int) -> dict[Any, int]:
        files = self._near.files if self._near is not None else set()
        for new in files - self._watched:
            self._poller.register(new, zmq.POLLIN)
        for old in self._watched - files:
            self._poller.unregister(old)
        self._watched = files
        return dict(self._poller.poll(milliseconds))

    def close(self) -> None:
        if self._near is not None:
            self._near.close()
        if self._far is not None:
            self._far.close(linger=0)
        self.context.term()


class TcpSender:
    """Sends to a process of another host."""

    def __init__(self, context: "zmq.Context[Any]", address: Address):
        assert address.endpoint is not None
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, CAPACITY)
        if address.public_key is not None:
            curve_client(self._socket, address.public_key)
        connect_to(self._socket, address.endpoint)

    def send(self, frames: Sequence[Any]) -> None:
        """Takes a message; `flush` must have returned True."""
        self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def flush(self, milliseconds: int) -> bool:
        """True if the next message can be taken; waits a while for it."""
        return bool(self._socket.poll(milliseconds, zmq.POLLOUT))

    def close(self) -> None:
        self._socket.close(linger=0)


def open_endpoint(
    directory: Path, label: str, host: str = "", network: Network | None = None
) -> tuple[Endpoint, Address]:
    """Opens the endpoint of a process; returns its address as well."""
    endpoint = Endpoint()
    address = Address(path=f"{directory}/{label}", shared_memory=str(directory), host=host)
    endpoint.bind_path(f"{directory}/{label}")
    if network is not None:
        tcp = endpoint.bind_network(network)
        address = replace(address, endpoint=tcp, public_key=endpoint.keys[0].decode())
    return endpoint, address


def curve_server(socket: "zmq.Socket[bytes]", keys: Keys) -> None:
    """Makes `socket` a CURVE server: encrypted, and only for clients that know its public key."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys


def curve_client(socket: "zmq.Socket[bytes]", server_key: str) -> None:
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()


def connect_to(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Connects a socket to the endpoint of another one."""
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    socket.connect(endpoint)


def bind_tcp(socket: "zmq.Socket[bytes]", network: Network) -> str:
    """Binds a socket to a free port; returns its endpoint."""
    if ":" in network.interface:
        socket.setsockopt(zmq.IPV6, 1)
    interface = f"[{network.interface}]" if ":" in network.interface else network.interface
    wanted = range(network.first_port, network.last_port + 1) if network.first_port else ["*"]
    for port in wanted:
        try:
            socket.bind(f"tcp://{interface}:{port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise RunError(f"cannot listen at {network.interface}: {error}") from None
        else:
            return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    raise RunError(
        f"all ports from {network.first_port} to {network.last_port} of {network.interface} are in "
        "use: allow more of them (ports, in the cluster's file)"
    )
