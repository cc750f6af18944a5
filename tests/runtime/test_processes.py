"""Environments in processes: the same answers, faults with a name, nothing left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime.faulty
from fragflow.environments import make_environment
from fragflow.environments.libraries import gymnasium
from fragflow.environments.on_host.processes import ProcessBatch
from fragflow.environments.on_host.sequential import Failed
from fragflow.errors import EnvironmentFault

NAME = "runtime.faulty:Faulty-v0"
SEEDS = np.arange(6)  # environment 2 is the bad one


def batch(fault: str = "", seconds: float = 20.0) -> ProcessBatch:
    environment = make_environment("gymnasium:Faulty-v0")
    return ProcessBatch(
        NAME,
        {"fault": fault},
        range(10, 16),
        environment.observation,
        environment.action,
        processes=2,
        answer_seconds=seconds,
    )


def children() -> set[int]:
    tasks = Path(f"/proc/{os.getpid()}/task")
    return {int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()}


def play(environments: Any) -> list[tuple[np.ndarray, ...]]:
    steps = [(environments.reset(SEEDS),)]
    for k in range(12):
        steps.append(tuple(environments.step(np.arange(6) % 2 if k % 2 else np.zeros(6, int)))[:5])
    environments.close()
    return steps


def test_processes_answer_what_one_process_answers():
    environment = make_environment("gymnasium:Faulty-v0", vectorization="sync")
    before = children()
    for ours, theirs in zip(play(batch()), play(environment.open(range(6))), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    assert children() == before


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("raise", Failed, "RuntimeError: the ball is gone"),
        ("shape", Failed, r"an observation has shape \[1\], expected \[2\]"),
        ("exit", EnvironmentFault, r"process of environments 10 to 12 died \(exit code 7\)"),
        ("abort", EnvironmentFault, r"process of environments 10 to 12 died \(signal 6\)"),
        ("hang", EnvironmentFault, "environments 10 to 12 have not answered a step for 1 seconds"),
    ],
)
def test_faults(fault, error, said):
    before = children()
    environments = batch(fault, seconds=1.0 if fault == "hang" else 20.0)
    environments.reset(SEEDS)
    began = time.monotonic()
    for _ in range(2):
        environments.step(np.zeros(6, int))
    with pytest.raises(error, match=said) as caught:
        environments.step(np.zeros(6, int))
    assert time.monotonic() - began < 10.0
    if error is Failed:
        assert caught.value.environment_index == 2
    environments.close()
    assert children() == before


def test_a_fault_in_reset_is_named():
    environments = batch("reset")
    with pytest.raises(Failed, match="no ball"):
        environments.reset(SEEDS)
    environments.close()


def test_processes_end_with_the_process_that_started_them():
    code = """
import os
from runtime.test_processes import SEEDS, batch, children
environments = batch()
environments.reset(SEEDS)
print(*children(), flush=True)
os.kill(os.getpid(), 9)
"""
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    started = [int(word) for word in done.stdout.split()]
    assert len(started) == 2, done.stderr
    deadline = time.monotonic() + 10.0
    while any(Path(f"/proc/{p}").exists() for p in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [p for p in started if Path(f"/proc/{p}").exists()]


def test_slow_environments_get_processes(monkeypatch):
    monkeypatch.setattr(gymnasium, "default_processes", lambda: 2)
    environment = make_environment("gymnasium:Faulty-v0")
    quick = environment.open(range(2))
    assert isinstance(quick, gymnasium.SyncBatch)
    quick.close()

    def slow_step(self: Any, action: int) -> Any:
        time.sleep(1e-3)
        return self._obs(), 0.0, False, False, {}

    monkeypatch.setattr(runtime.faulty.Faulty, "step", slow_step)
    monkeypatch.setattr(gymnasium, "ProcessBatch", lambda *_: "processes")
    assert environment.open(range(2)) == "processes"
