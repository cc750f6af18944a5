"""Shared by the benchmarks: workers that wait for orders, interleaved samples, tables, files.

Only the standard library is used here, so that any interpreter can import it.
"""

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Sample:
    """One measured run."""

    seconds: float
    load_before: float
    load_after: float
    others: float | None
    """cores that other processes kept busy meanwhile; known on Linux only"""
    cpu_seconds: float | None = None
    """CPU time of the process that did the work, which others disturb less; known on Linux only"""


def serve(runs: Mapping[str, Callable[[], object]], info: Mapping[str, Any]) -> None:
    """The worker's side: everything is compiled; do what is asked, line by line, until the end."""
    print("ready", json.dumps(info), flush=True)
    for line in sys.stdin:
        runs[line.strip()]()
        print("done", flush=True)


class Worker:
    """The measuring side: a process that computes only between an order and its answer."""

    def __init__(
        self,
        *arguments: object,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ):
        # Programs are compiled anew: none comes from JAX's cache on disk.
        environment = {
            **os.environ,
            **(variables or {}),
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        }
        self._process = subprocess.Popen(
            [python, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.info: dict[str, Any] = json.loads(self._answer("ready"))

    def run(self, order: str) -> Sample:
        """The wall-clock time from the order to the answer."""
        assert self._process.stdin is not None

        def once() -> None:
            assert self._process.stdin is not None
            print(order, file=self._process.stdin, flush=True)
            self._answer("done")

        return timed(once)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self, expected: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.partition(" ")
            if word.strip() == expected:
                return rest
        raise SystemExit(f"{self._process.args} ended without the answer {expected!r}")


def cache() -> Path:
    """Where rivals are installed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fragflow" / "benchmarks"


def rival_python(folder: Path, requirements: Sequence[str]) -> str:
    """The interpreter of a rival's own environment, which is made if need be."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        print(f"installing {' '.join(requirements)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([str(part) for part in [*install, *requirements]], check=True)
        done.write_text(wanted, encoding="utf-8")
    return str(python)


def timed(run: Callable[[], object]) -> Sample:
    """Runs once; what this process and all that come from it compute is not others'."""
    before = os.getloadavg()[0]
    busy, own = _busy_seconds(), _own_seconds()
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    others = cpu_seconds = None
    if busy is not None and own is not None:
        cpu_seconds = round((_own_seconds() or 0.0) - own, 2)
        others = ((_busy_seconds() or 0.0) - busy - cpu_seconds) / seconds
        others = max(0.0, round(others, 2))
    return Sample(seconds, before, os.getloadavg()[0], others, cpu_seconds)


def busy_cores(seconds: float) -> float | None:
    """Cores that this process and all that come from it keep busy during some seconds."""
    before = _own_seconds()
    time.sleep(seconds)
    after = _own_seconds()
    return None if before is None or after is None else (after - before) / seconds


def interleaved(runs: Mapping[str, Callable[[], Sample]], repeats: int) -> dict[str, list[Sample]]:
    """A B A B ...: whatever else the machine does meets all alike. One unmeasured round first."""
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for round_ in range(repeats + 1):
        for name, run in runs.items():
            sample = run()
            if round_:
                samples[name].append(sample)
                print(f"\r  {name} {round_}/{repeats} ", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return samples


def print_seconds(title: str, samples: Mapping[str, Sequence[Sample]]) -> None:
    """A row for each side: wall-clock and CPU seconds."""
    print_table(
        title,
        ("", "median s", "fastest", "slowest", "CPU s"),
        [
            (
                name,
                *(f"{f(seconds_of(all_)):.3f}" for f in (statistics.median, min, max)),
                f"{statistics.median(cpu_seconds_of(all_)):.2f}",
            )
            for name, all_ in samples.items()
        ],
    )


def seconds_of(samples: Sequence[Sample]) -> list[float]:
    return [s.seconds for s in samples]


def cpu_seconds_of(samples: Sequence[Sample]) -> list[float]:
    return [s.cpu_seconds or 0.0 for s in samples]


def median(samples: Sequence[Sample]) -> float:
    return statistics.median(s.seconds for s in samples)


def median_of_ratios(above: Sequence[Sample], below: Sequence[Sample]) -> float:
    """Of the ratios within each round: a disturbance that outlasts a round cancels out."""
    pairs = zip(above, below, strict=True)
    return statistics.median(a.seconds / b.seconds for a, b in pairs)


def ratio_of_medians(
    above: Sequence[float], below: Sequence[float], draws: int = 4000
) -> tuple[float, float, float]:
    """The ratio, and where 95 % of those are that rounds drawn with replacement would give."""
    rounds = list(zip(above, below, strict=True))
    chance = random.Random(0)

    def ratio(some: Sequence[tuple[float, float]]) -> float:
        a, b = (statistics.median(side) for side in zip(*some, strict=True))
        return a / b

    drawn = sorted(ratio(chance.choices(rounds, k=len(rounds))) for _ in range(draws))
    return ratio(rounds), drawn[draws * 25 // 1000], drawn[draws * 975 // 1000 - 1]


def as_data(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """Everything that was measured, for the results file."""
    return {
        name: {"median_seconds": median(all_), "samples": [asdict(s) for s in all_]}
        for name, all_ in samples.items()
    }


def quiet(samples: Mapping[str, Sequence[Sample]]) -> str:
    """How quiet the machine was, in words."""
    every = [s for all_ in samples.values() for s in all_]
    loads = [load for s in every for load in (s.load_before, s.load_after)]
    others = [s.others for s in every if s.others is not None]
    text = f"load average {min(loads):.2f} to {max(loads):.2f}"
    if others:
        text += f"; others used {statistics.median(others):.2f} cores (most: {max(others):.2f})"
    return text


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of text; all columns but the first are aligned to the right."""
    widths = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    print(f"\n{title}")
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells))


def verdict(value: float, target: float, unit: str, *, at_least: bool = False) -> str:
    """A number, its target, and whether it is met."""
    met = value >= target if at_least else value <= target
    sign = ">=" if at_least else "<="
    return f"{value:.2f}{unit} (target {sign} {target:g}{unit}): {'met' if met else 'MISSED'}"


def machine() -> dict[str, Any]:
    """Where and how this was measured."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


def write(path: Path | None, results: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whatever happens meanwhile, the file is the old one or the new one.
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        new.replace(path)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _busy_seconds() -> float | None:
    """CPU time of all processes since the machine started."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return None
    user, nice, system = map(int, first.split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float | None:
    """CPU time of this process, its children, theirs and so on, also of those that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))

    def is_own(pid: int) -> bool:
        while pid not in (os.getpid(), 0):
            pid = parents.get(pid, 0)
        return pid != 0

    if os.getpid() not in ticks:
        return None
    return sum(t for pid, t in ticks.items() if is_own(pid)) / os.sysconf("SC_CLK_TCK")
