"""The server of an asynchronous run: a handler of one submission after the other.

Its program takes one worker's message and its own state, and returns its next state and an answer.
State that it has per environment is kept by sender.
"""

from collections.abc import Mapping

import jax

from fragflow.graph.ir import Value
from fragflow.graph.replicas.kinds import Tag
from fragflow.runtime.asynchrony.async_driver import SlotChannels
from fragflow.runtime.asynchrony.server_queue import Submission
from fragflow.runtime.asynchrony.thread_workers import worker_alone
from fragflow.runtime.drivers.codegen import generate
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.programs.layout import kind_of
from fragflow.runtime.programs.prepare_workers import Assembly
from fragflow.runtime.protocols import Metrics, Payload


class Server:
    """Handles submissions in the thread that calls it."""

    def __init__(self, assembly: Assembly):
        name = assembly.fdg.server
        assert name is not None
        self._channels = SlotChannels()
        self.worker: Worker = worker_alone(assembly, name, 0, self._channels)
        source = generate(assembly.fdg, assembly.plan, [name])
        self.driver = ThreadDriver([self.worker], source)
        self.kept_by_sender = _rows_by_sender(assembly, self.worker)
        """its values with rows of environments, for each worker"""

    def handle(self, submission: Submission) -> tuple[Metrics, Mapping[str, Payload]]:
        """Learns from one submission; returns metrics and the answer to all workers."""
        kept = self.kept_by_sender[submission.worker]
        self.worker.values.update(kept)
        self._channels.lay(submission.payloads)
        made = self.driver.run(submission.iteration, 1)
        kept.update({name: self.worker.values[name] for name in kept})
        return made.metrics[self.worker.name], self._channels.answers()


def _rows_by_sender(assembly: Assembly, server: Worker) -> list[dict[Value, jax.Array]]:
    fdg, (layout,) = assembly.fdg, assembly.layouts(server.name)
    inside = {carry.init: carry.inside for carry in server.part.fragment.loop.carries}
    names = [
        name
        for name in server.values
        if kind_of(inside.get(name, name), fdg.row_kinds).tag is Tag.VARYING
    ]
    rows = []
    for w in range(fdg.workers):
        portion = (w, fdg.workers)
        values = assembly.first_values(server.part, layout, portion, fdg.row_kinds)
        rows.append({name: values[name] for name in names})
    return rows
