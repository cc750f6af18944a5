"""What a boundary between processes costs: round trips of fragflow's channels and of Ray.

An array goes to another worker and comes back. fragflow: within a process (a queue between two
threads), and between two processes over a local socket, through shared memory, over TCP, and over
TCP with encryption. Ray: an actor call with the array as its argument, and the same with the array
in the object store on both ways. All on one host, in turn.
"""

import argparse
import functools
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import numpy as np
from measure import HERE, Worker, cache, print_table, rival_python

from fragflow.remote.transport.endpoint import Address, Endpoint, Network
from fragflow.remote.transport.mailbox import Route, SocketChannels

RAY = ("ray==2.54.0", "numpy")
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "4 MB": 1 << 22}
TARGETS = {"1 KB": 8.0, "64 KB": 6.0, "4 MB": 2.0}
INFOS = (
    Route(number=0, key=("there", 0, 0), source="a", target="b"),
    Route(number=1, key=("back", 0, 0), source="b", target="a"),
)
TIMEOUT_SECONDS = 30.0
KINDS = ("socket", "shared memory", "tcp", "tcp encrypted")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="samples of each kind")
    parser.add_argument("--no-ray", action="store_true", help="leave out Ray")
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    parser.add_argument("--echo", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        echo(*options.echo)
        return
    results: dict[str, Any] = {"machine": measure.machine(), "round_trip_microseconds": {}}
    worker = None
    if not options.no_ray:
        python = rival_python(cache() / "ray", RAY)
        worker = Worker(HERE / "ray_echo_worker.py", python=python)
        results["ray"] = worker.info
    rows = []
    for size, count in SIZES.items():
        found = compare(count, options.repeats, worker)
        results["round_trip_microseconds"][size] = found
        rows += table_rows(size, found)
    if worker is not None:
        worker.close()
    print_table("round trips on one host", ["", "", "µs", "Ray's best", "target", ""], rows)
    measure.write(options.json, results)


def compare(size: int, repeats: int, worker: Worker | None) -> dict[str, list[float]]:
    array = np.arange(size // 4, dtype=np.float32)
    trips = max(20, min(2000, (1 << 27) // (size + (1 << 15))))
    samples: dict[str, list[float]] = {}
    ways: dict[str, Any] = {
        "in process": in_process,
        **{kind: functools.partial(between, kind) for kind in KINDS},
    }
    for _ in range(repeats):
        for name, way in ways.items():
            with way() as there_and_back:
                samples.setdefault(name, []).append(1e6 * clock(there_and_back, array, trips))
        for name in ("actor call", "object store") if worker is not None else ():
            assert worker is not None
            rounds = max(20, min(300, trips))
            seconds = worker.run(f"{name.split()[0]} {size} {rounds}").seconds
            samples.setdefault(f"Ray: {name}", []).append(1e6 * seconds / rounds)
    return samples


def clock(trip: Callable[[np.ndarray], Any], array: np.ndarray, trips: int) -> float:
    """Seconds of one round trip."""
    for _ in range(10):
        trip(array)
    began = time.perf_counter()
    for _ in range(trips):
        trip(array)
    return (time.perf_counter() - began) / trips


@contextmanager
def in_process() -> Iterator[Callable[[np.ndarray], Any]]:
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer() -> None:
        while (item := there.get()) is not None:
            back.put(item)

    def trip(array: np.ndarray) -> Any:
        there.put([array])
        return back.get(timeout=TIMEOUT_SECONDS)

    thread = threading.Thread(target=answer)
    thread.start()
    yield trip
    there.put(None)
    thread.join()


@contextmanager
def between(kind: str) -> Iterator[Callable[[np.ndarray], Any]]:
    """A process that sends everything back."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        endpoint, address = open_endpoint(kind, folder, "a")
        words = [sys.executable, __file__, "--echo", kind, folder, json.dumps(asdict(address))]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        other = Address(**json.loads(child.stdout.readline()))
        addresses = {"a": address, "b": other}
        channels = SocketChannels("a", endpoint, addresses, INFOS, TIMEOUT_SECONDS, large_bytes=0)
        route, answers = channels.open("there", 0, 0), channels.open("back", 0, 0)

        def trip(array: np.ndarray) -> Any:
            route.put([array])
            return channels.get(answers, "the echo")

        try:
            yield trip
            child.terminate()
        finally:
            child.kill()
            child.wait()
            channels.close()


def echo(kind: str, folder: str, other: str) -> None:
    endpoint, address = open_endpoint(kind, folder, "b")
    print(json.dumps(asdict(address)), flush=True)
    addresses = {"a": Address(**json.loads(other)), "b": address}
    channels = SocketChannels("b", endpoint, addresses, INFOS, TIMEOUT_SECONDS, large_bytes=0)
    route, answers = channels.open("there", 0, 0), channels.open("back", 0, 0)
    while True:
        answers.put(channels.get(route, "a message"))


def open_endpoint(kind: str, folder: str, me: str) -> tuple[Endpoint, Address]:
    endpoint = Endpoint()
    if kind.startswith("tcp"):
        is_encrypted = kind == "tcp encrypted"
        tcp = endpoint.bind_network(Network(interface="127.0.0.1"), is_encrypted)
        key = endpoint.keys[0].decode() if is_encrypted else None
        return endpoint, Address(endpoint=tcp, public_key=key, host=me)
    shared_memory = None
    if kind == "shared memory":
        shared_memory = folder
    endpoint.bind_path(f"{folder}/{me}")
    return endpoint, Address(path=f"{folder}/{me}", shared_memory=shared_memory)


def table_rows(size: str, found: dict[str, list[float]]) -> list[list[str]]:
    rivals = [statistics.median(v) for k, v in found.items() if k.startswith("Ray")]
    best = min(rivals, default=None)
    rows = []
    for name, samples in found.items():
        micro = statistics.median(samples)
        ratio = "" if best is None or name.startswith("Ray") else f"{best / micro:.1f}x"
        is_judged = bool(ratio) and name in ("socket", "shared memory")
        met = is_judged and best is not None and best / micro >= TARGETS[size]
        target = f"{TARGETS[size]:.0f}x" if is_judged else ""
        verdict = ("met" if met else "missed") if is_judged else ""
        rows.append([size, name, f"{micro:,.0f}", ratio, target, verdict])
    return rows


if __name__ == "__main__":
    main()
