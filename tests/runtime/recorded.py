"""Real runs whose drivers note their events, in threads and in processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fragflow.graph.ir import FDG
from fragflow.policies.policy import Policy
from fragflow.remote.protocol.process_client import RemoteProcess
from fragflow.run import Experiment, RuntimeName, run
from fragflow.runtime.drivers.assign_workers import thread_codes
from fragflow.runtime.drivers.driver import ThreadDriver
from fragflow.runtime.drivers.recorder import Recorder, TimedEvent, in_order_of_time
from fragflow.runtime.planning.plan import Plan, make_plan
from fragflow.runtime.planning.simulate import Event, ThreadCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The events of one run, and the threads that made them."""

    fdg: FDG
    plan: Plan
    threads: tuple[ThreadCode, ...]
    iterations: int
    by_thread: Sequence[Sequence[TimedEvent]]

    @property
    def events(self) -> list[Event]:
        return in_order_of_time(timed for events in self.by_thread for timed in events)


def recorded(
    experiment: Experiment, policy: Policy, runtime: RuntimeName = "local", **numbers: Any
) -> Recorded:
    """Runs to the end, and returns what all drivers have noted."""
    with pytest.MonkeyPatch.context() as patch:
        found = _in_threads(patch) if runtime == "local" else _in_processes(patch)
        outcome = run(experiment, policy, runtime=runtime, **numbers)
    fdg = outcome.start.fdg
    assert fdg is not None
    plan = make_plan(fdg)
    return Recorded(
        fdg=fdg,
        plan=plan,
        threads=thread_codes(fdg, plan, divide_groups=runtime != "local"),
        iterations=len(outcome.rows),
        by_thread=found,
    )


def _in_threads(patch: pytest.MonkeyPatch) -> list[list[TimedEvent]]:
    found: list[list[TimedEvent]] = []
    made = ThreadDriver.__init__

    def recording(self: ThreadDriver, workers: Any, script: Any) -> None:
        recorder = Recorder()
        found.append(recorder.events)
        made(self, workers, script, recorder)

    patch.setattr(ThreadDriver, "__init__", recording)
    return found


def _in_processes(patch: pytest.MonkeyPatch) -> list[list[TimedEvent]]:
    found: list[list[TimedEvent]] = []
    begin, end = RemoteProcess.begin, RemoteProcess.end

    def recording(self: RemoteProcess, word: str, content: Any = None) -> None:
        begin(self, word, replace(content, is_recorded=True) if word == "job" else content)

    def asked_before(self: RemoteProcess) -> None:
        found.append(self.call("events"))
        end(self)

    patch.setattr(RemoteProcess, "begin", recording)
    patch.setattr(RemoteProcess, "end", asked_before)
    return found
