"""Workers in other processes, as the runtimes see them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fragflow.error_owner import judged
from fragflow.errors import FragflowError, RunError
from fragflow.graph.ir import Value
from fragflow.remote.protocol.jobs import FragmentJob, Job, RecoveryPoint, Settled
from fragflow.remote.protocol.process_client import RemoteProcess, WorkerLost
from fragflow.remote.transport.frames import arrays_of
from fragflow.remote.transport.mailbox import POLL_MILLISECONDS
from fragflow.runtime.protocols import Array, Made, Payload
from fragflow.runtime.traffic import Sent, together

FIRST_CAUSE_SECONDS = 3.0
"""time for the loss of a group's member to show, after it has made another one fail"""

States = Mapping[str, Mapping[Value, np.ndarray]]
"""state leaves, by fragment"""


class RemoteWorker:
    """A worker in another process."""

    def __init__(self, fragment_job: FragmentJob, settled: Settled, states: Callable[[], States]):
        self.part = fragment_job.part
        self.name = fragment_job.part.fragment.name
        self.replicas = fragment_job.replicas
        self.devices = settled.devices
        self.processor = settled.processor
        self._states = states
        self._first = fragment_job.values

    def state(self) -> Mapping[Value, np.ndarray]:
        return self._states()[self.name]

    def piece(self, value: Value, replica: int) -> Array:
        """A replica's value before the first iteration."""
        if len(self.replicas) > 1:
            raise RunError(f"{self.name} is a group, to which no late message can go")
        assert replica in self.replicas
        return self._first[value]


def remote_workers(
    job: Job, settled: Mapping[str, Settled], states: Callable[[], States]
) -> dict[str, RemoteWorker]:
    """The workers of a process, by fragment; it has `settled` facts about each."""
    names = [fragment_job.part.fragment.name for fragment_job in job.part_jobs]
    return {
        name: RemoteWorker(fragment_job, settled[name], states)
        for name, fragment_job in zip(names, job.part_jobs, strict=True)
    }


class RemoteCalls:
    """Requests to one process after the other, each in the place of a lost one."""

    def __init__(self, process: RemoteProcess):
        self.process = process
        self._lost = Sent()
        """by processes that were replaced, as far as they have reported it"""
        self._told = Sent()
        """by this process, as it reported last"""
        self._begun = 0
        self._state: tuple[int, States] | None = None
        """with the number of calls that had begun when it was asked for"""

    @property
    def sent(self) -> Sent:
        return together([self._lost, self._told])

    def told(self, sent: Sent) -> None:
        """Notes the traffic that the process reports."""
        self._told = sent

    def lose(self) -> None:
        """Notes that the process is lost: what it has sent still counts."""
        self._lost, self._told = self.sent, Sent()

    def run(
        self,
        start: int,
        count: int,
        answers: Mapping[str, Payload] | None = None,
        on_point: Callable[[RecoveryPoint], None] | None = None,
    ) -> Made:
        self._begun += 1
        arrays = None if answers is None else {k: arrays_of(v) for k, v in answers.items()}
        content = (start, count, arrays)
        metrics, submission, self._told = self.process.call("run", content, on_point=on_point)
        return Made(metrics=metrics, submission=submission)

    def state(self) -> States:
        """The state by fragment, asked for once per iteration; the next one may begin meanwhile."""
        begun, known = self._begun, self._state
        if known is None or known[0] != begun:
            state, self._told = self.process.call("state")
            known = self._state = begun, state
        return known[1]

    def error(self, cause: BaseException) -> FragflowError:
        where = f"worker process {self.process.name} failed"
        return judged(cause, is_running=True, where=where)


class RemoteDriver:
    """Drives the workers of a process whose loss ends the run."""

    replacements = restarts = 0

    def __init__(
        self,
        process: RemoteProcess,
        job: Job,
        settled: Mapping[str, Settled],
        partners: Sequence[RemoteProcess] = (),
    ):
        """`partners` are the other members of its group, which all fail when one is lost."""
        self._calls = RemoteCalls(process)
        self._partners = partners
        self.workers = remote_workers(job, settled, self._calls.state)

    @property
    def sent(self) -> Sent:
        return self._calls.sent

    def run(self, start: int, count: int, answers: Mapping[str, Payload] | None = None) -> Made:
        """Runs iterations of workers that exchange messages with other processes by themselves."""
        try:
            return self._calls.run(start, count, answers)
        except FragflowError as error:
            self._find_lost_partner(error)
            raise

    def _find_lost_partner(self, error: FragflowError) -> None:
        """Raises the first cause, if that is the loss of another member of the group."""
        process = self._calls.process
        deadline = time.monotonic() + FIRST_CAUSE_SECONDS
        while self._partners and time.monotonic() < deadline and not process.is_closing:
            for partner in self._partners:
                if partner.loss is not None:
                    raise WorkerLost(partner.loss) from error
            time.sleep(POLL_MILLISECONDS / 1000)

    def stuck(self, seconds: float) -> None:
        """Returns no error: the process itself looks after its environments."""
        del seconds

    def error(self, cause: BaseException) -> FragflowError:
        return self._calls.error(cause)


def first_state(job: Job) -> Mapping[str, Mapping[Value, Any]]:
    """The state by fragment that a process begins with."""
    return {part_job.part.fragment.name: part_job.values for part_job in job.part_jobs}
