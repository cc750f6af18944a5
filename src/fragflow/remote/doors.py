"""Where a process receives messages: sockets that are bound before anyone is told of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from fragflow.errors import RunError

CAPACITY = 64
"""messages that may wait in a socket before its sender does"""

Keys = tuple[bytes, bytes]
"""(public, secret) of one socket

Who does not know the public one cannot connect: it is told to the processes of a run only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a process receives messages, as others know it."""

    endpoint: str
    """for everyone"""
    public_key: str | None = None
    """of that endpoint, where messages are encrypted"""
    near: str | None = None
    """a faster endpoint, for processes of the same host"""
    slabs: str | None = None
    """a directory of shared memory, for processes of the same host"""
    host: str = ""

    def for_sender(self, sender: "Address") -> tuple[str, str | None]:
        """The endpoint that a sender uses, and its public key."""
        if self.near is not None and self.host == sender.host:
            return self.near, None
        return self.endpoint, self.public_key

    def shares_memory_with(self, other: "Address") -> bool:
        return self.slabs is not None and (self.slabs, self.host) == (other.slabs, other.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How a process is reached from other hosts."""

    interface: str
    """the address of this host that is listened at, and no other"""
    first_port: int = 0
    last_port: int = 0
    """0: any that is free"""


class Door:
    """The receiving sockets of a process. Used by one thread at a time."""

    def __init__(self) -> None:
        self.context = zmq.Context(io_threads=1)
        self.keys: Keys = zmq.curve_keypair()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()

    def bind(self, endpoint: str) -> str:
        """Also receives messages of this host; at which endpoint, if `endpoint` leaves a choice."""
        socket = self._add()
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def bind_network(self, network: Network) -> str:
        """Also receives messages that are encrypted, from other hosts; at which endpoint."""
        socket = self._add()
        curve_server(socket, self.keys)
        return bind_tcp(socket, network)

    def wait(self, milliseconds: int) -> "zmq.Socket[bytes] | None":
        """A socket at which there is a message."""
        if len(self._sockets) == 1:
            (socket,) = self._sockets
            return socket if socket.poll(milliseconds) else None
        ready: Any = self._poller.poll(milliseconds)
        return ready[0][0] if ready else None

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self.context.term()

    def _add(self) -> "zmq.Socket[bytes]":
        socket = self.context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, CAPACITY)
        self._sockets.append(socket)
        self._poller.register(socket, zmq.POLLIN)
        return socket


def open_door(
    directory: Path, label: str, host: str = "", network: Network | None = None
) -> tuple[Door, Address]:
    """The door of a process, and its address."""
    door = Door()
    near = f"ipc://{directory}/{label}"
    door.bind(near)
    if network is None:
        return door, Address(endpoint=near, slabs=str(directory), host=host)
    address = Address(
        endpoint=door.bind_network(network),
        public_key=door.keys[0].decode(),
        near=near,
        slabs=str(directory),
        host=host,
    )
    return door, address


def curve_server(socket: "zmq.Socket[bytes]", keys: Keys) -> None:
    """Has a socket talk to those only who know its public key, encrypted."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys


def curve_client(socket: "zmq.Socket[bytes]", server_key: str) -> None:
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()


def bind_tcp(socket: "zmq.Socket[bytes]", network: Network) -> str:
    """Binds a socket to a free port; its endpoint."""
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
