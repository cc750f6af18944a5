"""Messages between processes: frames, shared memory, routes; what is broken is refused."""

import contextlib
import queue
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as arrays

from fragflow.errors import RunError
from fragflow.graph.replicas.kinds import Kind, Tag
from fragflow.remote.protocol.codec import Codec
from fragflow.remote.protocol.control_channel import ControlChannel
from fragflow.remote.transport import mailbox, unix_socket
from fragflow.remote.transport.endpoint import Network, TcpSender, bind_tcp, open_endpoint
from fragflow.remote.transport.frames import DTYPES, array_from, pack, raw, types_of, unpack
from fragflow.remote.transport.mailbox import Route, SocketChannels
from fragflow.remote.transport.shared_memory import SLOTS, SharedSlots
from fragflow.remote.transport.unix_socket import UnixReceiver, UnixSender
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.planning.instructions import Run
from fragflow.runtime.traffic import Sent

SMALL = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.uint8, SMALL.map(lambda s: (*s, dtype.itemsize))).map(
        lambda raw: raw.view(dtype)[..., 0]
    )
)


@given(st.lists(st.none() | ARRAYS, max_size=4), st.integers(0, 2**32 - 1))
def test_arrays_travel_as_they_are(payload: list[Any], sequence: int) -> None:
    header = unpack(pack(3, 1, sequence, types_of(payload)))
    assert (header.route, header.incarnation, header.sequence) == (3, 1, sequence)
    for array, kind in zip(payload, header.types, strict=True):
        if array is None:
            assert kind is None
        else:
            assert kind is not None
            back = array_from(raw(array), *kind)
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert back.tobytes() == array.tobytes()


@given(st.binary(max_size=60))
def test_whatever_comes_is_a_header_or_refused(noise: bytes) -> None:
    with pytest.raises(RunError):
        unpack(b"ffmX" + noise)
    with contextlib.suppress(RunError):
        unpack(b"ffm1" + noise)


def test_bytes_must_be_as_many_as_announced() -> None:
    with pytest.raises(RunError, match=r"announces float32\[3\], 12 bytes, but brings 8"):
        array_from(bytes(8), (3,), np.dtype("float32"))


class TestCodec:
    codec = Codec([Kind, Tag, Run])

    def test_records_travel(self) -> None:
        value = {
            "kind": Kind(tag=Tag.VARYING, axis=2),
            (1, "two"): [Run(3), None, 1.5, frozenset({"a"})],
            "array": np.arange(6, dtype=np.int16).reshape(2, 3),
            "bytes": b"\x00\x01",
        }
        back = self.codec.decode(*self.codec.encode(value))
        np.testing.assert_array_equal(back.pop("array"), value.pop("array"))
        assert back == value

    def test_only_listed_records_do(self) -> None:
        with pytest.raises(TypeError, match="Route is not a record that travels"):
            self.codec.encode(_info(0))
        with pytest.raises(RunError, match="could not be read"):
            self.codec.decode(b'{"":"Path","of":["x"]}', [])


def test_a_slab_is_used_in_turn_and_waits_for_its_reader(tmp_path: Path) -> None:
    written = SharedSlots.create(tmp_path / "slots", 100)
    read = SharedSlots.open(tmp_path / "slots")
    messages = [np.full(100, k, np.uint8) for k in range(3 * SLOTS)]

    def write() -> None:
        for k, message in enumerate(messages):
            written.write(k, [raw(message[:40]), raw(message[40:])], timeout_seconds=10)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.05)
    assert writer.is_alive(), "nobody has read yet"
    for k, message in enumerate(messages):
        time.sleep(0.001)
        parts = read.read(k, [40, 60])
        np.testing.assert_array_equal(np.concatenate(parts), message)
    writer.join()
    for k in range(SLOTS):
        written.write(len(messages) + k, [raw(messages[0])], timeout_seconds=0.1)
    with pytest.raises(RunError, match="their receiver is stuck"):
        written.write(len(messages) + SLOTS, [raw(messages[0])], timeout_seconds=0.1)


def test_a_slab_may_begin_with_any_number(tmp_path: Path) -> None:
    """That of a process which takes the place of a lost one."""
    written = SharedSlots.create(tmp_path / "slots", 8, first=57)
    written.write(57, [memoryview(bytes(range(8)))], timeout_seconds=0.1)
    (found,) = SharedSlots.open(tmp_path / "slots").read(57, [8])
    assert bytes(found) == bytes(range(8))


def _info(number: int) -> Route:
    return Route(number=number, key=(f"m{number}", 0, 0), source="a", target="b")


@pytest.fixture(params=["one host", "one host, shared memory", "two hosts"])
def posts(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two ends, as in two processes, of one host or two."""
    network = Network(interface="127.0.0.1") if request.param == "two hosts" else None
    endpoints, addresses = {}, {}
    for name in "ab":
        host = name if network else ""
        endpoints[name], addresses[name] = open_endpoint(tmp_path, name, host, network)
        if "shared" not in request.param:
            addresses[name] = replace(addresses[name], shared_memory=None)
    infos = [_info(0), _info(1)]
    ends = [SocketChannels(n, endpoints[n], addresses, infos, 2.0) for n in "ab"]
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_in_order_whatever_is_waited_for(posts: list[SocketChannels]) -> None:
    here, there = posts
    large = np.arange(mailbox.LARGE_BYTES, dtype=np.float32)

    def send() -> None:
        for k in range(3):
            here.open("m0", 0, 0).put([np.int32(k), None, large + k])
            here.open("m1", 0, 0).put([np.array([k])])

    sender = threading.Thread(target=send)  # it waits while nobody takes what it has sent
    sender.start()
    for k in range(3):
        (number,) = there.get(there.open("m1", 0, 0), "m1")
        assert number == [k]
    for k in range(3):
        number, nothing, array = there.get(there.open("m0", 0, 0), "m0")
        assert (number, nothing) == (k, None)
        np.testing.assert_array_equal(array, large + k)
    sender.join()
    assert here.sent == Sent(messages=6, bytes=3 * (4 + large.nbytes) + 3 * 8)
    assert there.sent == Sent()


def test_a_wait_ends(posts: list[SocketChannels]) -> None:
    _, there = posts
    there.timeout_seconds = 0.2
    with pytest.raises(RunError, match=r"message m0 of a did not come within 0 seconds"):
        there.get(there.open("m0", 0, 0), "message m0 of a")
    there.is_closed = True
    with pytest.raises(Closed):
        there.get(there.open("m0", 0, 0), "message m0 of a")


def test_messages_of_a_lane_are_alike(posts: list[SocketChannels]) -> None:
    here, _ = posts
    route = here.open("m0", 0, 0)
    route.put([np.zeros(3)])
    with pytest.raises(RunError, match="message m0 from replica 0 to 0 has types"):
        route.put([np.zeros(4)])


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    """Without the right keys nothing arrives."""
    endpoint, address = open_endpoint(tmp_path, "b", "b", Network(interface="127.0.0.1"))
    channels = SocketChannels("b", endpoint, {"b": address}, [_info(0)], 0.5)
    context = zmq.Context()
    stranger = context.socket(zmq.PUSH)
    stranger.connect(str(address.endpoint))
    stranger.send_multipart([pack(0, 0, 0, types_of([np.zeros(1)])), raw(np.zeros(1))])
    with pytest.raises(RunError, match="did not come"):
        channels.get(channels.open("m0", 0, 0), "message m0")
    stranger.close(linger=0)
    channels.close()
    context.destroy(linger=0)


def test_processes_of_one_host_take_the_short_way(tmp_path: Path) -> None:
    network = Network(interface="127.0.0.1")
    opened = {
        n: open_endpoint(tmp_path, n, host, network) for n, host in zip("abc", "xxy", strict=True)
    }
    a, b, c = (opened[n][1] for n in "abc")
    assert b.is_near(a)
    assert b.shares_memory_with(a)
    assert not c.is_near(a)
    assert not c.shares_memory_with(a)
    assert str(c.endpoint).startswith("tcp://127.0.0.1:")
    for endpoint, _ in opened.values():
        endpoint.close()


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_signs_of_life_may_be_unheard_for_hours(tmp_path: Path) -> None:
    """Of a coordinator that is stopped, or evaluates; a process would take it for gone."""
    context = zmq.Context()
    here, there = ControlChannel(context, Codec([])), ControlChannel(context, Codec([]))
    here.bind(f"ipc://{tmp_path}/line")
    there.connect(f"ipc://{tmp_path}/line")
    for _ in range(4 * 3600):
        there.beat()
    there.say("done", 5)
    heard = ("beat", None)
    while heard == ("beat", None):
        heard = here.hear(2000)
    assert heard == ("done", 5)
    here.close()
    there.close()
    context.destroy(linger=0)


def test_a_door_hears_both_ways(tmp_path: Path) -> None:
    endpoint, address = open_endpoint(tmp_path, "a", "x", Network(interface="127.0.0.1"))
    assert address.path is not None
    outlets = [UnixSender(address.path), TcpSender(endpoint.context, address)]
    for k in range(6):
        sender_socket = outlets[k % 2]
        assert sender_socket.flush(2000)
        sender_socket.send([b"%d" % k, b""])
        frames = None
        deadline = time.monotonic() + 5
        while frames is None and time.monotonic() < deadline:
            frames = endpoint.receive(50)
        assert frames is not None
        assert [bytes(f) for f in frames] == [b"%d" % k, b""]
    assert endpoint.receive(1) is None
    for sender_socket in outlets:
        sender_socket.close()
    endpoint.close()


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_addresses_may_be_longer(tmp_path: Path) -> None:
    network = Network(interface="::1")
    endpoint, address = open_endpoint(tmp_path, "a", "x", network)
    sender_socket = TcpSender(endpoint.context, address)
    sender_socket.send([b"hello"])
    assert endpoint.receive(2000) == [b"hello"]
    sender_socket.close()
    endpoint.close()
    context = zmq.Context()
    here, there = ControlChannel(context, Codec([])), ControlChannel(context, Codec([]))
    keys = zmq.curve_keypair()
    here.bind_network(network, keys)
    there.connect(here.endpoint, keys[0].decode())
    there.say("ready")
    assert here.hear(2000) == ("ready", None)
    here.close()
    there.close()
    context.destroy(linger=0)


FRAMES = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 3 * unix_socket.ROOM).map(bytes)), max_size=6
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(FRAMES, min_size=1, max_size=8))
def test_frames_arrive_however_they_are_cut(tmp_path: Path, messages: list[list[bytes]]) -> None:
    path = tmp_path / "socket"
    path.unlink(missing_ok=True)
    inbox, sender_socket = UnixReceiver(str(path)), UnixSender(str(path))
    got: list[list[bytes]] = []
    for message in messages:
        sender_socket.send(message)
        while not sender_socket.flush(0):
            frames = inbox.receive(1000)  # it is full
            if frames is not None:
                got.append([bytes(f) for f in frames])
    while len(got) < len(messages):
        frames = inbox.receive(1000)
        if frames is not None:
            got.append([bytes(f) for f in frames])
    assert got == messages
    sender_socket.close()
    assert inbox.receive(10) is None
    inbox.close()


def test_nonsense_is_refused(tmp_path: Path) -> None:
    inbox = UnixReceiver(f"{tmp_path}/socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(f"{tmp_path}/socket")
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
        assert inbox.receive(1000) is None  # a connection
        with pytest.raises(RunError, match="it is not one of fragflow's"):
            inbox.receive(1000)
    inbox.close()


def test_who_has_gone_takes_nothing(tmp_path: Path) -> None:
    inbox, sender_socket = UnixReceiver(f"{tmp_path}/socket"), UnixSender(f"{tmp_path}/socket")
    inbox.receive(10)
    inbox.close()
    for _ in range(3):
        if sender_socket.flush(0):
            sender_socket.send([b"anything"])
    assert not sender_socket.flush(0)
    sender_socket.close()
    sender_socket = UnixSender(f"{tmp_path}/nobody")
    assert not sender_socket.flush(0)
    sender_socket.close()


def test_a_receiver_may_move_before_its_sender_has_begun(tmp_path: Path) -> None:
    opened = {label: open_endpoint(tmp_path, label) for label in ("a", "b.0", "b.1")}
    addresses = {"a": opened["a"][1], "b": opened["b.0"][1]}
    moves: mailbox.Moves = queue.SimpleQueue()
    moves.put(("b", opened["b.1"][1], {0: 0}))
    here = SocketChannels(
        "a", opened["a"][0], addresses, [_info(0)], 2.0, expendable="b", moves=moves
    )
    there = SocketChannels("b", opened["b.1"][0], addresses, [_info(0)], 2.0)
    here.open("m0", 0, 0).put([np.int32(5)])
    here.idle()
    # As the next one of those that are kept, and as itself: who has a number drops it.
    assert here.sent == Sent(messages=2, bytes=8)
    assert there.get(there.open("m0", 0, 0), "m0") == [5]
    opened["b.0"][0].close()
    here.close()
    there.close()


@pytest.mark.parametrize("is_shared", [False, True], ids=["sockets", "shared memory"])
def test_both_may_send_more_than_fits(tmp_path: Path, is_shared: bool) -> None:
    """Neither has begun to receive: who cannot send on takes what has come."""
    opened = {n: open_endpoint(tmp_path, n) for n in "ab"}
    addresses = {n: address for n, (_, address) in opened.items()}
    if not is_shared:
        addresses = {n: replace(address, shared_memory=None) for n, address in addresses.items()}
    back = Route(number=1, key=("m1", 0, 0), source="b", target="a")
    ends = {n: SocketChannels(n, opened[n][0], addresses, [_info(0), back], 5.0) for n in "ab"}
    large = np.zeros(1 << 20, np.float32)

    got: list[Any] = []

    def exchange(name: str, sent: str, awaited: str) -> None:
        channels = ends[name]
        for _ in range(2 * SLOTS):
            channels.open(sent, 0, 0).put([large])
        for _ in range(2 * SLOTS):
            got.extend(channels.get(channels.open(awaited, 0, 0), awaited))

    threads = [
        threading.Thread(target=exchange, args=words)
        for words in (("a", "m0", "m1"), ("b", "m1", "m0"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [array.shape for array in got] == [large.shape] * 4 * SLOTS
    for end in ends.values():
        end.close()


def test_ports_that_may_be_used() -> None:
    context = zmq.Context()
    first, second, third = (context.socket(zmq.PULL) for _ in range(3))
    port = int(bind_tcp(first, Network(interface="127.0.0.1")).rpartition(":")[2])
    two = Network(interface="127.0.0.1", first_port=port, last_port=port + 1)
    assert bind_tcp(second, two).endswith(f":{port + 1}")
    with pytest.raises(RunError, match=rf"all ports from {port} to {port + 1} of 127.0.0.1 are in"):
        bind_tcp(third, two)
    with pytest.raises(RunError, match=r"cannot listen at 203.0.113.7"):
        bind_tcp(third, Network(interface="203.0.113.7"))
    context.destroy(linger=0)
