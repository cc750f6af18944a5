"""The seams of a run: `Runtime` takes the `Driver`s that a `WorkerSet` has made.

A runtime decides who works when: in step, ahead by a lag, or each at its own pace. A driver runs
the workers of one thread or process, wherever that is; a worker set starts all drivers of a run,
and ends them. Drivers' workers exchange messages through `Channels`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np

from fragflow.errors import FragflowError
from fragflow.graph.ir import Value
from fragflow.runtime.host_environments.pool import AnsweringPool
from fragflow.runtime.observer import Devices, Results
from fragflow.runtime.planning.plan import FragmentPlan
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.traffic import Sent

Array = np.ndarray | np.generic | jax.Array
Payload = Sequence[Array | None]
"""the arrays of a message; None stands for one that another sender sends"""
Metrics = dict[Value, list[np.ndarray]]
"""rows of the training loop's outputs, one per iteration"""


class Channel(Protocol):
    """One end of one route of a message: (message, sending replica, receiving replica)."""

    def put(self, payload: Payload) -> None: ...
    def get(self, what: str) -> Payload:
        """Waits for the next payload; an error names it by `what`."""
        ...


class Channels(Protocol):
    """The interface that a worker sends and receives messages through."""

    def open(self, message: str, sender: int, receiver: int) -> Channel:
        """Opens the channel of one route; before any worker runs."""
        ...


class DrivenWorker(Protocol):
    """One replica of a fragment, or a group of them, as its runtime sees it."""

    @property
    def name(self) -> str:
        """Its fragment."""
        ...

    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def part(self) -> FragmentPlan: ...
    @property
    def devices(self) -> Sequence[str]: ...
    @property
    def processor(self) -> str:
        """The model of the processor that it computes on."""
        ...

    def state(self) -> Mapping[Value, Array]:
        """The state leaves that it keeps, by their name inside the training loop."""
        ...

    def piece(self, value: Value, replica: int) -> Array:
        """One replica's part of a value that it has before the first iteration."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The results of a driver's iterations."""

    metrics: Mapping[str, Metrics]
    """by fragment"""
    submission: Mapping[str, Payload] = field(default_factory=dict[str, Payload])
    """of an asynchronous worker: its messages to the server"""


class Driver(Protocol):
    """Runs the workers of one thread or process."""

    @property
    def workers(self) -> Mapping[str, DrivenWorker]:
        """By fragment."""
        ...

    @property
    def sent(self) -> Sent:
        """The traffic that it has counted; messages through channels may be counted there."""
        ...

    @property
    def replacements(self) -> int:
        """The number of times that its process was lost and replaced."""
        ...

    @property
    def restarts(self) -> int:
        """The number of replacements that began new episodes in a run that would else repeat."""
        ...

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        """Runs iterations `start` to `start + count`.

        `answers` are the newest messages of an asynchronous run's server; None before its first.
        """
        ...

    def stuck(self, seconds: float) -> FragflowError | None:
        """An error if its environments have not answered for `seconds`."""
        ...

    def error(self, cause: BaseException) -> FragflowError:
        """Makes an error that says what failed, and where."""
        ...


class WorkerSet(Protocol):
    """All workers of a run: in threads, or in processes of this machine or a cluster."""

    @property
    def pools(self) -> Mapping[str, Sequence[AnsweringPool]]:
        """By fragment and replica, the environments on the host; open before workers start."""
        ...

    @property
    def drivers(self) -> Sequence[Driver]:
        """Empty before the start."""
        ...

    @property
    def sent(self) -> Sent:
        """The traffic between replicas, counted by its senders."""
        ...

    def start(self, assembly: Assembly) -> None:
        """Compiles all programs, and makes the drivers."""
        ...

    def preload(self, message: str, sender: int, receiver: int, payload: Payload) -> None:
        """Puts a first message on a route, before any worker runs."""
        ...

    def stop(self) -> None:
        """Wakes all workers that wait for messages: the run is over."""
        ...

    def close(self) -> None:
        """Ends all that was started, also after a start that failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The facts about a run's workers, as they are now."""

    devices: Devices = field(default_factory=dict[str, Sequence[str]])
    processors: Sequence[tuple[str, str]] = ()
    """each worker's fragment, and the model of its processor"""
    sent: Sent = field(default_factory=Sent)
    """the traffic between replicas"""
    replacements: int = 0
    """processes that were lost and replaced"""
    restarts: int = 0
    """replacements that began new episodes"""


class Runtime(Protocol):
    """Runs a graph chunk by chunk."""

    def run(self, start: int, count: int) -> list[Results]:
        """Returns the results of `count` iterations; workers may go on with the next ones."""
        ...

    def settle(self, made: int) -> list[Results]:
        """Finishes iterations that were begun; returns the results of those from `made` on."""
        ...

    def state(self) -> Mapping[Value, Array]:
        """Every state leaf, over all environments, in the order of the algorithm's state."""
        ...

    def report(self) -> WorkerReport: ...
    def close(self) -> None:
        """Ends all workers."""
        ...
