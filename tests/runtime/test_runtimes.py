"""Runtimes decide who works when, whoever the drivers are: here they answer from a script."""

import ast
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fragflow
from fragflow.errors import RunError
from fragflow.planned_run import Experiment, Graph, plan_run
from fragflow.policies import Deployment, named_policy, synchronisation
from fragflow.runtime.lagged import LaggedRuntime
from fragflow.runtime.lockstep import LockstepRuntime
from fragflow.runtime.protocols import Driver, Runtime, WorkerSet
from graph.toy import Drift, Toy
from runtime.scripted import ScriptedWorkers

SOURCE = Path(fragflow.__file__).parent


def planned(sync: str = "lockstep") -> Graph:
    experiment = Experiment(
        algorithm=Toy(), environment=Drift(), num_envs=8, total_steps=8 * 4 * 20
    )
    policy = replace(named_policy("single-learner-coarse"), synchronisation=synchronisation(sync))
    return plan_run(experiment, policy, Deployment(workers=2)).cut_graph


@contextmanager
def closing(runtime: Runtime) -> Iterator[None]:
    try:
        yield
    finally:
        runtime.close()


def lockstep(graph: Graph, workers: ScriptedWorkers) -> LockstepRuntime:
    checked: WorkerSet = workers  # the type checker compares them, and a driver below
    some: Driver = workers.drivers[0]
    assert some in checked.drivers
    return LockstepRuntime(graph.fdg, workers, stall_timeout_seconds=5.0)


def test_in_lockstep_every_driver_makes_the_whole_chunk() -> None:
    graph = planned()
    workers = ScriptedWorkers(graph)
    runtime = lockstep(graph, workers)
    with closing(runtime):
        runtime.run(0, 3)
        runtime.run(3, 2)
        assert runtime.settle(5) == []
    assert [driver.calls for driver in workers.drivers] == [[(0, 3), (3, 2)]] * 3
    assert workers.is_closed
    assert workers.stopped.is_set()


def test_rows_of_replicas_are_joined_in_their_order() -> None:
    graph = planned()
    runtime = lockstep(graph, ScriptedWorkers(graph))
    with closing(runtime):
        rows = runtime.run(4, 2)
        state = runtime.state()
    (statistic,) = [s for s in rows[0].episodes if s.field == "return_sum"]
    made = [row.episodes[statistic].ravel().tolist() for row in rows]
    assert made == [[400] * 4 + [401] * 4, [500] * 4 + [501] * 4]
    labels = graph.fdg.program.labels
    obs = next(array for name, array in state.items() if labels[name] == "obs")
    assert obs[:, 0].tolist() == [0] * 4 + [1] * 4
    assert list(state) == [carry.inside for carry in graph.fdg.program.loop.carries]


def test_the_first_error_is_raised_and_ends_those_who_wait() -> None:
    graph = planned()

    def script(name: str, index: int) -> None:
        if name == "learner[0]" and index == 1:
            raise ValueError("no gradient today")
        if index == 1:
            workers.wait_until_stopped()

    workers = ScriptedWorkers(graph, script)
    runtime = lockstep(graph, workers)
    with closing(runtime), pytest.raises(RunError, match=r"^learner\[0\]: no gradient today$"):
        runtime.run(0, 2)


def test_environments_that_do_not_answer_end_the_run() -> None:
    graph = planned()
    workers = ScriptedWorkers(graph, lambda *_: workers.wait_until_stopped())
    workers.drivers[1].fault = RunError("environments 4 to 7 have not answered")
    runtime = lockstep(graph, workers)
    with closing(runtime), pytest.raises(RunError, match="environments 4 to 7"):
        runtime.run(0, 1)


@pytest.mark.parametrize("lag", [1, 3])
def test_late_messages_begin_with_as_many_first_values(lag: int) -> None:
    graph = planned(f"lag={lag}")
    (late,) = graph.fdg.delays
    workers = ScriptedWorkers(graph)
    runtime = LaggedRuntime(graph.fdg, workers, total_iterations=20)
    runtime.close()
    assert [key for *key, _ in workers.preloaded] == [[late, 0, 0], [late, 0, 1]] * lag
    for _, _, receiver, payload in workers.preloaded:
        arrays = [np.asarray(array) for array in payload if array is not None]
        assert arrays
        assert all(np.unique(array).tolist() == [receiver] for array in arrays)


def test_fragments_run_ahead_by_one_chunk_at_most() -> None:
    graph = planned("lag=1")
    workers = ScriptedWorkers(graph)
    runtime = LaggedRuntime(graph.fdg, workers, total_iterations=20)
    with closing(runtime):
        assert len(runtime.run(0, 2)) == 2
        deadline = threading.Event()
        while any(len(driver.calls) < 4 for driver in workers.drivers):
            assert not deadline.wait(0.01)
        assert [len(driver.calls) for driver in workers.drivers] == [4] * 3
        rest = runtime.settle(2)
    assert [row.metrics["lag"] for row in rest] == [1, 1]
    assert all(count == 1 for driver in workers.drivers for _, count in driver.calls)


def test_a_report_adds_up_the_drivers() -> None:
    graph = planned()
    workers = ScriptedWorkers(graph)
    workers.drivers[0].replacements, workers.drivers[1].replacements = 1, 2
    workers.drivers[1].restarts = 2
    runtime = lockstep(graph, workers)
    with closing(runtime):
        report = runtime.report()
    assert (report.replacements, report.restarts, report.sent.messages) == (3, 2, 5)
    assert report.devices == {"environment+actor": ["cpu:0", "cpu:0"], "learner": ["cpu:0"]}


def test_no_class_inherits_from_another_concrete_class() -> None:
    """Apart from errors, which users catch by kind, and records that are tuples."""
    bases_of: dict[str, list[str]] = {}
    files = [p for room in ("runtime", "remote") for p in (SOURCE / room).rglob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases_of[node.name] = [ast.unparse(base) for base in node.bases]
    may = ("Protocol", "ABC", "NamedTuple", "Exception", "RunError", "Generic[")
    abstract = {name for name, bases in bases_of.items() if {"ABC", "Protocol"} & set(bases)}
    wrong = {
        name: bases
        for name, bases in bases_of.items()
        if not all(base.startswith(may) or base in abstract for base in bases)
    }
    assert len(bases_of) > 60
    assert wrong == {}


def test_the_seams_are_typed() -> None:
    """Nothing between runtimes, drivers and channels is looked up by name, or of any type."""
    seams = [f"runtime/{name}.py" for name in ("protocols", "lockstep", "lagged", "gather")]
    seams += ["runtime/failure.py", "runtime/asynchrony/runtime.py", "runtime/run_chunks.py"]
    seams += ["remote/coordinator/process_workers.py", "runtime/drivers/thread_workers.py"]
    for seam in seams:
        text = (SOURCE / seam).read_text()
        assert "getattr" not in text, seam
        assert "Callable[..., Any]" not in text, seam


def test_every_part_of_the_protocols_is_used() -> None:
    """A member that no runtime asks for is one that implementations need not have."""
    texts = [p.read_text() for p in SOURCE.rglob("*.py") if p.name != "protocols.py"]
    for protocol in (Driver, WorkerSet, Runtime):
        members = [n for n, _ in inspect.getmembers(protocol) if not n.startswith("_")]
        unused: list[Any] = [n for n in members if not any(f".{n}" in text for text in texts)]
        assert unused == [], protocol
