"""What it brings not to wait: single-learner-coarse in lockstep, one iteration late, asynchronous.

Two cases, PPO with one worker and one learner:

- balanced: CartPole-v1, with as many passes over the data as make learning cost about as much as
  acting. In lockstep one core waits for the other.
- cheetah: EnvPool's HalfCheetah-v4, whose C++ threads keep both cores busy while it acts; also with
  the first half of the environments that has answered acted on at a time, instead of all together.

Each sample trains anew; compiling is not counted. A core counts as busy by the process's CPU time.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import engines
import measure
from measure import print_table

from fragflow.algorithms.ppo import PPO
from fragflow.api.vector import AnyEnvironment
from fragflow.environments import make_environment
from fragflow.policies import named_policy, synchronisation
from fragflow.run import Experiment, Outcome, Silent, Start, run
from fragflow.runtime.devices import compute_in_calling_thread

KINDS = ("lockstep", "lag=1", "async")
FIRST = 8


@dataclass(frozen=True)
class Sample:
    """One run."""

    steps_per_second: float
    cores: float
    """that this process kept busy"""
    lag: float
    load: float


class CpuClock(Silent):
    """Notes the process's CPU time when training begins."""

    def started(self, start: Start) -> None:
        del start
        self.began = cpu_seconds()


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--case", choices=["balanced", "cheetah"], nargs="+", default=["balanced", "cheetah"])
    add("--repeats", type=int, default=5, help="samples of each kind")
    add("--seconds", type=float, default=6.0, help="about how long a sample takes")
    add("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    compute_in_calling_thread()
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    for case in options.case:
        results[case] = {"balanced": balanced, "cheetah": cheetah}[case](options)
    measure.write(options.json, results)


def balanced(options: argparse.Namespace) -> dict[str, Any]:
    environment = make_environment("CartPole-v1")
    algorithm = PPO(rollout_length=128, minibatches=4, epochs=1)
    once = seconds_per_iteration(algorithm, environment)
    four = seconds_per_iteration(replace(algorithm, epochs=4), environment)
    learning = (four - once) / 3
    acting = once - learning
    epochs = max(1, round(acting / learning))
    print(
        f"balanced: CartPole-v1, 64 environments: acting {1e3 * acting:.1f} ms an iteration, "
        f"learning {1e3 * learning:.1f} ms a pass: {epochs} passes"
    )
    return compare(replace(algorithm, epochs=epochs), environment, 64, options)


def cheetah(options: argparse.Namespace) -> dict[str, Any]:
    print("cheetah: EnvPool's HalfCheetah-v4, 16 environments, 10 passes, 32 minibatches")
    algorithm = PPO(normalise_observations=True, learning_rate=3e-4, epochs=10, minibatches=32)
    kinds = (*KINDS, f"lockstep, first {FIRST}", f"async, first {FIRST}")
    return compare(algorithm, make_environment("envpool:HalfCheetah-v4"), 16, options, kinds)


def compare(
    algorithm: PPO,
    environment: AnyEnvironment,
    num_envs: int,
    options: argparse.Namespace,
    kinds: Sequence[str] = KINDS,
) -> dict[str, Any]:
    per_iteration = algorithm.rollout_length * num_envs
    trial, _ = train(algorithm, environment, num_envs, "lockstep", 8 * per_iteration)
    wanted = trial.steps_per_second * options.seconds
    total = max(8, round(wanted / per_iteration)) * per_iteration
    samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            outcome, cores = train(algorithm, environment, num_envs, kind, total)
            lag = statistics.mean(row.metrics.get("lag", 0.0) for row in outcome.rows)
            samples[kind].append(Sample(outcome.steps_per_second, cores, lag, os.getloadavg()[0]))
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
        "epochs": algorithm.epochs,
        "samples": {kind: [vars(s) for s in all_] for kind, all_ in samples.items()},
    }


def seconds_per_iteration(algorithm: PPO, environment: AnyEnvironment) -> float:
    per_iteration = algorithm.rollout_length * 64
    runs = [train(algorithm, environment, 64, "lockstep", 40 * per_iteration) for _ in range(3)]
    return min(outcome.train_seconds / 40 for outcome, _ in runs)


def train(
    algorithm: PPO, environment: AnyEnvironment, num_envs: int, kind: str, steps: int
) -> tuple[Outcome, float]:
    """A run, and how many cores it kept busy."""
    policy = named_policy("single-learner-coarse")
    sync, _, first = kind.partition(", first ")
    clock = CpuClock()
    outcome = run(
        Experiment(
            algorithm=algorithm, environment=environment, num_envs=num_envs, total_steps=steps
        ),
        replace(
            policy,
            synchronisation=synchronisation(sync),
            first=int(first) if first else None,
        ),
        observer=clock,
    )
    return outcome, (cpu_seconds() - clock.began) / outcome.train_seconds


if __name__ == "__main__":
    main()
