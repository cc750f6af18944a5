"""The results of `learning.py` as the documents show them.

A document says where a table stands, and of which tasks:

    <!-- learning: a2c-cartpole a2c-acrobot -->
    ...
    <!-- end -->

What is between the two lines is written by `python benchmarks/learning.py --write`; a test keeps it
true.
"""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_tasks import TASKS, Task
from measure import HERE

ROOT = HERE.parent
RESULTS = HERE / "results" / "learning"
BLOCK = re.compile(r"<!-- learning: (?P<names>[^>]*?) -->\n(?P<body>.*?)<!-- end -->", re.S)
STEPS = re.compile(r"--total-steps (\d+)")
LEVEL = 0.95
LIBRARIES = {"envpool": "envpool", "gymnasium": "gymnasium", "jaxmarl": "jaxmarl"}
"""kinds of environments, and whose version counts"""
TITLES = {"python": "Python", "jax": "JAX", "envpool": "EnvPool", "jaxmarl": "JaxMARL"}


@dataclass(frozen=True)
class Summary:
    """A task's figure, over its seeds."""

    seeds: int
    mean: float
    half_width: float
    """of the 95 % interval of the mean, by Student's t"""
    lowest: float
    highest: float


def read(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """A task's file; empty if there is none."""
    path = results / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def finished(name: str, task: Task, results: Path = RESULTS) -> list[dict[str, Any]]:
    """What has been measured; refused if it is what another command has done."""
    said = read(name, results)
    if not said:
        return []
    made_by = (said["command"], said["environment"])
    if made_by != (f"fragflow train {task.command}", dict(task.environment)):
        raise SystemExit(f"{name}: its results are those of another command: use --again")
    return said["runs"]


def summary(name: str, task: Task, results: Path = RESULTS) -> Summary:
    rows = finished(name, task, results)
    values = [row[task.metric] for row in rows if row["seed"] in task.seeds]
    if not values:
        raise SystemExit(f"{name} has no results: run benchmarks/learning.py {name}")
    return summarised(values)


def summarised(values: Sequence[float]) -> Summary:
    """Mean and interval; of one value nothing is known but itself."""
    from scipy.stats import t

    half = math.nan
    if len(values) > 1:
        quantile = float(t.ppf((1 + LEVEL) / 2, len(values) - 1))
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Summary(len(values), statistics.fmean(values), half, min(values), max(values))


def table(names: Sequence[str], results: Path = RESULTS) -> str:
    """Rows of tasks, and below them where and with what they were measured."""
    lines = ["| | steps | mean return | lowest to highest | seeds |", "|---|---|---|---|---|"]
    about: dict[str, None] = {}
    for name in names:
        task = TASKS[name]
        found = summary(name, task, results)
        rows = [row for row in finished(name, task, results) if row["seed"] in task.seeds]
        steps = f"{int(STEPS.findall(task.command)[0]):,}"
        decimals = 0 if abs(found.mean) >= 100 else 2
        mean, half, low, high = (
            _number(value, decimals)
            for value in (found.mean, found.half_width, found.lowest, found.highest)
        )
        seeds = _span(task.seeds)
        spread = (f"{mean} ± {half}", f"{low} to {high}") if found.seeds > 1 else (mean, "")
        lines.append(f"| {' | '.join((task.title, steps, *spread, seeds))} |")
        about |= dict.fromkeys(_made_by(task, row) for row in rows)
    return "\n".join([*lines, "", *about])


def _number(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return "0" if text.lstrip("-") == "0" else text.replace("-", "−")


def _span(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _made_by(task: Task, row: dict[str, Any]) -> str:
    """On which machine, with what: whatever may change the figure."""
    machine, versions = row["machine"], row["versions"]
    packages = [name for kind, name in LIBRARIES.items() if f"--env {kind}:" in task.command]
    named = [f"{TITLES.get(name, name)} {versions[name]}" for name in ("python", "jax", *packages)]
    cpu = [machine["cpu"], *(machine[key] for key in ("family", "instructions") if key in machine)]
    return f"{machine['cores']} cores of {', '.join(cpu)}; {', '.join([*named, versions['libc']])}."


def current(text: str, results: Path = RESULTS) -> str:
    """A document with its tables as the results have them."""

    def made(match: re.Match[str]) -> str:
        body = table(match["names"].split(), results)
        return f"<!-- learning: {match['names']} -->\n{body}\n<!-- end -->"

    return BLOCK.sub(made, text)


def documents() -> list[Path]:
    """Those with tables."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in every if BLOCK.search(path.read_text(encoding="utf-8"))]


def write_documents(results: Path = RESULTS) -> None:
    for path in documents():
        old = path.read_text(encoding="utf-8")
        new = current(old, results)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))
