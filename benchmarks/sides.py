"""Whether one checkout of fragflow, Python or JAX is slower than another: the same work, in turns.

    python benchmarks/sides.py \\
        --side before ../before ../before/.venv/bin/python \\
        --side now . .venv/bin/python

The first side is what the others are measured against. A side's further words, NAME=VALUE, are
environment variables of its own. What is timed: whole iterations of one program (`gpu-only`), of
fragments (`single-learner-coarse`), and of fragments with a message per step
(`single-learner-fine`), compiled before; and from start to end, without a cache of
compiled programs, the first command of the README, one that trains hardly at all, and `fragflow
show` for 128 workers.
"""

import argparse
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure

START = """\
import sys
try:
    from fragflow.tools.cli.main import main
except ImportError:  # before cli was a folder
    from fragflow.tools.cli import main
sys.exit(main())
"""
TRAIN = "train ppo --env CartPole-v1 --total-steps"
STEPWISE = """\
import sys
sys.path.insert(0, sys.argv[1])
import engines, measure
driver = engines.Driver(engines.Task(8).runtime("single-learner-fine"))
measure.serve({"go": lambda: driver.advance(20)}, {"versions": engines.versions()})
"""
COMMANDS = {
    "demo": ("the README's first command, from start to end", f"{TRAIN} 524288"),
    "start": ("a training of 2,048 steps, from start to end", f"{TRAIN} 2048"),
    "show": (
        "fragflow show for 128 workers",
        "show ppo --env CartPole-v1 --policy single-learner-coarse --workers 128 --num-envs 1024",
    ),
}
PARTS = ("fused", "coarse", "stepwise", *COMMANDS)
TARGET = 1.03


@dataclass(frozen=True)
class Side:
    """Who computes: sources, an interpreter with what they need, variables."""

    name: str
    checkout: Path
    python: str
    variables: dict[str, str]

    def environment(self) -> dict[str, str]:
        return self.variables | {"PYTHONPATH": str(self.checkout / "src")}

    @property
    def fused(self) -> Path:
        return self.checkout / "benchmarks" / "fused.py"

    def worker(self, *arguments: object) -> measure.Worker:
        return measure.Worker(*arguments, python=self.python, variables=self.environment())


def main() -> None:
    options = _options()
    sides = [_side(words) for words in options.side]
    results: dict[str, Any] = {"machine": measure.machine(), "target": TARGET, "parts": {}}
    for part in options.only:
        results["parts"][part] = _PARTS[part](sides, options.rounds)
        measure.write(options.json, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--side",
        action="append",
        nargs="+",
        required=True,
        metavar=("NAME", "CHECKOUT PYTHON"),
        help="a side: its name, checkout and interpreter, then variables NAME=VALUE",
    )
    add("--rounds", type=int, default=12, help="samples of each side; at least 10 for a verdict")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    add("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    if len(options.side) < 2 or any(len(words) < 3 for words in options.side):
        parser.error("give two sides or more: --side NAME CHECKOUT PYTHON [NAME=VALUE ...]")
    return options


def _side(words: Sequence[str]) -> Side:
    name, checkout, python, *variables = words
    # Not resolved: the interpreter of a virtual environment is a link, and works only as one.
    return Side(
        name,
        Path(checkout).resolve(),
        os.path.abspath(python),
        dict(variable.split("=", 1) for variable in variables),
    )


def _fused(sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    return _served(
        "gpu-only, 64 environments x 128 steps, 524,288 steps per sample",
        sides,
        lambda side: (side.fused, "--worker", "rival", "--envs", 64, "--steps", 524_288),
        "go",
        rounds,
    )


def _coarse(sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    return _served(
        "single-learner-coarse, one worker, 64 environments x 128 steps",
        sides,
        lambda side: (side.fused, "--worker", "coarse"),
        "single-learner-coarse",
        rounds,
    )


def _stepwise(sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    return _served(
        "single-learner-fine, one worker, 8 environments x 128 steps",
        sides,
        lambda side: ("-c", STEPWISE, side.checkout / "benchmarks"),
        "go",
        rounds,
    )


def _served(
    title: str,
    sides: Sequence[Side],
    words: Callable[[Side], Sequence[object]],
    order: str,
    rounds: int,
) -> dict[str, Any]:
    workers = {side.name: side.worker(*words(side)) for side in sides}
    versions = {name: worker.info["versions"] for name, worker in workers.items()}
    runs = {name: (lambda worker=worker: worker.run(order)) for name, worker in workers.items()}
    data = _compared(title, runs, rounds)
    for worker in workers.values():
        worker.close()
    return data | {"versions": versions}


def _command(part: str, sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    title, words = COMMANDS[part]
    with tempfile.TemporaryDirectory() as folder:

        def trained(side: Side) -> measure.Sample:
            variables = os.environ | side.environment() | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
            command = [side.python, "-c", START, *words.split()]
            if words.startswith("train"):
                command += ["--run-dir", str(Path(tempfile.mkdtemp(dir=folder)) / "run")]
            return measure.timed(
                lambda: subprocess.run(
                    command, check=True, env=variables, stdout=subprocess.DEVNULL
                )
            )

        runs = {side.name: (lambda side=side: trained(side)) for side in sides}
        return _compared(title, runs, rounds)


_PARTS = {
    "fused": _fused,
    "coarse": _coarse,
    "stepwise": _stepwise,
    **{part: functools.partial(_command, part) for part in COMMANDS},
}


def _compared(
    title: str, runs: dict[str, Callable[[], measure.Sample]], rounds: int
) -> dict[str, Any]:
    samples = measure.interleaved(runs, rounds)
    seconds = {name: measure.seconds_of(all_) for name, all_ in samples.items()}
    cpu = {name: measure.cpu_seconds_of(all_) for name, all_ in samples.items()}
    first, *others = samples
    measure.print_seconds(f"{title}, {rounds} rounds", samples)
    ratios: dict[str, Any] = {}
    for name in others:
        ratio, low, high = measure.ratio_of_medians(seconds[name], seconds[first])
        spent, least, most = measure.ratio_of_medians(cpu[name], cpu[first])
        ratios[name] = {
            "wall-clock": {"ratio": ratio, "interval": [low, high]},
            "CPU": {"ratio": spent, "interval": [least, most]},
        }
        print(
            f"  {name} / {first}: {ratio:.3f}x, 95 % within {low:.3f} to {high:.3f}: "
            f"{_verdict(ratio, low, high)} (CPU time {spent:.3f}x, {least:.3f} to {most:.3f})"
        )
    print(f"  {measure.quiet(samples)}")
    return {"rounds": rounds, "ratios": ratios, **measure.as_data(samples)}


def _verdict(ratio: float, low: float, high: float) -> str:
    share = f"{TARGET - 1:.0%}"
    if high <= TARGET:  # and so is the ratio, wherever in the interval it is
        return f"within {share}, with all of the interval"
    if high - low > TARGET - 1:
        return f"undecided: the interval is wider than {share}"
    return f"{'within' if ratio <= TARGET else 'NOT within'} {share}"


if __name__ == "__main__":
    main()
