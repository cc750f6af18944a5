"""Workers in processes: the results of threads, and faults with a name; nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragflow as ff
from fragflow.algorithms.a3c import A3C
from fragflow.algorithms.impala import IMPALA
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import ConfigError, EnvironmentFault, RunError
from fragflow.policies import named_policy
from fragflow.remote.coordinator import replacement
from fragflow.remote.protocol import environment_recipes, process_client, versions
from fragflow.run import Experiment, Silent, run
from graph.toy import Toy
from remote.plain_drift import PlainDrift
from remote.signals import Signalling, children
from remote.training import COARSE, assert_same, in_threads, train
from runtime.test_host import HostDrift

DISPATCH = """
import zmq
from fragflow._jax_process import setting
from fragflow.remote.worker.main import serve

class Deaf:
    def say(self, *_):
        raise zmq.Again

serve(Deaf(), None, None, None, is_orphan=bool)
print(setting("jax_cpu_enable_async_dispatch"))
"""


@pytest.mark.parametrize("value", ["True", "False"])
def test_computes_in_the_calling_thread_where_the_coordinator_does(value: str) -> None:
    """JAX reads other settings from the environment, but not this one."""
    variables = {**os.environ, "JAX_CPU_ENABLE_ASYNC_DISPATCH": value}
    words = [sys.executable, "-c", DISPATCH]
    found = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == value, found.stderr


@pytest.mark.parametrize(
    ("policy", "workers"),
    [
        (COARSE, 2),
        ("single-learner-fine", 2),
        ("gpu-only", 1),
        pytest.param("multi-learner", 2, marks=pytest.mark.slow),  # often in test_groups.py
        pytest.param("environments", 2, marks=pytest.mark.slow),
        pytest.param("central", 2, marks=pytest.mark.slow),
        pytest.param(COARSE, 4, marks=pytest.mark.slow),
        pytest.param("gpu-only", 2, marks=pytest.mark.slow),
        pytest.param("split-device", 2, marks=pytest.mark.slow),
    ],
)
def test_bits_are_those_of_threads(policy: str, workers: int) -> None:
    """An algorithm that only this process knows."""

    @dataclass(frozen=True)
    class RuntimeOp(Toy):
        length: int = 5

    outcomes = [
        train(RuntimeOp(), policy, workers=workers, runtime=runtime)
        for runtime in ("local", "processes")
    ]
    assert_same(*outcomes)
    here, there = ({f: len(d) for f, d in o.start.devices.items()} for o in outcomes)
    assert here == there


def test_large_messages_go_through_shared_memory() -> None:
    threads, processes = (train(Toy(), runtime=r, large_bytes=64) for r in ("local", "processes"))
    assert_same(threads, processes)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_environments_on_the_host(workers: int) -> None:
    algorithm = PPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,))
    threads, processes = (
        train(algorithm, environment=PlainDrift(), workers=workers, runtime=r)
        for r in ("local", "processes")
    )
    assert_same(threads, processes)
    assert sum(r.episodes for r in processes.rows) > 0


@pytest.mark.slow
def test_envpool_in_turns() -> None:
    pytest.importorskip("envpool", reason="EnvPool is an extra")
    environment = ff.wrap(make_environment("envpool:CartPole-v1", threads=1), frame_stack=2)
    algorithm = PPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,))
    policy = replace(named_policy(COARSE), first=2)
    experiment = Experiment(
        algorithm=algorithm, environment=environment, num_envs=8, total_steps=3 * 64, seed=1
    )
    threads, processes = (
        run(experiment, policy, workers=2, runtime=r) for r in ("local", "processes")
    )
    assert_same(threads, processes)


def test_lag() -> None:
    algorithm = IMPALA(rollout_length=4, hidden=(8,))
    threads, processes = (
        train(algorithm, sync="lag=1", runtime=r, iterations=5) for r in ("local", "processes")
    )
    assert_same(threads, processes)


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        (A3C(rollout_length=4, hidden=(8,)), "central"),
        (IMPALA(rollout_length=4, hidden=(8,)), COARSE),
    ],
    ids=["a3c", "impala"],
)
def test_asynchronous_workers(algorithm: Any, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    call = process_client.RemoteProcess.call

    def watched(self: Any, word: str, content: Any = None, on_point: Any = None) -> Any:
        found = call(self, word, content, on_point)
        if word == "run":
            payloads = [*(content[2] or {}).values(), *found[1].values()]
            sent.extend(sum(a.nbytes for a in p if a is not None) for p in payloads)
        return found

    monkeypatch.setattr(process_client.RemoteProcess, "call", watched)
    outcome = train(algorithm, policy, sync="async=4", iterations=8)
    assert (outcome.messages, outcome.bytes_moved) == (len(sent), sum(sent))
    assert len(outcome.rows) == 8
    assert max(row.metrics["lag_max"] for row in outcome.rows) <= 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))


@pytest.mark.parametrize(
    "policy", [COARSE, pytest.param("single-learner-fine", marks=pytest.mark.slow)]
)
def test_lost_rollout_workers_are_replaced_and_change_no_bit(policy: str) -> None:
    iterations = 600
    undisturbed = in_threads(Toy(), policy, iterations=iterations)
    observer = Signalling("_1.", signal.SIGKILL, at=(10, 60))
    disturbed = train(Toy(), policy, iterations=iterations, observer=observer)
    assert_same(undisturbed, disturbed)
    assert disturbed.replacements == 2
    assert disturbed.equality == disturbed.start.equality


@pytest.mark.parametrize("lag", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.slow
def test_workers_that_run_ahead_are_replaced_too(lag: int) -> None:
    """They go back further: more of what they have sent may not have been taken."""
    algorithm = IMPALA(rollout_length=4, hidden=(8,))
    options: dict[str, Any] = {"sync": f"lag={lag}", "iterations": 400}
    undisturbed = in_threads(algorithm, **options)
    observer = Signalling("_1.", signal.SIGKILL, at=(10, 60))
    disturbed = train(algorithm, **options, observer=observer)
    assert_same(undisturbed, disturbed)
    assert disturbed.replacements == 2


@pytest.mark.slow
def test_a_replacement_may_be_lost_before_it_has_done_anything() -> None:
    """It is replaced from where it was to begin, not from the very start."""
    observer = Signalling("_1.0.", signal.SIGKILL, at=(60,), then="_1.1.")
    disturbed = train(Toy(), iterations=600, observer=observer)
    assert_same(in_threads(Toy(), iterations=600), disturbed)
    assert disturbed.replacements == 2


@pytest.mark.slow
def test_a_worker_lost_when_others_are_done_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has marked its last iteration; its replacement begins earlier, and is sent all again."""
    call = process_client.RemoteProcess.call
    killed: list[str] = []

    def die_first(self: Any, word: str, content: Any = None, on_point: Any = None) -> Any:
        if word == "run" and "_1" in self.name and not killed:
            assert on_point is not None

            def mark_and_die(point: Any) -> None:
                on_point(point)
                if point.iteration == content[0] + content[1] and not killed:
                    killed.append(self.name)
                    (process,) = children(f"{self.name}.0.")
                    time.sleep(1.0)  # the others are done by now
                    os.kill(process, signal.SIGKILL)
                    raise process_client.WorkerLost("it is gone")

            return call(self, word, content, mark_and_die)
        return call(self, word, content, on_point)

    undisturbed = in_threads(Toy(), iterations=40)
    monkeypatch.setattr(process_client.RemoteProcess, "call", die_first)
    disturbed = train(Toy(), iterations=40, stall_timeout_seconds=20.0)
    assert killed
    assert_same(undisturbed, disturbed)


def test_a_stopped_worker_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "SILENCE_SECONDS", 6.0)
    undisturbed = in_threads(Toy(), iterations=600)
    disturbed = train(Toy(), iterations=600, observer=Signalling("_1.", signal.SIGSTOP))
    assert_same(undisturbed, disturbed)


def test_environments_on_the_host_begin_anew_when_their_worker_is_lost() -> None:
    algorithm = PPO(rollout_length=8, epochs=1, minibatches=2, hidden=(8,))
    observer = Signalling("_1.", signal.SIGKILL, at=(10,))
    outcome = train(algorithm, environment=PlainDrift(), iterations=400, observer=observer)
    assert (outcome.replacements, len(outcome.rows)) == (1, 400)
    assert not outcome.start.equality.startswith("different")
    assert outcome.equality == "different: lost workers were replaced, and began new episodes: 1"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))


def test_a_lost_asynchronous_worker_is_replaced() -> None:
    observer = Signalling("worker_1.", signal.SIGKILL, at=(10,))
    algorithm = A3C(rollout_length=4, hidden=(8,))
    outcome = train(algorithm, "central", sync="async=4", iterations=300, observer=observer)
    assert (outcome.replacements, len(outcome.rows)) == (1, 300)
    assert max(row.metrics["lag_max"] for row in outcome.rows) <= 4


def test_who_dies_again_is_not_replaced_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement, "MAX_REPLACEMENTS", 1)
    observer = Signalling("_0.", signal.SIGKILL, at=(5, 50))
    with pytest.raises(RunError, match="killed by signal 9; it was replaced 1 times before"):
        train(Toy(), iterations=100_000, observer=observer)


def test_a_lost_learner_ends_the_run_with_its_name() -> None:
    with pytest.raises(RunError, match="worker process learner was killed by signal 9") as error:
        train(Toy(), iterations=100_000, observer=Signalling("/learner", signal.SIGKILL))
    assert error.value.exit_code == 3


def test_a_stopped_learner_is_named_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "SILENCE_SECONDS", 6.0)
    with pytest.raises(RunError, match="learner has given no sign of life for 6 seconds"):
        train(Toy(), iterations=100_000, observer=Signalling("/learner", signal.SIGSTOP))


def test_an_environment_that_fails_is_named() -> None:
    with pytest.raises(EnvironmentFault, match=r"environment \d returned NaN or infinity"):
        train(Toy(), environment=PlainDrift(breaks_at=6), iterations=4)


def test_an_environment_that_ends_its_process() -> None:
    with pytest.raises(RunError, match=r"worker process \w+ ended with exit code 7"):
        train(Toy(), environment=PlainDrift(exits_at=6), iterations=4)


def test_an_environment_that_hangs() -> None:
    with pytest.raises(EnvironmentFault, match="have not answered for 2 seconds"):
        train(Toy(), environment=PlainDrift(hangs_at=6), iterations=4, stall_timeout_seconds=2.0)


def test_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"worker process \w+ ended with exit code 1"):
        train(Toy())


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda package: "0.0.1")
    with pytest.raises(RunError, match=r"has jax .* instead of 0\.0\.1"):
        train(Toy())


def test_an_environment_with_other_code_is_refused() -> None:
    recipe = environment_recipes.recipe_of(PlainDrift(exits_at=3), "environment")
    assert environment_recipes.make(recipe) == PlainDrift(exits_at=3)
    with pytest.raises(RunError, match=r"module remote.plain_drift, .* has other code here"):
        environment_recipes.make(replace(recipe, code="0" * 64))


def test_an_environment_that_cannot_travel_is_refused() -> None:
    with pytest.raises(ConfigError, match="environment host drift cannot be made in another"):
        train(Toy(), environment=HostDrift(disturb=lambda step, answer: answer))


def test_nothing_is_left_when_an_observer_fails() -> None:
    class Failing(Silent):
        def started(self, start: Any) -> None:
            raise OSError("no space left on device")

    with pytest.raises(RunError, match="no space left"):
        train(Toy(), observer=Failing())


def test_nothing_is_left_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import fragflow as ff\n"
        "ff.train('ppo', 'CartPole-v1', policy='single-learner-coarse', workers=2, num_envs=8,\n"
        "         runtime='processes', total_steps=2**30, eval_episodes=0, quiet=True,\n"
        "         hyperparameters={'rollout_length': 8, 'epochs': 1, 'hidden': (8,)})\n"
    )
    before = set(Path("/dev/shm").glob("fragflow-*"))
    run_ = subprocess.Popen([sys.executable, str(script)])
    directory = None
    deadline = time.monotonic() + 90
    while directory is None and time.monotonic() < deadline:
        new = set(Path("/dev/shm").glob(f"fragflow-{run_.pid}-*")) - before
        directory = next((d for d in new if any(d.glob("*.log"))), None)
        time.sleep(0.1)
    assert directory is not None, "the run did not start"
    time.sleep(2.0)
    run_.kill()
    run_.wait()
    deadline = time.monotonic() + 30
    while (directory.exists() or _processes_of(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not directory.exists()
    assert not _processes_of(directory)


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        pytest.param(signal.SIGINT, 130, id="int", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 75, id="term"),
    ],
)
def test_a_signal_to_all_is_the_coordinator_s(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    """As from Ctrl-C and `timeout`, while workers start and cannot ignore it yet."""
    program = "import sys; from fragflow.tools.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["-c", program, "train", "ppo", "--env", "CartPole-v1", "--policy", COARSE]
    words += ["--workers", "2", "--runtime", "processes", "--total-steps", "100000000"]
    words += ["--eval-episodes", "0", "--run-dir", str(tmp_path / "run"), "--quiet", "--no-probe"]
    run_ = subprocess.Popen([sys.executable, *words], start_new_session=True)
    logs: list[Path] = []
    deadline = time.monotonic() + 90
    while len(logs) < 3 and run_.poll() is None and time.monotonic() < deadline:
        logs = list(Path("/dev/shm").glob(f"fragflow-{run_.pid}-*/*.log"))
        time.sleep(0.01)
    os.killpg(run_.pid, number)
    assert run_.wait(60) == exit_code
    assert (tmp_path / "run" / "summary.json").exists()


def _processes_of(directory: Path) -> list[bytes]:
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if _readable(p)]
    return [command for command in commands if str(directory).encode() in command]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
