"""What algorithms learn: every learning figure of the documents, over seeds, as it can be repeated.

    python benchmarks/learning.py --list         what there is, and what has been measured
    python benchmarks/learning.py NAME ...       the seeds of these that are missing
    python benchmarks/learning.py all --jobs 2   those of all, two trainings at a time
    python benchmarks/learning.py NAME --again   from the start, as after a change of the algorithm
    python benchmarks/learning.py --write        the documents' tables, from the results

A training is one command of `fragflow train` (`learning_tasks.py`). It goes into
`results/learning/NAME.json` as soon as it is done, with the machine and the versions that made it,
so a run that was interrupted goes on where it was. The seeds of a task share a process, and
programs come from JAX's cache on disk where they are known.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import measure
from learning_tables import RESULTS, finished, read, summary, write_documents
from learning_tasks import TASKS, Task
from measure import HERE, print_table

PACKAGES = (
    *("fragflow", "jax", "jaxlib", "numpy", "optax"),
    *("gymnax", "gymnasium", "mujoco", "envpool", "jaxmarl"),
)
PARTS = 20
"""points of a curve"""


def main() -> None:
    options = _options()
    if options.list:
        _list(options.results)
    elif options.write:
        write_documents(options.results)
    elif options.worker:
        train(options.worker, TASKS[options.worker], options.seeds, options.results)
    else:
        _measure(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="of tasks; or: all")
    add("--list", action="store_true", help="show what there is")
    add("--write", action="store_true", help="write the documents' tables")
    add("--seeds", type=int, nargs="+", help="instead of the tasks' own")
    add("--jobs", type=int, default=1, help="trainings at a time")
    add("--again", action="store_true", help="forget what has been measured of these tasks")
    add("--results", type=Path, default=RESULTS, help="the folder of the results")
    add("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.names == ["all"]:
        options.names = list(TASKS)
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(f"unknown task {unknown[0]!r}: --list shows those that there are")
    if not (options.names or options.list or options.write or options.worker):
        parser.error("name a task, or all; --list shows those that there are")
    return options


def _measure(options: argparse.Namespace) -> None:
    if options.again:
        for name in options.names:
            (options.results / f"{name}.json").unlink(missing_ok=True)
    missing = {}
    for name in options.names:
        seeds = options.seeds or TASKS[name].seeds
        rows = finished(name, TASKS[name], options.results)
        left = [seed for seed in seeds if seed not in {row["seed"] for row in rows}]
        if left:
            missing[name] = left

    def work(name: str) -> int:
        words = ["--worker", name, "--results", options.results, "--seeds", *missing[name]]
        command = [sys.executable, HERE / "learning.py", *words]
        # Variables such as XLA_FLAGS are read once, when a process starts.
        variables = os.environ | dict(TASKS[name].environment)
        return subprocess.run([str(word) for word in command], env=variables).returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(work, missing))
    _report(options.names, options.results)
    failed = [name for name, code in zip(missing, codes, strict=True) if code]
    if failed:
        raise SystemExit(f"not finished: {', '.join(failed)}")


def train(name: str, task: Task, seeds: Sequence[int], results: Path) -> None:
    """Trains with each of the seeds; a result is in the file as soon as it is there."""
    from fragflow.tools.cli.main import main as fragflow

    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            words = [*shlex.split(task.command), "--seed", str(seed), "--run-dir", str(run)]
            began, cpu = time.perf_counter(), time.process_time()
            code = fragflow(["train", *words, "--quiet"])
            if code:
                raise SystemExit(code)
            used = {
                "seconds": round(time.perf_counter() - began, 1),
                "cpu_seconds": round(time.process_time() - cpu, 1),
            }
            row = row_of(run) | used | {"machine": machine(), "versions": versions()}
        add(name, task, row, results)
        value = row[task.metric]
        print(f"{name}, seed {seed}: {value:,.2f} after {used['seconds']:,.0f} s", flush=True)


def row_of(run: Path) -> dict[str, Any]:
    """What a run directory says of what was learnt."""
    said = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if said["interrupted"]:
        raise SystemExit(130)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    kept = ("seed", "eval_return", "mean_return", "episodes", "env_steps", "params_sha256")
    parts = [_part(metrics, k, PARTS) for k in range(PARTS)]
    return {
        **{key: said[key] for key in kept},
        "last_tenth": _mean([row for part in parts[-(PARTS // 10) :] for row in part]),
        "curve": [_mean(part) for part in parts],
    }


def _part(rows: Sequence[dict[str, Any]], k: int, parts: int) -> Sequence[dict[str, Any]]:
    return rows[len(rows) * k // parts : len(rows) * (k + 1) // parts]


def _mean(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean return of the episodes that ended in some iterations; None if none did."""
    ended = [row for row in rows if row["episodes"]]
    episodes = sum(row["episodes"] for row in ended)
    if not episodes:
        return None
    return round(sum(row["mean_return"] * row["episodes"] for row in ended) / episodes, 3)


def add(name: str, task: Task, row: dict[str, Any], results: Path) -> None:
    """One row more in a task's file."""
    rows = {old["seed"]: old for old in finished(name, task, results)} | {row["seed"]: row}
    content = {
        "command": f"fragflow train {task.command}",
        "environment": dict(task.environment),
        "metric": task.metric,
        "runs": [rows[seed] for seed in sorted(rows)],
    }
    measure.write(results / f"{name}.json", content)


def machine() -> dict[str, Any]:
    """Where it was measured. Rounding depends on a CPU's instructions, so a name is not enough."""
    said = measure.machine()
    cpu = {key: said[key] for key in ("cpu", "cores", "system", "date")}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return cpu
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    flags = facts.get("flags", "").split()
    widest = [text for flag, text in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    return cpu | {
        "family": f"family {facts.get('cpu family')} model {facts.get('model')}",
        "instructions": widest[0] if widest else "SSE",
    }


def versions() -> dict[str, str | None]:
    """Of everything that may change a number; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    found["libc"] = " ".join(platform.libc_ver())
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found | {"commit": _commit()}


def _commit() -> str | None:
    """fragflow's, with a plus where its sources have changed since."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(HERE.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("diff", "HEAD", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _list(results: Path) -> None:
    rows = []
    for name, task in TASKS.items():
        there = {row["seed"] for row in finished(name, task, results)}
        done = f"{len(there & set(task.seeds))} of {len(task.seeds)}"
        rows.append((name, done, task.metric, task.where or "", task.command))
    print_table("learning", ("", "seeds", "metric", "document", "command"), rows)


def _report(names: Sequence[str], results: Path) -> None:
    rows = []
    for name in names:
        if not read(name, results):
            continue
        found = summary(name, TASKS[name], results)
        values = (found.mean, found.half_width, found.lowest, found.highest)
        rows.append((name, str(found.seeds), *(f"{value:,.2f}" for value in values)))
    header = ("", "seeds", "mean", "± (95 %, t)", "lowest", "highest")
    print_table("learning", header, rows)


if __name__ == "__main__":
    main()
