"""A worker process: carries out its coordinator's requests, and ends with it.

One thread listens and sends heartbeats; another one computes. On one machine it is started as
`python -m fragflow.remote.worker.main COORDINATOR DIRECTORY LABEL PARENT`.
"""

import contextlib
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import zmq
from jax.sharding import Mesh

from fragflow import errors
from fragflow._jax import REPLICA_AXIS
from fragflow.api.host import Host
from fragflow.error_owner import has_story, judged, story_of
from fragflow.graph.replicas.kinds import UNIFORM
from fragflow.remote.protocol.control_channel import BEAT_SECONDS, ControlChannel
from fragflow.remote.protocol.environment_recipes import make
from fragflow.remote.protocol.exported import compile_exported
from fragflow.remote.protocol.jobs import CODEC, FragmentJob, Job, OpenEnvironments, Settled
from fragflow.remote.protocol.join_group import Membership, free_endpoint, join
from fragflow.remote.protocol.versions import versions
from fragflow.remote.transport.endpoint import Address, Endpoint, Network, open_endpoint
from fragflow.remote.transport.frames import arrays_of
from fragflow.remote.transport.mailbox import POLL_MILLISECONDS, Moves, SocketChannels
from fragflow.remote.worker.recovery_points import RecoveryPoints
from fragflow.runtime.asynchrony.async_driver import AsyncDriver, SlotChannels
from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.recorder import Recorder, TimedEvent
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.host_environments.pool import HostPool
from fragflow.runtime.programs.devices import compute_in_calling_thread
from fragflow.runtime.programs.layout import DeviceGroup, Layout, OneDevice, kind_of, on_host
from fragflow.runtime.protocols import Channels
from fragflow.runtime.traffic import Sent, together

PATIENCE_SECONDS = 3.0
"""added to the timeout of messages: if environments are late too, they are the cause"""


class WorkerProcess:
    """Carries out requests, one after the other, in a thread of its own."""

    def __init__(self, endpoint: Endpoint, network: Network) -> None:
        self._endpoint = endpoint
        self._network = network
        self.pools: dict[str, HostPool] = {}
        self.channels: SocketChannels | None = None
        self.driver: ThreadDriver | AsyncDriver | None = None
        self.recorder: Recorder | None = None
        self.timeout_seconds = 120.0
        self.recovery_points: RecoveryPoints | None = None
        self._moves: Moves = queue.SimpleQueue()
        self._is_member = False
        """True in a group of processes, all of whose devices JAX sees here"""
        self._requests: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.bell, self._rope = os.pipe()
        """readable when there is an answer"""
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def request(self, word: str, content: Any) -> None:
        self._requests.put((word, content))

    def stop(self) -> None:
        """Ends the wait for messages."""
        if self.channels is not None:
            self.channels.is_closed = True

    def move(self, target: str, address: Address, counts: Mapping[int, int]) -> None:
        """Notes that a process we exchange messages with was replaced, perhaps before our start."""
        self._moves.put((target, address, counts))

    def forget(self, counts: Mapping[int, int]) -> None:
        """Notes, by route, the messages that no replacement of ours will ask for again."""
        if self.recovery_points is not None:
            self.recovery_points.forget(counts)

    def stuck(self) -> dict[str, str] | None:
        """The error to report if environments do not answer."""
        for pool in self.pools.values():
            fault = pool.stuck(self.timeout_seconds)
            if fault is not None:
                return _told(fault)
        return None

    def end(self, grace_seconds: float) -> None:
        self.stop()
        self._requests.put(None)
        self._thread.join(grace_seconds)
        for pool in self.pools.values():
            with contextlib.suppress(Exception):
                pool.close()

    def _work(self) -> None:
        methods: dict[str, Callable[[Any], Any]] = {
            "endpoint": lambda _: free_endpoint(self._network),
            "join": self._join,
            "open": self._host,
            "ask": self._ask,
            "job": self._job,
            "preload": self._preload,
            "run": self._run,
            "state": self._state,
            "events": self._events,
        }
        while (request := self._next_request()) is not None:
            word, content = request
            try:
                self._answer("done", methods[word](content))
            except Closed:
                self._answer("closed", None)
            except BaseException as error:  # whatever it is, the coordinator must hear of it
                traceback.print_exc()  # for the process's log
                self._answer("failed", self._failure(error))
        if self.channels is not None:
            self.channels.close()

    def _next_request(self) -> tuple[str, Any] | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get(timeout=POLL_MILLISECONDS / 1000)
            if self.channels is not None:
                self.channels.idle()

    def answers(self) -> Iterator[tuple[str, Any]]:
        """Answers to requests that were carried out since the last call."""
        while not self._answers.empty():
            os.read(self.bell, 1)
            yield self._answers.get()

    def _answer(self, word: str, content: Any) -> None:
        self._answers.put((word, content))
        os.write(self._rope, b".")

    def _failure(self, error: BaseException) -> dict[str, str]:
        return _told(error if self.driver is None else self.driver.error(error))

    def _join(self, membership: Membership) -> None:
        join(membership, self._network)
        self._is_member = True

    def _host(self, request: OpenEnvironments) -> None:
        sys.path.extend(path for path in request.path if path not in sys.path)
        host = Host(make(request.environment))
        self.pools[request.fragment] = HostPool(host, request.ids, one_by_one=request.one_by_one)

    def _ask(self, content: tuple[str, str, list[Any]]) -> list[np.ndarray]:
        fragment, method, arguments = content
        return [np.asarray(a) for a in self.pools[fragment].call(method, *arguments)]

    def _job(self, job: Job) -> dict[str, Settled]:
        """Makes the workers of a job, and returns the facts about each."""
        self.timeout_seconds = job.timeout_seconds
        slots = SlotChannels()
        if job.fdg.server is None:
            self.channels = SocketChannels(
                job.me,
                self._endpoint,
                job.addresses,
                job.routes,
                job.timeout_seconds + PATIENCE_SECONDS,
                job.incarnation,
                expendable=job.expendable,
                moves=self._moves,
                large_bytes=job.large_bytes,
            )
        channels: Channels = self.channels or slots
        workers = [self._worker(job, part_job, channels) for part_job in job.part_jobs]
        self.recorder = Recorder() if job.is_recorded else None
        driver = ThreadDriver(workers, job.script, self.recorder)
        if self.channels is not None and job.me in job.expendable:
            self.recovery_points = RecoveryPoints(job, driver, self.channels, self._answer)
        is_asynchronous = job.fdg.server is not None
        self.driver = AsyncDriver(job.fdg, driver, slots) if is_asynchronous else driver
        return {
            worker.name: Settled(
                computed=worker.computed,
                devices=tuple(worker.devices),
                processor=worker.processor,
            )
            for worker in workers
        }

    def _worker(self, job: Job, part_job: FragmentJob, channels: Channels) -> Worker:
        fragment = part_job.part.fragment
        available = jax.devices(fragment.device)
        devices = available if self._is_member else [available[k] for k in part_job.devices]
        layout: Layout = (
            DeviceGroup(mesh=Mesh(np.array(devices), (REPLICA_AXIS,)))
            if fragment.group
            else OneDevice(device=devices[0])
        )
        kinds = job.fdg.kinds[fragment.name]
        values = {v: layout.place(array, UNIFORM) for v, array in part_job.constants.items()}
        values |= {v: layout.place(a, kind_of(v, kinds)) for v, a in part_job.values.items()}
        for carry in fragment.loop.carries:
            values[carry.init] = values[carry.inside]
        return Worker(
            job.fdg,
            part_job.part,
            part_job.replicas,
            layout,
            [compile_exported(program, layout) for program in part_job.programs],
            values,
            channels,
            self.pools.get(fragment.name),
        )

    def _preload(self, content: tuple[str, int, int, list[Any]]) -> None:
        message, sender, receiver, payload = content
        assert self.channels is not None
        self.channels.open(message, sender, receiver).put(payload)

    def _run(
        self, content: tuple[int, int, dict[str, list[Any]] | None]
    ) -> tuple[dict[str, Any], dict[str, Any], Sent]:
        assert self.driver is not None
        start, count, answers = content
        if self.recovery_points is not None:
            self.recovery_points.run(start, count)
            return {}, {}, self._sent()
        made = self.driver.run(start, count, answers)
        submission = {name: arrays_of(payload) for name, payload in made.submission.items()}
        return dict(made.metrics), submission, self._sent()

    def _state(self, _content: None) -> tuple[dict[str, Any], Sent]:
        assert self.driver is not None
        state = {
            name: {value: on_host(array) for value, array in worker.state().items()}
            for name, worker in self.driver.workers.items()
        }
        return state, self._sent()

    def _events(self, _content: None) -> list[TimedEvent]:
        """The events so far, of a job that is recorded."""
        return [] if self.recorder is None else self.recorder.events

    def _sent(self) -> Sent:
        """The traffic of this process so far."""
        assert self.driver is not None
        channels = [self.channels.sent] if self.channels is not None else []
        return together([*channels, self.driver.sent])


def _told(error: BaseException) -> dict[str, str]:
    """An error as data: its kind, its message and, if that tells more, the traceback."""
    made = judged(error, is_running=True)
    story = story_of(made) if has_story(made) else ""
    kind = next(cls for cls in type(made).__mro__ if hasattr(errors, cls.__name__))
    return {"kind": kind.__name__, "words": str(made), "story": story}


def serve(
    control: ControlChannel,
    endpoint: Endpoint,
    address: Address,
    network: Network,
    is_orphan: Callable[[], bool],
) -> bool:
    """Listens until the coordinator says "end"; False if the coordinator is gone before that."""
    if os.environ.get("JAX_CPU_ENABLE_ASYNC_DISPATCH") == "False":
        compute_in_calling_thread()  # JAX itself does not read this variable
    worker = WorkerProcess(endpoint, network)
    try:
        control.say("ready", (versions(), address))
        while not is_orphan():
            if not _listen(control, worker, until=time.monotonic() + BEAT_SECONDS):
                worker.end(grace_seconds=2.0)
                control.close()
                return True
            control.beat()
            stuck = worker.stuck()
            if stuck is not None:
                control.say("failed", stuck)
    except zmq.Again:
        pass  # nobody listens any more
    except Exception as error:
        with contextlib.suppress(zmq.Again):
            control.say("failed", _told(error))
        raise
    return False


def _listen(control: ControlChannel, worker: WorkerProcess, until: float) -> bool:
    """Carries out what the coordinator says, for a while; False once it says "end"."""
    while time.monotonic() < until:
        heard = control.hear(POLL_MILLISECONDS, worker.bell)
        if heard is not None:
            word, content = heard
            if word == "end":
                return False
            if word == "stop":
                worker.stop()
            elif word == "move":
                worker.move(*content)
            elif word == "forget":
                worker.forget(content)
            else:
                worker.request(word, content)
        for answer in worker.answers():
            control.say(*answer)
    return True


def main(coordinator: str, directory: str, label: str, parent: str) -> None:
    """Runs a worker process on its parent's machine, which ends with its parent."""
    for number in (signal.SIGINT, signal.SIGTERM):  # as schedulers send to all processes at once
        signal.signal(number, signal.SIG_IGN)  # the coordinator ends a run in good order
    control = ControlChannel(zmq.Context(), CODEC)
    control.connect(coordinator)
    endpoint, address = open_endpoint(Path(directory), label)
    network = Network(interface="127.0.0.1")
    if not serve(
        control, endpoint, address, network, is_orphan=lambda: os.getppid() != int(parent)
    ):
        # The coordinator was killed: nobody else clears up.
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)
    os._exit(0)  # whatever environments have left running


if __name__ == "__main__":
    main(*sys.argv[1:])
