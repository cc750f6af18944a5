"""What it brings not to wait: single-learner-coarse in lockstep, one iteration late, asynchronous.

Two cases, PPO with one worker and one learner:

- balanced: Acrobot-v1, with a network and as many passes over the data as make learning cost about
  as much as acting: as much CPU time, if both are processes with one thread for computing
  (NPROC=1).
- cheetah: EnvPool's HalfCheetah-v4, whose C++ threads keep both cores busy while it acts; also with
  the first half of the environments that has answered acted on at a time, instead of all together.

Each sample trains anew; compiling is not counted. A core counts as busy by the CPU time of the
processes.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import engines
import measure
from measure import print_table

from fragflow.algorithms.ppo import PPO
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.environments import make_environment
from fragflow.policies import named_policy, synchronisation
from fragflow.run import Experiment, Outcome, Row, Silent, Start, run
from fragflow.runtime.programs.devices import compute_in_calling_thread

KINDS = ("lockstep", "lag=1", "async")
FIRST = 8
HIDDEN = ((32, 32), (48, 48), (64, 64))
PASSES = (1, 2)
"""of which the balanced case takes a pair"""
ENVS = 128


@dataclass(frozen=True)
class Case:
    """What is trained."""

    algorithm: PPO
    environment: AnyEnvironment
    num_envs: int
    runtime: Any = "local"

    @property
    def steps_per_iteration(self) -> int:
        return self.algorithm.rollout_length * self.num_envs


@dataclass(frozen=True)
class Sample:
    """One run."""

    steps_per_second: float
    cores: float
    """kept busy by the run's processes"""
    lag: float
    load: float


class CpuClock(Silent):
    """Watches the CPU time of this process and its children while they train."""

    def started(self, start: Start) -> None:
        del start
        self._began, self._before = time.perf_counter(), cpu_seconds()

    def rows(self, rows: Sequence[Row]) -> None:
        del rows
        self._ended, self._after = time.perf_counter(), cpu_seconds()

    @property
    def cores(self) -> dict[int, float]:
        """By process, how many it kept busy."""
        seconds = self._ended - self._began
        return {p: (self._after[p] - t) / seconds for p, t in self._before.items()}


def cpu_seconds() -> dict[int, float]:
    """By process: this one, and its children."""
    me = os.getpid()
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        process = int(path.parent.name)
        if process == me or int(words[1]) == me:
            found[process] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--case", choices=["balanced", "cheetah"], nargs="+", default=["balanced", "cheetah"])
    add("--repeats", type=int, default=5, help="samples of each kind")
    add("--seconds", type=float, default=6.0, help="about how long a sample takes")
    add("--json", type=Path, help="where to write the results as data")
    add("--worker", help=argparse.SUPPRESS)
    add("--hidden", type=int, nargs="+", default=HIDDEN[0], help=argparse.SUPPRESS)
    add("--epochs", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        compute_in_calling_thread()
        measure.write(options.json, WORK[options.worker](options))
        return
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    for case in options.case:
        if case == "balanced":
            pair = in_a_process("calibrate", options, NPROC="1")
            options.hidden, options.epochs = pair["hidden"], pair["epochs"]
        results[case] = in_a_process(case, options)
    measure.write(options.json, results)


def in_a_process(what: str, options: argparse.Namespace, **variables: str) -> dict[str, Any]:
    """Some work in a process of its own, with variables that JAX reads when it starts."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        words = ["--worker", what, "--json", output]
        words += ["--repeats", options.repeats, "--seconds", options.seconds]
        words += ["--hidden", *options.hidden, "--epochs", options.epochs]
        subprocess.run(
            [sys.executable, __file__, *map(str, words)],
            env={**os.environ, **variables},
            check=True,
        )
        return json.loads(output.read_text())


def acrobot(hidden: Sequence[int], epochs: int, runtime: Any) -> Case:
    algorithm = PPO(rollout_length=128, minibatches=4, epochs=epochs, hidden=tuple(hidden))
    return Case(algorithm, make_environment("Acrobot-v1"), ENVS, runtime)


def calibrate(options: argparse.Namespace) -> dict[str, Any]:
    """Which network, and how many passes, make learning cost as much as acting."""
    del options
    found = []
    for hidden, epochs in itertools.product(HIDDEN, PASSES):
        case = acrobot(hidden, epochs, "processes")
        _, cores = train(case, "async", 40 * case.steps_per_iteration)
        learning, acting = cores[os.getpid()], sum(cores.values()) - cores[os.getpid()]
        found.append((max(learning / acting, acting / learning), hidden, epochs))
        print(
            f"Acrobot-v1, {ENVS} environments, network {hidden}, {epochs} passes: "
            f"acting keeps {acting:.2f} cores busy, learning {learning:.2f}",
            flush=True,
        )
    _, hidden, epochs = min(found)
    return {"hidden": hidden, "epochs": epochs}


def balanced(options: argparse.Namespace) -> dict[str, Any]:
    print(f"balanced: network {options.hidden}, {options.epochs} passes")
    return compare(acrobot(options.hidden, options.epochs, "local"), options)


def cheetah(options: argparse.Namespace) -> dict[str, Any]:
    print("cheetah: EnvPool's HalfCheetah-v4, 16 environments, 10 passes, 32 minibatches")
    algorithm = PPO(normalise_observations=True, learning_rate=3e-4, epochs=10, minibatches=32)
    kinds = (*KINDS, f"lockstep, first {FIRST}", f"async, first {FIRST}")
    return compare(Case(algorithm, make_environment("envpool:HalfCheetah-v4"), 16), options, kinds)


def compare(
    case: Case, options: argparse.Namespace, kinds: Sequence[str] = KINDS
) -> dict[str, Any]:
    per_iteration = case.steps_per_iteration
    trial, _ = train(case, "lockstep", 8 * per_iteration)
    wanted = trial.steps_per_second * options.seconds
    total = max(8, round(wanted / per_iteration)) * per_iteration
    samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            outcome, cores = train(case, kind, total)
            lag = statistics.mean(row.metrics.get("lag", 0.0) for row in outcome.rows)
            speed, load = outcome.steps_per_second, os.getloadavg()[0]
            samples[kind].append(Sample(speed, sum(cores.values()), lag, load))
    base = [s.steps_per_second for s in samples["lockstep"]]
    rows = []
    for kind, all_ in samples.items():
        speeds = [s.steps_per_second for s in all_]
        ratio = statistics.median(a / b for a, b in zip(speeds, base, strict=True))
        cores = statistics.median(s.cores for s in all_)
        rows.append(
            [
                kind,
                f"{statistics.median(speeds):,.0f}",
                f"{ratio:.2f}x",
                f"{cores:.2f} of {os.cpu_count()}",
                f"{statistics.mean(s.lag for s in all_):.2f}",
            ]
        )
    print_table(
        "PPO, single-learner-coarse", ["", "steps/s", "lockstep", "cores busy", "mean lag"], rows
    )
    return {
        "epochs": case.algorithm.epochs,
        "hidden": case.algorithm.hidden,
        "samples": {kind: [vars(s) for s in all_] for kind, all_ in samples.items()},
    }


def train(case: Case, kind: str, steps: int) -> tuple[Outcome, dict[int, float]]:
    """A run, and how many cores each process kept busy."""
    policy = named_policy("single-learner-coarse")
    sync, _, first = kind.partition(", first ")
    clock = CpuClock()
    outcome = run(
        Experiment(
            algorithm=case.algorithm,
            environment=case.environment,
            num_envs=case.num_envs,
            total_steps=steps,
        ),
        replace(
            policy,
            synchronisation=synchronisation(sync),
            first=int(first) if first else None,
        ),
        runtime=case.runtime,
        observer=clock,
    )
    return outcome, clock.cores


WORK = {"calibrate": calibrate, "balanced": balanced, "cheetah": cheetah}


if __name__ == "__main__":
    main()
