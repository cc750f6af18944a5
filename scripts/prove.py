"""Proves what is claimed, claim by claim: each row is a name, a command, and its result.

python scripts/prove.py                runs the rows that do not hold yet at this commit
python scripts/prove.py --only NAME    one row, or all whose names begin so
python scripts/prove.py --jobs 2       two rows at a time
python scripts/prove.py --again        also those that hold

A row holds if its command succeeds; the last line that it prints is what was found. That is kept in
docs/proofs.json, from which docs/proofs.md is made: committed, it is there on any machine, and rows
that hold are not proven again until what they are about has changed (sources, or the tests that
prove it). A row that is interrupted goes on where it was, on the same machine: its command keeps
its progress in .prove/.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".prove"
FOUND = ROOT / "docs" / "proofs.json"
TABLE = ROOT / "docs" / "proofs.md"
CHECKS = ("graph", "api", "policies", "_jax.py", "_all_reduce.py")
ABOUT = (*(f"src/fragflow/{name}" for name in CHECKS), "tests/hunt", "requirements.lock")
"""what rows are about: other files may change without a new proof"""
NOT_PROBED = (":(exclude)src/fragflow/graph/probe",)
"""for rows that the probe has no part in"""
LIBRARIES = (
    *("brax:inverted_pendulum", "brax:reacher", "brax:ant"),
    *("playground:CartpoleBalance", "playground:PendulumSwingup"),
)
"""environments whose steps are hundreds of operations that nobody reads; one row each"""
NOTHING_RAN = re.compile(r"no tests ran|\d+ (skipped|deselected)\b")
"""the last line of tests that proved nothing"""
KINDS = ("uniform", "count", "varying", "partial", "mixed")


@dataclass(frozen=True)
class Row:
    """A claim."""

    name: str
    claim: str
    command: str
    """what Python is given, from the root; `{progress}` is a file that it may keep"""
    also: tuple[str, ...] = ()
    """files that it is about, besides those that all rows are about; as git names sets of files"""

    @property
    def progress(self) -> Path:
        return KEPT / f"{self.name}.json"


ROWS = (
    Row(
        "primitives",
        "every primitive of JAX is drawn, or a line says why not",
        "-m pytest -q tests/hunt/test_primitives.py",
        also=NOT_PROBED,
    ),
    Row(
        "mutations",
        "without one restriction of a rule, the hole is found within 10,000 equations: 20 rules",
        "-m pytest -q -m '' tests/hunt/test_mutations.py",
        also=NOT_PROBED,
    ),
    *(
        Row(
            f"equations-{seed}",
            f"nothing false is claimed of 10,000 equations (--seed {seed}), of each "
            "primitive at least 2",
            f"-m hunt.equations --seed {seed} --count 10000 --enough 2 --progress {{progress}}",
            also=NOT_PROBED,
        )
        for seed in range(10)
    ),
    Row(
        "written",
        "of wrong programs that people wrote, the static check refuses all, and the probe by "
        "itself catches 95 %",
        "-m hunt.caught --written",
        also=("tests/graph",),
    ),
    *(
        Row(
            f"caught-{seed}",
            f"of 100 wrong programs (--seed {seed}), the static check refuses all, and the "
            "probe by itself catches 95 %",
            f"-m hunt.caught --seed {seed} --count 100 --progress {{progress}}",
        )
        for seed in range(5)
    ),
    *(
        Row(
            f"programs-{seed}",
            f"no cut of 500 programs (--seed {seed}) is wrong",
            f"-m hunt.programs --seed {seed} --count 500 --progress {{progress}}",
        )
        for seed in range(4)
    ),
    *(
        Row(
            f"library-{env.replace(':', '-')}",
            f"{env} learns the same with 1, 2 and 4 workers, under three policies",
            f"-m libraries.tried {env} --progress {{progress}}",
            also=("src/fragflow/environments", "tests/libraries"),
        )
        for env in LIBRARIES
    ),
    Row(
        "families",
        "functions of linear algebra, special functions, transforms, random numbers, loops and own "
        "derivatives, environment by environment, learn the same with 1 and 2 workers",
        "-m pytest -q -m '' tests/graph/test_families.py",
        also=("tests/graph",),
    ),
    *(
        Row(
            f"own-{case.replace(' ', '-')}",
            f"{case}, written from the docs alone, learns the same with 1, 2 and 4 workers under "
            "coarse, fine and multi-learner, and with 2 under every other policy",
            f"-m pytest -q -m '' tests/equivalence/test_own_algorithms.py -k "
            f"'{case.replace(' ', ' and ')}'",
            also=("src/fragflow/runtime", "src/fragflow/ops", "tests/equivalence"),
        )
        for case in ("td3", "ppg", "world model", "muzero")
    ),
    Row(
        "faults",
        "workers, nodes and replacements that are lost change no bit, and errors travel, in "
        "processes and on Ray",
        "-m pytest -q -m '' tests/remote tests/cli/test_as_before.py",
        also=("src/fragflow", "tests/remote", "tests/cli/test_as_before.py"),
    ),
    Row(
        "kernels",
        "XLA's dump of a run that names the kernel in C++ has its call, in threads, processes and "
        "Ray",
        "-m pytest -q -m '' tests/remote/test_kernels_there.py",
        also=("src/fragflow/runtime", "src/fragflow/remote", "src/fragflow/ops", "tests/remote"),
    ),
)


def prove(row: Row, commit: str) -> dict[str, Any]:
    """Runs a row's command; what it prints is seen as it comes."""
    command = row.command.format(progress=row.progress)
    print(f"{row.name}: {row.claim}\npython {command}", flush=True)
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    # One thread for each device of a collective, or it waits for ever.
    environment = {
        "NPROC": "16",
        # Small programs are compiled again and again.
        "JAX_COMPILATION_CACHE_DIR": str(KEPT / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **os.environ,
        "PYTHONPATH": paths.rstrip(os.pathsep),
    }
    arguments = [sys.executable, *shlex.split(command)]
    last = ""
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(f"{row.name}: {line}", end="", flush=True)
            last = line.strip() or last
    found = {
        "commit": commit,
        "holds": running.returncode == 0 and not NOTHING_RAN.match(last),
        "said": last,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
    }
    kept = _read(row.progress) or {}
    return found | {key: kept[key] for key in ("primitives",) if key in kept}


def versions() -> str:
    import jax
    import numpy

    return f"Python {platform.python_version()}, JAX {jax.__version__}, NumPy {numpy.__version__}"


def page(results: dict[str, Any]) -> str:
    """The table, as a page of the documentation."""
    lines = [
        "# Proofs",
        "",
        "What `make prove` has found, claim by claim. It takes hours, and goes on where it was",
        "interrupted. What was proven of an older commit is proven again when it is next run.",
        "",
        "| claim | holds | what was found | commit | versions | date |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        found = results.get(row.name)
        if found is None:
            lines.append(f"| {row.claim} | not yet tried | | | | |")
        else:
            holds = "yes" if found["holds"] else "**no**"
            rest = (found[key] for key in ("said", "commit", "versions", "date"))
            lines.append(f"| {' | '.join((row.claim, holds, *rest))} |")
    return "\n".join([*lines, *_counts(results)]) + "\n"


def _counts(results: dict[str, Any]) -> Iterator[str]:
    """Equations by primitive and kind."""
    counts: dict[str, Counter[str]] = {}
    for found in results.values():
        for primitive, row in found.get("primitives", {}).items():
            counts.setdefault(primitive, Counter()).update(row)
    if counts:
        yield from ("", "## Equations by primitive and kind of operand", "")
        yield from (f"| primitive | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS))
        for primitive, row in sorted(counts.items()):
            yield f"| {primitive} | {' | '.join(str(row[kind]) for kind in KINDS)} |"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _commit(row: Row) -> str:
    """The last commit of what is proven; with a plus if it has been changed since."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", *ABOUT, *row.also]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="rows, or what they begin with"
    )
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--again", action="store_true", help="also rows that hold at this commit")
    options = parser.parse_args()
    chosen = [row for row in ROWS if any(row.name.startswith(o) for o in options.only or [""])]
    if not chosen:
        parser.error(f"no row begins so; there are: {', '.join(row.name for row in ROWS)}")
    results: dict[str, Any] = _read(FOUND) or {}
    KEPT.mkdir(exist_ok=True)
    writing = Lock()

    def work(row: Row) -> None:
        commit, before = _commit(row), results.get(row.name, {})
        if before.get("holds") and before["commit"] == commit and not options.again:
            return
        began = KEPT / f"{row.name}.commit"
        if options.again or not began.exists() or began.read_text() != commit:
            row.progress.unlink(missing_ok=True)  # progress is a commit's
        began.write_text(commit)
        found = prove(row, commit)
        with writing:
            results[row.name] = found
            text = ",\n".join(f'"{name}": {json.dumps(results[name])}' for name in sorted(results))
            FOUND.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
            TABLE.write_text(page(results), encoding="utf-8")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, chosen))
    return 0 if all(results[row.name]["holds"] for row in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
