"""Messages between processes: frames, shared memory, lanes; what is broken is refused."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis.extra import numpy as arrays

from fragflow.errors import RunError
from fragflow.graph.kinds import Kind, Tag
from fragflow.remote import lanes
from fragflow.remote.codec import Codec
from fragflow.remote.frames import DTYPES, array_from, pack, raw, unpack
from fragflow.remote.lanes import Address, LaneInfo, Post
from fragflow.remote.slab import SLOTS, Slab
from fragflow.runtime.channels import Closed
from fragflow.runtime.schedule import Run

SMALL = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.uint8, SMALL.map(lambda s: (*s, dtype.itemsize))).map(
        lambda raw: raw.view(dtype)[..., 0]
    )
)


@given(st.lists(st.none() | ARRAYS, max_size=4), st.integers(0, 2**32 - 1))
def test_arrays_travel_as_they_are(payload: list[Any], sequence: int) -> None:
    header = unpack(pack(3, 1, sequence, payload))
    assert (header.lane, header.incarnation, header.sequence) == (3, 1, sequence)
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
        with pytest.raises(TypeError, match="LaneInfo is not a record that travels"):
            self.codec.encode(_info(0))
        with pytest.raises(RunError, match="could not be read"):
            self.codec.decode(b'{"":"Path","of":["x"]}', [])


def test_a_slab_is_used_in_turn_and_waits_for_its_reader(tmp_path: Path) -> None:
    written = Slab.create(tmp_path / "slab", 100)
    read = Slab.open(tmp_path / "slab")
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


def _info(number: int) -> LaneInfo:
    return LaneInfo(number=number, route=(f"m{number}", 0, 0), source="a", target="b")


@pytest.fixture(params=["ipc", "ipc and shared memory", "tcp with keys"])
def posts(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two ends, as in two processes."""
    keys = {name: zmq.curve_keypair() for name in "ab"} if "tcp" in request.param else {}
    addresses = {}
    for name in "ab":
        endpoint = f"ipc://{tmp_path}/{name}"
        if keys:
            probe = zmq.Context.instance().socket(zmq.PULL)
            port = probe.bind_to_random_port("tcp://127.0.0.1")
            probe.close(linger=0)
            endpoint = f"tcp://127.0.0.1:{port}"
            time.sleep(0.05)
        addresses[name] = Address(
            endpoint=endpoint,
            slabs=str(tmp_path) if "shared" in request.param else None,
            public_key=keys[name][0].decode() if keys else None,
        )
    infos = [_info(0), _info(1)]
    ends = [Post(n, addresses, infos, 2.0, secret=keys.get(n)) for n in "ab"]
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_in_order_whatever_is_waited_for(posts: list[Post]) -> None:
    here, there = posts
    large = np.arange(lanes.LARGE_BYTES, dtype=np.float32)
    for k in range(3):
        here.open("m0", 0, 0).put([np.int32(k), None, large + k])
        here.open("m1", 0, 0).put([np.array([k])])
    for k in range(3):
        (number,) = there.get(there.open("m1", 0, 0), "m1")
        assert number == [k]
    for k in range(3):
        number, nothing, array = there.get(there.open("m0", 0, 0), "m0")
        assert (number, nothing) == (k, None)
        np.testing.assert_array_equal(array, large + k)


def test_a_wait_ends(posts: list[Post]) -> None:
    _, there = posts
    there.timeout_seconds = 0.2
    with pytest.raises(RunError, match=r"message m0 of a did not come within 0 seconds"):
        there.get(there.open("m0", 0, 0), "message m0 of a")
    there.is_closed = True
    with pytest.raises(Closed):
        there.get(there.open("m0", 0, 0), "message m0 of a")


def test_messages_of_a_lane_are_alike(posts: list[Post]) -> None:
    here, _ = posts
    lane = here.open("m0", 0, 0)
    lane.put([np.zeros(3)])
    with pytest.raises(RunError, match="message m0 from replica 0 to 0 has types"):
        lane.put([np.zeros(4)])


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    """Without the right keys nothing arrives."""
    keys = zmq.curve_keypair()
    address = Address(endpoint="tcp://127.0.0.1:0", public_key=keys[0].decode())
    context = zmq.Context()
    probe = context.socket(zmq.PULL)
    port = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(linger=0)
    time.sleep(0.05)
    address = Address(endpoint=f"tcp://127.0.0.1:{port}", public_key=keys[0].decode())
    post = Post("b", {"b": address}, [_info(0)], 0.5, secret=keys)
    stranger = context.socket(zmq.PUSH)
    stranger.connect(address.endpoint)
    stranger.send_multipart([pack(0, 0, 0, [np.zeros(1)]), raw(np.zeros(1))])
    with pytest.raises(RunError, match="did not come"):
        post.get(post.open("m0", 0, 0), "message m0")
    stranger.close(linger=0)
    post.close()
    context.destroy(linger=0)
