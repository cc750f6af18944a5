"""Workers as Ray actors, on a cluster of several nodes: the results of threads, and faults."""

import json
import os
import secrets
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fragflow.algorithms.a3c import A3C
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ppo import PPO
from fragflow.errors import ConfigError
from fragflow.remote.coordinator import replacement
from fragflow.remote.launch.cluster import Cluster, Need
from fragflow.remote.protocol import process_client
from fragflow.run import Silent
from graph.toy import Toy
from remote.plain_drift import PlainDrift
from remote.ray_nodes import WARNINGS, Nodes
from remote.training import COARSE, assert_same, in_threads, train

pytest.importorskip("ray", reason="Ray is an extra")

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No actor, no directory, also after faults."""
    before = set(_directories())
    yield
    deadline = time.monotonic() + 10
    while (left := (workers(), set(_directories()) - before)) != ([], set()):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def _directories() -> Sequence[Path]:
    me = os.getpid()
    return [*Path("/dev/shm").glob(f"fragflow-{me}-*"), *Path("/tmp").glob(f"fragflow-ray-{me}-*")]


def workers(part: str = "") -> list[int]:
    """Processes of this one's actors whose names have this part."""
    found, ours = [], f"FRAGFLOW_COORDINATOR={os.getpid()}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
            is_worker = (entry / "cmdline").read_bytes().startswith(b"ray::")
        except OSError:
            continue
        names = [w.decode() for w in words if w.startswith(b"FRAGFLOW_WORKER=")]
        if is_worker and ours in words and any(part in name for name in names):
            found.append(int(entry.name))
    return found


class After(Silent):
    """Does something after some iterations, once, while workers go on."""

    def __init__(self, iteration: int, act: Callable[[], object]):
        self._iteration = iteration
        self._act = act
        self.is_done = False

    def rows(self, rows: Any) -> None:
        if not self.is_done and rows[-1].iteration >= self._iteration:
            self.is_done = True
            self._act()


@pytest.mark.parametrize(
    "policy",
    [
        COARSE,
        pytest.param("multi-learner", marks=pytest.mark.slow),
        pytest.param("single-learner-fine", marks=pytest.mark.slow),
        pytest.param("environments", marks=pytest.mark.slow),
    ],
)
def test_bits_are_those_of_threads(nodes: Nodes, policy: str) -> None:
    here = Cluster(address=nodes.here.address, token_file=str(nodes.token))
    threads = in_threads(Toy(), policy)
    on_ray = train(Toy(), policy, runtime="ray", cluster=here)
    assert_same(threads, on_ray)


@pytest.mark.parametrize(
    ("algorithm", "policy", "sync"),
    [
        (A3C(rollout_length=4, hidden=(8,)), "central", "async=4"),
        pytest.param(
            *(IMPALA(rollout_length=4, hidden=(8,)), COARSE, "lag=1"), marks=pytest.mark.slow
        ),
    ],
    ids=["a3c", "impala"],
)
def test_asynchronous_and_late(nodes: Nodes, algorithm: Any, policy: str, sync: str) -> None:
    here = Cluster(address=nodes.here.address, token_file=str(nodes.token))
    outcome = train(algorithm, policy, sync=sync, iterations=6, runtime="ray", cluster=here)
    assert len(outcome.rows) == 6
    if sync.startswith("lag"):
        assert_same(in_threads(algorithm, policy, sync=sync, iterations=6), outcome)


@pytest.mark.slow
def test_environments_on_the_host(nodes: Nodes) -> None:
    algorithm = PPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,))
    threads = in_threads(algorithm, environment=PlainDrift())
    on_ray = train(algorithm, environment=PlainDrift(), runtime="ray", cluster=nodes.here)
    assert_same(threads, on_ray)


def test_fragments_land_where_they_should(nodes: Nodes) -> None:
    """Workers on both nodes for workers, the learner on its own."""
    found: dict[str, set[str]] = {}

    def look() -> None:
        for node in (*nodes.workers, nodes.learner):
            name = node.unique_id if hasattr(node, "unique_id") else node.node_id
            found[name] = {
                label
                for label in ("environment_actor_0", "environment_actor_1", "learner")
                for process in workers(label)
                if node.raylet_socket_name.encode() in _command(process)
            }

    observer = After(3, look)
    train(Toy(), iterations=200, runtime="ray", cluster=nodes.here, observer=observer)
    assert observer.is_done
    places = sorted(sorted(labels) for labels in found.values())
    assert places == [["environment_actor_0"], ["environment_actor_1"], ["learner"]]


def _command(process: int) -> bytes:
    """All that says which raylet has started a process."""
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return Path(f"/proc/{parent}/cmdline").read_bytes()


class Killing(Silent):
    """Kills a worker after some iterations, and again after some more."""

    def __init__(self, part: str, at: Sequence[int]):
        self._part = part
        self._at = list(at)
        self.times: list[float] = []

    def rows(self, rows: Any) -> None:
        if self._at and rows[-1].iteration >= self._at[0] and (found := workers(self._part)):
            self._at.pop(0)
            os.kill(found[0], signal.SIGKILL)
            self.times.append(time.monotonic())


@pytest.mark.slow
def test_a_worker_that_is_killed_twice_is_replaced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed: list[float] = []
    replaced = replacement._Succession.replace

    def note(self: Any, lost: Any, prepare: Any) -> None:
        noticed.append(time.monotonic())
        replaced(self, lost, prepare)

    monkeypatch.setattr(replacement._Succession, "replace", note)
    undisturbed = in_threads(Toy(), iterations=600)
    observer = Killing("environment_actor_1", at=(10, 200))
    disturbed = train(Toy(), iterations=600, runtime="ray", cluster=nodes.here, observer=observer)
    assert_same(undisturbed, disturbed)
    assert disturbed.replacements == 2
    assert all(b - a < 5 for a, b in zip(observer.times, noticed, strict=True))


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "SILENCE_SECONDS", 6.0)
    stop = After(10, lambda: os.kill(workers("environment_actor_0")[0], signal.SIGSTOP))
    disturbed = train(Toy(), iterations=600, runtime="ray", cluster=nodes.here, observer=stop)
    assert_same(in_threads(Toy(), iterations=600), disturbed)
    assert disturbed.replacements == 1


@pytest.mark.slow
def test_a_node_is_lost_and_another_comes(nodes: Nodes) -> None:
    def change() -> None:
        nodes.remove(nodes.workers.pop())
        with pytest.MonkeyPatch.context() as patch:
            # Ray installs handlers for the process's end, which only the main thread may do.
            patch.setattr(signal, "signal", lambda *_: None)
            nodes.workers.append(nodes.add("worker"))

    observer = After(10, change)
    disturbed = train(Toy(), iterations=600, runtime="ray", cluster=nodes.here, observer=observer)
    assert observer.is_done
    assert_same(in_threads(Toy(), iterations=600), disturbed)
    assert disturbed.replacements >= 1


class TestBadInput:
    """One clear error, before anything starts."""

    def test_nobody_there(self) -> None:
        with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
            train(Toy(), runtime="ray", cluster=Cluster(address="127.0.0.1:9", insecure=True))

    def test_not_an_address(self) -> None:
        with pytest.raises(ConfigError, match="--ray-address is 'somewhere': expected HOST:PORT"):
            train(Toy(), runtime="ray", cluster=Cluster(address="somewhere", insecure=True))

    def test_not_a_name(self) -> None:
        cluster = Cluster(address="a..b:6379", insecure=True)
        with pytest.raises(ConfigError, match=r"no Ray cluster answers at a\.\.b:6379"):
            train(Toy(), runtime="ray", cluster=cluster)

    def test_somebody_else_there(self) -> None:
        class WebServer(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(64)
                self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), WebServer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            cluster = Cluster(address=f"127.0.0.1:{server.server_address[1]}", insecure=True)
            with pytest.raises(ConfigError, match="not a Ray cluster's head: it does not speak"):
                train(Toy(), runtime="ray", cluster=cluster)
            server.shutdown()

    def test_a_process_that_reserves_nothing(self) -> None:
        cluster = Cluster(needs={"environment": Need(cpus=0.0)})
        with pytest.raises(ConfigError, match=r"has environment\+actor reserve nothing"):
            train(Toy(), runtime="ray", cluster=cluster)

    def test_no_token(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ConfigError, match=r"no token for the Ray cluster at 127\.0\.0\.1:9"):
            train(Toy(), runtime="ray", cluster=Cluster(address="127.0.0.1:9"))

    def test_no_token_file(self) -> None:
        cluster = Cluster(address="127.0.0.1:9", token_file="nowhere")
        with pytest.raises(ConfigError, match="token-file is nowhere: there is no such file"):
            train(Toy(), runtime="ray", cluster=cluster)

    def test_too_few_resources(self, nodes: Nodes) -> None:
        words = r"too small: the policy asks for 9 CPU \(it has 6\)"
        with pytest.raises(ConfigError, match=words):
            train(Toy(), workers=8, runtime="ray", cluster=Cluster(address=nodes.here.address))

    def test_a_cluster_for_another_runtime(self) -> None:
        with pytest.raises(ConfigError, match="a Ray cluster is given, but the runtime is local"):
            train(Toy(), runtime="local", cluster=Cluster())


def test_wrong_token(nodes: Nodes, tmp_path: Path) -> None:
    """In a process of its own: Ray reads a token once."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    file = tmp_path / "cluster.toml"
    file.write_text(f"[ray]\ntoken-file = '{token}'\n")
    address = str(nodes.here.address)
    result = fragflow("--ray-address", address, "--cluster", str(file), cwd=tmp_path)
    assert result.returncode == 2
    assert "does not let us in" in result.stderr
    assert "Is the token right" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cluster_of_its_own(tmp_path: Path) -> None:
    hashes = []
    for runtime in ("local", "ray"):
        result = fragflow("--runtime", runtime, "--run-dir", runtime, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        summary = json.loads((tmp_path / runtime / "summary.json").read_text())
        hashes.append(summary["params_sha256"])
    assert hashes[0] == hashes[1]


def fragflow(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    common = ["train", "ppo", "--env", "CartPole-v1", "--policy", COARSE, "--workers", "2"]
    common += ["--num-envs", "4", "--total-steps", "512", "--hidden", "8", "--eval-episodes", "0"]
    common += ["--no-probe"]
    if "--runtime" not in words:
        common += ["--runtime", "ray"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "JAX_", "NPROC"))}
    return subprocess.run(
        [sys.executable, "-m", "fragflow.tools.cli.main", *common, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=kept | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # most of the time is XLA's
    )
