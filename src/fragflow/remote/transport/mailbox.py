"""Messages between processes: sockets for frames, shared memory for large ones."""

import math
import queue
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fragflow.errors import RunError
from fragflow.remote.transport.endpoint import Address, Endpoint, TcpSender
from fragflow.remote.transport.frames import (
    Header,
    array_from,
    arrays_of,
    pack,
    raw,
    types_of,
    unpack,
)
from fragflow.remote.transport.shared_memory import SharedSlots
from fragflow.remote.transport.unix_socket import UnixSender
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.protocols import Payload
from fragflow.runtime.traffic import Sent

LARGE_BYTES = 1 << 18
"""size from which a message goes through shared memory if its receiver is on the same host"""
POLL_MILLISECONDS = 50
"""interval at which a waiting process checks whether the run is over"""
BACKLOG_MILLISECONDS = 1
"""interval at which a process checks whether a message can be sent"""

Moves = queue.SimpleQueue[tuple[str, Address, Mapping[int, int]]]
"""replaced processes: name, new address and, by route, the first message that they want"""
RouteKey = tuple[str, int, int]
"""(message, sending replica, receiving replica)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route of a message, as both of its ends know it."""

    number: int
    key: RouteKey
    source: str
    """name of the process that sends"""
    target: str

    @property
    def words(self) -> str:
        message, sender, receiver = self.key
        return f"message {message} from replica {sender} to {receiver}"


@dataclass(slots=True)
class _RouteState:
    info: Route
    channels: "SocketChannels"
    inbox: "deque[Payload]" = field(default_factory=deque)
    types: tuple[Any, ...] | None = None
    sent: int = 0
    received: int = 0
    taken: int = 0
    """received, and taken out of the inbox"""
    incarnation: int = 0
    """of its sender, as far as we know"""
    slots: SharedSlots | None = None
    is_near: bool | None = None
    """True if its receiver, which is never replaced, shares our memory; None: not yet known"""
    kept: "deque[tuple[int, Payload]]" = field(default_factory=deque)
    """messages sent to a process that may have to be replaced, with their numbers"""

    def put(self, payload: Payload) -> None:
        self.channels.send(self, payload)

    def get(self, what: str) -> Payload:
        return self.channels.get(self, what)


class SocketChannels:
    """All routes of one process. Used by one thread; every wait has a deadline."""

    def __init__(
        self,
        me: str,
        endpoint: Endpoint,
        addresses: Mapping[str, Address],
        routes: Sequence[Route],
        timeout_seconds: float,
        incarnation: int = 0,
        expendable: Collection[str] = (),
        moves: Moves | None = None,
        large_bytes: int = LARGE_BYTES,
    ):
        """Messages to an `expendable` process are kept, for its next incarnation.

        Any thread may add to `moves`. Messages of `large_bytes` go through shared memory.
        """
        self.timeout_seconds = timeout_seconds
        self.is_closed = False
        self.sent = Sent()
        """messages that have left this process, including those sent again"""
        self._me = me
        self._addresses = dict(addresses)
        self._expendable = frozenset(expendable)
        self._moves: Moves = moves or queue.SimpleQueue()
        self._backlog: dict[str, deque[tuple[_RouteState, int, Payload]]] = {}
        """by replaced process, messages still to be sent to it again"""
        self._incarnation = incarnation
        self._large_bytes = large_bytes
        self._endpoint = endpoint
        self._routes = {info.number: _RouteState(info, self) for info in routes}
        self._by_key = {route.info.key: route for route in self._routes.values()}
        self._outgoing: dict[str, UnixSender | TcpSender] = {}

    def open(self, message: str, sender: int, receiver: int) -> _RouteState:
        return self._by_key[message, sender, receiver]

    def send(self, route: _RouteState, payload: Payload) -> None:
        """Sends arrays; waits while the receiver has too many messages to take."""
        arrays = arrays_of(payload)
        types = types_of(arrays)
        self._check_types(route, types)
        head = pack(route.info.number, self._incarnation, route.sent, types)
        parts = [raw(a) for a in arrays if a is not None]
        if route.info.target in self._expendable:
            route.kept.append((route.sent, payload))
        elif self._shares_memory(route) and (size := sum(map(len, parts))) >= self._large_bytes:
            if route.slots is None:
                path = self._slots_path(route, self._incarnation)
                route.slots = SharedSlots.create(path, size, first=route.sent)
            route.slots.write(route.sent, parts, self.timeout_seconds, self._while_waiting)
            parts = []
        route.sent += 1
        self._deliver(route, payload, [head, *parts], arrays)

    def _shares_memory(self, route: _RouteState) -> bool:
        if route.is_near is None:
            target = self._addresses[route.info.target]
            route.is_near = target.shares_memory_with(self._addresses[self._me])
        return route.is_near

    def _deliver(
        self, route: _RouteState, payload: Payload, frames: Sequence[Any], arrays: Payload
    ) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        is_taken = False
        while True:
            self.serve_moves()
            if route.info.target in self._backlog:
                # After replayed messages. It may arrive twice: receivers drop numbers they have.
                self._backlog[route.info.target].append((route, route.sent - 1, payload))
                return
            sender = self._sender_to(route.info.target)
            is_out = sender.flush(0)
            if is_out and not is_taken:
                sender.send(frames)
                self.sent.add(arrays)
                is_taken = True
                is_out = sender.flush(0)
            if is_out:
                return
            if time.monotonic() > deadline:
                raise RunError(
                    f"{route.info.words} could not be sent within {self.timeout_seconds:.0f} "
                    "seconds: its receiver is stuck"
                )
            self._while_waiting()
            sender.flush(BACKLOG_MILLISECONDS)

    def _while_waiting(self) -> None:
        """Takes messages while one cannot be sent: its receiver may be waiting for us, too."""
        if self.is_closed:
            raise Closed
        self._take_all()

    def get(self, source: _RouteState, what: str) -> Payload:
        """Waits for the next payload of a route; an error names it by `what`."""
        deadline = time.monotonic() + self.timeout_seconds
        while not source.inbox:
            if self.is_closed:
                raise Closed
            self.serve_moves()
            frames = self._endpoint.receive(
                BACKLOG_MILLISECONDS if self._backlog else POLL_MILLISECONDS
            )
            if frames is not None:
                self._take(frames)
            elif time.monotonic() > deadline:
                raise RunError(
                    f"{what} did not come within {self.timeout_seconds:.0f} seconds: "
                    "its sender is stuck"
                )
        source.taken += 1
        return source.inbox.popleft()

    def counts(self) -> dict[int, int]:
        """The number of messages that were sent or taken, by route."""
        return {
            number: route.sent if route.info.source == self._me else route.taken
            for number, route in self._routes.items()
        }

    def resume(self, counts: Mapping[int, int]) -> None:
        """Continues the counts of an earlier incarnation of this process."""
        for number, count in counts.items():
            route = self._routes[number]
            route.sent = route.received = route.taken = count

    def acknowledge(self, counts: Mapping[int, int]) -> None:
        """Tells senders that messages before these numbers will not be asked for again."""
        for number, count in counts.items():
            route = self._routes[number]
            if route.info.target == self._me:
                sender = self._sender_to(route.info.source)
                if sender.flush(0):  # else the next acknowledgement covers this one
                    sender.send([pack(number, self._incarnation, count, ())])

    def idle(self) -> None:
        """Serves others, which may wait for us; to be called now and then if there is no work."""
        self.serve_moves()
        self._take_all()

    def serve_moves(self) -> None:
        """Sends replaced processes the messages they want, as far as they take them at once.

        It does not wait: they may be waiting for us, too.
        """
        if self._moves.empty() and not self._backlog:
            return
        while not self._moves.empty():
            target, address, counts = self._moves.get()
            self._addresses[target] = address
            if target in self._outgoing:
                self._outgoing.pop(target).close()
            self._backlog[target] = deque(
                (self._routes[number], sequence, payload)
                for number, count in counts.items()
                for sequence, payload in self._routes[number].kept
                if sequence >= count
            )
        for target, rest in list(self._backlog.items()):
            sender = self._sender_to(target)
            while rest and sender.flush(0):
                route, sequence, payload = rest.popleft()
                arrays = arrays_of(payload)
                head = pack(route.info.number, self._incarnation, sequence, types_of(arrays))
                parts = [raw(a) for a in arrays if a is not None]
                sender.send([head, *parts])
                self.sent.add(arrays)
            if not rest and sender.flush(0):
                del self._backlog[target]

    def close(self) -> None:
        """Closes all sockets; to be called by the thread that uses them."""
        self.is_closed = True
        for sender in self._outgoing.values():
            sender.close()
        self._endpoint.close()

    def _take_all(self) -> None:
        while (frames := self._endpoint.receive(0)) is not None:
            self._take(frames)

    def _take(self, frames: Sequence[Any]) -> None:
        """Takes one message of any route."""
        head, *parts = frames
        header = unpack(head)
        route = self._routes.get(header.route)
        if route is not None and route.info.source == self._me and not header.types:
            while route.kept and route.kept[0][0] < header.sequence:
                route.kept.popleft()
            return
        if route is None or route.info.target != self._me:
            raise RunError(f"a message came by route {header.route}, which does not end here")
        if header.incarnation < route.incarnation:
            return  # from an incarnation that was replaced
        if header.incarnation > route.incarnation:
            route.incarnation, route.slots = header.incarnation, None
        if header.sequence < route.received:
            self._payload(route, header, parts)  # made again after a loss: we have it already
            return
        if header.sequence != route.received:
            raise RunError(
                f"{route.info.words}: number {header.sequence} came where number {route.received} "
                "was expected"
            )
        self._check_types(route, header.types)
        route.inbox.append(self._payload(route, header, parts))
        route.received += 1

    def _payload(self, route: _RouteState, header: Header, parts: Sequence[Any]) -> list[Any]:
        present = [t for t in header.types if t is not None]
        if present and not parts:
            if route.slots is None:
                route.slots = SharedSlots.open(self._slots_path(route, header.incarnation))
            sizes = [math.prod(shape) * d.itemsize for shape, d in present]
            buffers: Sequence[Any] = route.slots.read(header.sequence, sizes)
        else:
            buffers = parts
        if len(buffers) != len(present):
            raise RunError(f"{route.info.words} brings {len(buffers)} arrays, not {len(present)}")
        rest = iter(buffers)
        return [None if t is None else array_from(next(rest), *t) for t in header.types]

    def _check_types(self, route: _RouteState, types: tuple[Any, ...]) -> None:
        """Refuses a message with other types than those before it on its route."""
        if route.types is None:
            route.types = types
        elif types != route.types:
            raise RunError(f"{route.info.words} has types {types}, but had {route.types} before")

    def _slots_path(self, route: _RouteState, incarnation: int) -> Path:
        shared_memory = self._addresses[self._me].shared_memory
        assert shared_memory is not None
        return Path(shared_memory) / f"route-{route.info.number}-{incarnation}"

    def _sender_to(self, target: str) -> UnixSender | TcpSender:
        if target not in self._outgoing:
            address = self._addresses[target]
            if address.is_near(self._addresses[self._me]):
                assert address.path is not None
                self._outgoing[target] = UnixSender(address.path)
            else:
                self._outgoing[target] = TcpSender(self._endpoint.context, address)
        return self._outgoing[target]
