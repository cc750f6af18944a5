"""Messages between processes: sockets for frames, shared memory for what is large."""

import math
import os
import queue
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fragflow.errors import RunError
from fragflow.remote.transport.endpoint import Address, Door, NetworkOutlet
from fragflow.remote.transport.frames import (
    Header,
    array_from,
    arrays_of,
    pack,
    raw,
    types_of,
    unpack,
)
from fragflow.remote.transport.shared_memory import Slab
from fragflow.remote.transport.unix_socket import Outlet
from fragflow.runtime.drivers.channels import Closed, Payload
from fragflow.runtime.drivers.traffic import Sent

LARGE_BYTES = int(os.environ.get("FRAGFLOW_LARGE_BYTES", 1 << 18))
"""from here on, a message goes through shared memory if its receiver is on the same host"""
POLL_MILLISECONDS = 50
"""how soon a process that waits notices that the run is over"""
BACKLOG_MILLISECONDS = 1
"""how often a process looks whether what it has to send can go"""

Moves = queue.SimpleQueue[tuple[str, Address, Mapping[int, int]]]
"""processes that were replaced: where they are now; by lane, which message they want first"""
Route = tuple[str, int, int]
"""(message, sending replica, receiving replica)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """One route of a message, as both of its ends know it."""

    number: int
    route: Route
    source: str
    """the process that sends, by its address' name"""
    target: str

    @property
    def words(self) -> str:
        message, sender, receiver = self.route
        return f"message {message} from replica {sender} to {receiver}"


@dataclass(slots=True)
class _Lane:
    info: LaneInfo
    post: "Post"
    inbox: "deque[Payload]" = field(default_factory=deque)
    types: tuple[Any, ...] | None = None
    sent: int = 0
    received: int = 0
    taken: int = 0
    """received, and taken out of the inbox"""
    incarnation: int = 0
    """of its sender, as far as we have heard"""
    slab: Slab | None = None
    is_near: bool | None = None
    """whether its receiver, which is never replaced, shares our memory; None: not yet known"""
    kept: "deque[tuple[int, Payload]]" = field(default_factory=deque)
    """what was sent to a process that may have to be replaced, by number"""

    def put(self, payload: Payload) -> None:
        self.post.send(self, payload)


class Post:
    """All lanes of one process. Used by one thread; every wait has a deadline."""

    def __init__(
        self,
        me: str,
        door: Door,
        addresses: Mapping[str, Address],
        lanes: Sequence[LaneInfo],
        timeout_seconds: float,
        incarnation: int = 0,
        expendable: Collection[str] = (),
        moves: Moves | None = None,
    ):
        """What is sent to an `expendable` process is kept, for its next incarnation.

        `moves` may be added to from any thread.
        """
        self.timeout_seconds = timeout_seconds
        self.is_closed = False
        self.sent = Sent()
        """what has left this process, and what did so again"""
        self._me = me
        self._addresses = dict(addresses)
        self._expendable = frozenset(expendable)
        self._moves: Moves = moves or queue.SimpleQueue()
        self._backlog: dict[str, deque[tuple[_Lane, int, Payload]]] = {}
        """by replaced process, what it has yet to be sent again"""
        self._incarnation = incarnation
        self._door = door
        self._lanes = {info.number: _Lane(info, self) for info in lanes}
        self._by_route = {lane.info.route: lane for lane in self._lanes.values()}
        self._outgoing: dict[str, Outlet | NetworkOutlet] = {}

    def open(self, message: str, sender: int, receiver: int) -> _Lane:
        return self._by_route[message, sender, receiver]

    def send(self, lane: _Lane, payload: Payload) -> None:
        """Sends arrays; waits while the receiver has too many that it has not taken."""
        arrays = arrays_of(payload)
        types = types_of(arrays)
        self._check_types(lane, types)
        head = pack(lane.info.number, self._incarnation, lane.sent, types)
        parts = [raw(a) for a in arrays if a is not None]
        if lane.info.target in self._expendable:
            lane.kept.append((lane.sent, payload))
        elif self._shares_memory(lane) and (size := sum(map(len, parts))) >= LARGE_BYTES:
            if lane.slab is None:
                path = self._slab_path(lane, self._incarnation)
                lane.slab = Slab.create(path, size, first=lane.sent)
            lane.slab.write(lane.sent, parts, self.timeout_seconds, self._while_waiting)
            parts = []
        lane.sent += 1
        self._deliver(lane, payload, [head, *parts], arrays)

    def _shares_memory(self, lane: _Lane) -> bool:
        if lane.is_near is None:
            target = self._addresses[lane.info.target]
            lane.is_near = target.shares_memory_with(self._addresses[self._me])
        return lane.is_near

    def _deliver(
        self, lane: _Lane, payload: Payload, frames: Sequence[Any], arrays: Payload
    ) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        is_taken = False
        while True:
            self.serve_moves()
            if lane.info.target in self._backlog:
                # Behind replayed messages. It may arrive twice: receivers drop numbers they have.
                self._backlog[lane.info.target].append((lane, lane.sent - 1, payload))
                return
            outlet = self._outlet_to(lane.info.target)
            is_out = outlet.flush(0)
            if is_out and not is_taken:
                outlet.send(frames)
                self.sent.add(arrays)
                is_taken = True
                is_out = outlet.flush(0)
            if is_out:
                return
            if time.monotonic() > deadline:
                raise RunError(
                    f"{lane.info.words} could not be sent within {self.timeout_seconds:.0f} "
                    "seconds: its receiver is stuck"
                )
            self._while_waiting()
            outlet.flush(BACKLOG_MILLISECONDS)

    def _while_waiting(self) -> None:
        """Takes what has come while a message cannot be sent: its receiver may wait for us too."""
        if self.is_closed:
            raise Closed
        self._take_all()

    def get(self, source: _Lane, what: str) -> Payload:
        """The next payload of a lane, or an error that names what was waited for."""
        deadline = time.monotonic() + self.timeout_seconds
        while not source.inbox:
            if self.is_closed:
                raise Closed
            self.serve_moves()
            frames = self._door.receive(
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
        """By lane, how many messages were sent, or taken."""
        return {
            number: lane.sent if lane.info.source == self._me else lane.taken
            for number, lane in self._lanes.items()
        }

    def resume(self, counts: Mapping[int, int]) -> None:
        """Goes on where an earlier incarnation of this process was."""
        for number, count in counts.items():
            lane = self._lanes[number]
            lane.sent = lane.received = lane.taken = count

    def acknowledge(self, counts: Mapping[int, int]) -> None:
        """Tells senders that messages before these numbers will not be asked for again."""
        for number, count in counts.items():
            lane = self._lanes[number]
            if lane.info.target == self._me:
                outlet = self._outlet_to(lane.info.source)
                if outlet.flush(0):  # else the next one says as much
                    outlet.send([pack(number, self._incarnation, count, ())])

    def idle(self) -> None:
        """To be called now and then while nothing is to be done: others may wait for us."""
        self.serve_moves()
        self._take_all()

    def serve_moves(self) -> None:
        """Sends what replaced processes want, as far as they take it: they may wait for us too."""
        if self._moves.empty() and not self._backlog:
            return
        while not self._moves.empty():
            target, address, counts = self._moves.get()
            self._addresses[target] = address
            if target in self._outgoing:
                self._outgoing.pop(target).close()
            self._backlog[target] = deque(
                (self._lanes[number], sequence, payload)
                for number, count in counts.items()
                for sequence, payload in self._lanes[number].kept
                if sequence >= count
            )
        for target, rest in list(self._backlog.items()):
            outlet = self._outlet_to(target)
            while rest and outlet.flush(0):
                lane, sequence, payload = rest.popleft()
                arrays = arrays_of(payload)
                head = pack(lane.info.number, self._incarnation, sequence, types_of(arrays))
                parts = [raw(a) for a in arrays if a is not None]
                outlet.send([head, *parts])
                self.sent.add(arrays)
            if not rest and outlet.flush(0):
                del self._backlog[target]

    def close(self) -> None:
        """Called by the thread that uses it, when it is done."""
        self.is_closed = True
        for outlet in self._outgoing.values():
            outlet.close()
        self._door.close()

    def _take_all(self) -> None:
        while (frames := self._door.receive(0)) is not None:
            self._take(frames)

    def _take(self, frames: Sequence[Any]) -> None:
        """Takes one message, of whatever lane."""
        head, *parts = frames
        header = unpack(head)
        lane = self._lanes.get(header.lane)
        if lane is not None and lane.info.source == self._me and not header.types:
            while lane.kept and lane.kept[0][0] < header.sequence:
                lane.kept.popleft()
            return
        if lane is None or lane.info.target != self._me:
            raise RunError(f"a message came by lane {header.lane}, which does not end here")
        if header.incarnation < lane.incarnation:
            return  # from one that was replaced
        if header.incarnation > lane.incarnation:
            lane.incarnation, lane.slab = header.incarnation, None
        if header.sequence < lane.received:
            self._payload(lane, header, parts)  # made again after a loss: we have it already
            return
        if header.sequence != lane.received:
            raise RunError(
                f"{lane.info.words}: number {header.sequence} came where number {lane.received} "
                "was expected"
            )
        self._check_types(lane, header.types)
        lane.inbox.append(self._payload(lane, header, parts))
        lane.received += 1

    def _payload(self, lane: _Lane, header: Header, parts: Sequence[Any]) -> list[Any]:
        present = [t for t in header.types if t is not None]
        if present and not parts:
            if lane.slab is None:
                lane.slab = Slab.open(self._slab_path(lane, header.incarnation))
            sizes = [math.prod(shape) * d.itemsize for shape, d in present]
            buffers: Sequence[Any] = lane.slab.read(header.sequence, sizes)
        else:
            buffers = parts
        if len(buffers) != len(present):
            raise RunError(f"{lane.info.words} brings {len(buffers)} arrays, not {len(present)}")
        rest = iter(buffers)
        return [None if t is None else array_from(next(rest), *t) for t in header.types]

    def _check_types(self, lane: _Lane, types: tuple[Any, ...]) -> None:
        """All messages of a lane are alike."""
        if lane.types is None:
            lane.types = types
        elif types != lane.types:
            raise RunError(f"{lane.info.words} has types {types}, but had {lane.types} before")

    def _slab_path(self, lane: _Lane, incarnation: int) -> Path:
        slabs = self._addresses[self._me].slabs
        assert slabs is not None
        return Path(slabs) / f"lane-{lane.info.number}-{incarnation}"

    def _outlet_to(self, target: str) -> Outlet | NetworkOutlet:
        if target not in self._outgoing:
            address = self._addresses[target]
            if address.is_near(self._addresses[self._me]):
                assert address.path is not None
                self._outgoing[target] = Outlet(address.path)
            else:
                self._outgoing[target] = NetworkOutlet(self._door.context, address)
        return self._outgoing[target]
