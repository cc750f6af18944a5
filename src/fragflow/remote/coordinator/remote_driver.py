"""Workers in other processes, as the runtimes see them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fragflow.error_owner import judged
from fragflow.errors import FragflowError, RunError
from fragflow.graph.ir import Value
from fragflow.remote.protocol.jobs import FragmentJob, Job
from fragflow.remote.protocol.process_client import RemoteProcess, WorkerLost
from fragflow.remote.transport.frames import arrays_of
from fragflow.remote.transport.mailbox import POLL_MILLISECONDS
from fragflow.runtime.drivers.channels import Payload
from fragflow.runtime.drivers.traffic import Sent, together
from fragflow.runtime.drivers.worker import Metrics

FIRST_CAUSE_SECONDS = 3.0
"""time for the loss of a group's member to show, after it has made another one fail"""


class RemoteWorker:
    """A worker in another process."""

    pool = None
    """its process looks after the environments"""

    def __init__(self, driver: "RemoteDriver", part_job: FragmentJob):
        self.name = part_job.part.fragment.name
        self.replicas = part_job.replicas
        self.part = part_job.part
        self.devices: Sequence[str] = ()
        self.processor = ""
        """like `devices`, as reported by its process"""
        self._driver = driver
        self._first = part_job.values

    def state(self) -> Mapping[Value, np.ndarray]:
        return self._driver.state()[self.name]

    def piece(self, value: Value, replica: int) -> Any:
        """A replica's value before the first iteration."""
        if len(self.replicas) > 1:
            raise RunError(f"{self.name} is a group, to which no late message can go")
        assert replica in self.replicas
        return self._first[value]


class RemoteDriver:
    """Drives the workers of another process from here."""

    restarts = 0
    """number of times that its process was replaced by one that began new episodes"""

    def __init__(self, process: RemoteProcess, job: Job, partners: Sequence[RemoteProcess] = ()):
        """`partners` are the other members of its group, which all fail when one is lost."""
        self.process = process
        self.partners = partners
        self.workers = {
            part_job.part.fragment.name: RemoteWorker(self, part_job) for part_job in job.part_jobs
        }
        self._lost = Sent()
        """by processes that this one replaces, as far as they have reported it"""
        self._told = Sent()
        """by this process, as it reported last"""
        self._begun = 0
        self._state: tuple[int, Mapping[str, Mapping[Value, np.ndarray]]] | None = None
        """with the number of calls that had begun when it was asked for"""

    @property
    def sent(self) -> Sent:
        return together([self._lost, self._told])

    def run(self, start: int, count: int) -> Mapping[RemoteWorker, Metrics]:
        """Runs iterations of workers that exchange messages with other processes by themselves."""
        self._begun += 1
        try:
            found, self._told = self.process.call("run", (start, count))
        except FragflowError as error:
            self._find_lost_partner(error)
            raise
        return {self.workers[name]: metrics for name, metrics in found.items()}

    def _find_lost_partner(self, error: FragflowError) -> None:
        """Raises the first cause, if that is the loss of another member of the group."""
        deadline = time.monotonic() + FIRST_CAUSE_SECONDS
        while self.partners and time.monotonic() < deadline and not self.process.is_closing:
            for partner in self.partners:
                if partner.loss is not None:
                    raise WorkerLost(partner.loss) from error
            time.sleep(POLL_MILLISECONDS / 1000)

    def work(
        self, index: int, answers: Mapping[str, Payload] | None
    ) -> tuple[Mapping[str, Metrics], Mapping[str, Payload]]:
        """Makes an iteration of an asynchronous worker, which exchanges messages with us."""
        self._begun += 1
        arrays = None if answers is None else {k: arrays_of(v) for k, v in answers.items()}
        metrics, payloads, self._told = self.process.call("work", (index, arrays))
        return metrics, payloads

    def state(self) -> Mapping[str, Mapping[Value, np.ndarray]]:
        """The state by fragment, asked for once per iteration; the next one may begin meanwhile."""
        begun, known = self._begun, self._state
        if known is None or known[0] != begun:
            state, self._told = self.process.call("state")
            known = self._state = begun, state
        return known[1]

    def error(self, cause: BaseException) -> FragflowError:
        where = f"worker process {self.process.name} failed"
        return judged(cause, is_running=True, where=where)
