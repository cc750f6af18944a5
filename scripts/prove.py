"""Proves what is claimed, claim by claim: each row is a name, a command, and its result.

python scripts/prove.py                runs the rows that do not hold yet at this commit
python scripts/prove.py --only NAME    one row
python scripts/prove.py --jobs 2       two rows at a time
python scripts/prove.py --again        forgets what was done

A row holds if its command succeeds; the last line that it prints is what was found. One that is
interrupted goes on where it was, if its command keeps its progress in .prove/, until what it is
about has changed: sources, or the tests that prove it. The last table, with the commit, versions
and date, is written to docs/proofs.md.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".prove"
TABLE = ROOT / "docs" / "proofs.md"
ABOUT = ("src", "tests/hunt", "tests/graph", "pyproject.toml", "requirements.lock")
"""what rows are about: other files may change without a new proof"""
KINDS = ("uniform", "count", "varying", "partial", "mixed")


@dataclass(frozen=True)
class Row:
    """A claim."""

    name: str
    claim: str
    command: str
    """what Python is given, from the root; `{progress}` is a file that it may keep"""


ROWS = (
    Row(
        "primitives",
        "every primitive of JAX is drawn, or a line says why not",
        "-m pytest -q tests/hunt/test_primitives.py",
    ),
    Row(
        "mutations",
        "without a rule's restrictions, the hole is found within 10,000 equations: 20 rules",
        "-m pytest -q -m '' tests/hunt/test_mutations.py",
    ),
    *(
        Row(
            f"equations-{seed}",
            f"nothing false is claimed of 50,000 equations drawn from seed {seed}, of each "
            "primitive at least 20",
            f"-m hunt.equations --seed {seed} --count 50000 --enough 20 --progress {{progress}}",
        )
        for seed in (0, 1)
    ),
    Row(
        "caught",
        "of 500 wrong programs that were drawn, and of those that people wrote, the static check "
        "refuses all, and the probe by itself catches 95 %",
        "-m hunt.caught --count 500 --progress {progress}",
    ),
    Row(
        "programs",
        "no cut of 2,000 drawn programs is wrong",
        "-m hunt.programs --count 2000 --progress {progress}",
    ),
)


def prove(row: Row, commit: str) -> dict[str, Any]:
    """Runs a row's command; what it prints is seen as it comes."""
    command = row.command.format(progress=KEPT / f"{row.name}.json")
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
    arguments = [sys.executable, *(part.strip("'") for part in command.split())]
    last = ""
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(f"{row.name}: {line}", end="", flush=True)
            last = line.strip() or last
    return {
        "commit": commit,
        "holds": running.returncode == 0,
        "said": last,
        "date": datetime.now(UTC).date().isoformat(),
    }


def page(results: dict[str, Any]) -> str:
    """The table, as a page of the documentation."""
    import jax
    import numpy

    lines = [
        "# Proofs",
        "",
        "What `make prove` has found, claim by claim. It takes hours, and goes on where it was",
        "interrupted.",
        "",
        f"Python {platform.python_version()}, JAX {jax.__version__}, NumPy {numpy.__version__}.",
        "",
        "| claim | holds | what was found | commit | date |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS:
        found = results.get(row.name)
        if found is not None:
            holds = "yes" if found["holds"] else "**no**"
            cells = (row.claim, holds, found["said"], found["commit"], found["date"])
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_counts()]) + "\n"


def _counts() -> Iterator[str]:
    """Equations by primitive and kind."""
    counts: dict[str, Counter[str]] = {}
    for file in sorted(KEPT.glob("equations-*.json")):
        for primitive, row in _read(file)["primitives"].items():
            counts.setdefault(primitive, Counter()).update(row)
    if counts:
        yield from ("", "## Equations by primitive and kind of operand", "")
        yield from (f"| primitive | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS))
        for primitive, row in sorted(counts.items()):
            yield f"| {primitive} | {' | '.join(str(row[kind]) for kind in KINDS)} |"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _commit() -> str:
    """The last commit of what is proven; with a plus if it has been changed since."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", *ABOUT]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--again", action="store_true", help="forget what was done")
    options = parser.parse_args()
    commit, file = _commit(), KEPT / "results.json"
    if options.again or (_read(file) or {}).get("commit") != commit:  # progress is a commit's
        shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(exist_ok=True)
    results = (_read(file) or {}).get("rows", {})
    chosen = [row for row in ROWS if not options.only or row.name in options.only]

    def work(row: Row) -> None:
        if not results.get(row.name, {}).get("holds"):
            results[row.name] = prove(row, commit)
            file.write_text(json.dumps({"commit": commit, "rows": results}, indent=1))
            TABLE.write_text(page(results), encoding="utf-8")

    file.write_text(json.dumps({"commit": commit, "rows": results}, indent=1))
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, chosen))
    return 0 if all(results[row.name]["holds"] for row in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
