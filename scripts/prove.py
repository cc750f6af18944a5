"""Proves what is claimed, claim by claim: each row is a name, what is run for it, and its result.

python scripts/prove.py                runs the rows that are not done at this commit; resumes
python scripts/prove.py --only NAME    one row
python scripts/prove.py --again        forgets what was done

A row that is interrupted goes on where it was: its progress is kept in .prove/. The last table,
with the commit, versions and date, is written to docs/proofs.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# One thread for each device of a collective, or it waits for ever. Read when JAX starts.
os.environ.setdefault("NPROC", "16")

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".prove"
TABLE = ROOT / "docs" / "proofs.md"
sys.path.insert(0, str(ROOT / "tests"))

EQUATIONS, PROGRAMS, SEED = 100_000, 2_000, 0
PORTION = {"equations": 500, "programs": 20}
"""draws after which progress is kept"""
ENOUGH = 20
"""equations of every primitive that has a case"""


@dataclass(frozen=True)
class Row:
    """A claim."""

    name: str
    claim: str
    run: Callable[[Path], str]
    """given a file for its progress, says what was found; raises Failed"""


class Failed(Exception):
    """The claim does not hold; the message says why."""


def equations(progress: Path) -> str:
    """Draws in portions, then more of each primitive that was met too seldom."""
    import jax

    from hunt import equations as hunting

    jax.config.update("jax_disable_most_optimizations", True)
    kept = _read(progress)
    found = hunting.from_json(kept) if kept else hunting.Found()
    while found.drawn < EQUATIONS:
        last = min(found.drawn + PORTION["equations"], EQUATIONS)
        hunting.hunt(SEED, iter(range(found.drawn, last)), found=found)
        _write(progress, hunting.as_json(found))
        print(f"{found.drawn} of {EQUATIONS} equations, {len(found.bad)} false", flush=True)
        jax.clear_caches()
    seldom = _directed(found, progress)
    if found.bad:
        raise Failed("\n\n".join(f"{hunting.command(n)}\n{t}" for n, t in found.bad.items()))
    if seldom:
        raise Failed(f"fewer than {ENOUGH} equations of: {', '.join(seldom)}")
    per = {p: sum(row.values()) for p, row in hunting.as_json(found)["primitives"].items()}
    return f"{found.drawn} draws, {found.claims} claims, none false; {len(per)} primitives"


def _directed(found: Any, progress: Path) -> list[str]:
    """Further draws that end with functions which make what was met too seldom."""
    from hunt import equations as hunting
    from hunt.makers import makers

    def seldom() -> list[str]:
        per: dict[str, int] = {}
        for (primitive, _), count in found.seen.items():
            per[primitive] = per.get(primitive, 0) + count
        return [p for p in sorted(makers()) if per.get(p, 0) < ENOUGH]

    for primitive in seldom():
        first = 10**8 + 1000 * sorted(makers()).index(primitive)
        hunting.hunt(SEED, iter(range(first, first + 200)), last=makers()[primitive], found=found)
        _write(progress, hunting.as_json(found))
    return seldom()


def programs(progress: Path) -> str:
    import jax

    from hunt import programs as hunting

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_disable_most_optimizations", True)
    kept = _read(progress) or {"outcomes": {}, "wrong": {}}
    found = hunting.Found()
    found.outcomes.update(kept["outcomes"])
    found.wrong.update(kept["wrong"])
    while found.drawn < PROGRAMS:
        last = min(found.drawn + PORTION["programs"], PROGRAMS)
        hunting.hunt(SEED, iter(range(found.drawn, last)), found=found)
        _write(progress, {"outcomes": dict(found.outcomes), "wrong": found.wrong})
        print(f"{found.drawn} of {PROGRAMS} programs, {len(found.wrong)} wrong", flush=True)
        jax.clear_caches()
    if found.wrong:
        raise Failed(hunting.report(found))
    return hunting.report(found)


def tests(*paths: str) -> Callable[[Path], str]:
    """A row that is a few tests, slow ones too."""

    def run(_: Path) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", *paths]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(done.stdout[-4000:])
        return done.stdout.strip().splitlines()[-1]

    return run


ROWS: Sequence[Row] = (
    Row("primitives", "every primitive of JAX is drawn, or a line says why not",
        tests("tests/hunt/test_primitives.py")),
    Row("mutations", "a hole in a rule is found, for 20 rules",
        tests("tests/hunt/test_mutations.py")),
    Row("equations", f"no false claim in {EQUATIONS:,} drawn equations", equations),
    Row("programs", f"no wrong cut in {PROGRAMS:,} drawn programs", programs),
)  # fmt: skip


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: a run may end at any time."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value, indent=1), encoding="utf-8")
    beside.replace(path)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _prove(row: Row, results: dict[str, Any], commit: str) -> bool:
    begin = time.monotonic()
    print(f"{row.name}: {row.claim}", flush=True)
    try:
        said, holds = row.run(KEPT / f"{row.name}.json"), True
    except Failed as error:
        said, holds = str(error), False
    print(said, flush=True)
    results[row.name] = {
        "commit": commit,
        "holds": holds,
        "said": said.splitlines()[0] if said else "",
        "seconds": round(time.monotonic() - begin),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return holds


def page(results: dict[str, Any]) -> str:
    """The table, as a page of the documentation."""
    import jax
    import numpy

    lines = [
        "# Proofs",
        "",
        "What `make prove` has run, claim by claim. It takes hours and goes on where it was "
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
    lines += _counts()
    return "\n".join(lines) + "\n"


def _counts() -> list[str]:
    """Equations by primitive and kind."""
    kept = _read(KEPT / "equations.json")
    if not kept:
        return []
    kinds = ("uniform", "count", "varying", "partial", "mixed")
    lines = ["", "## Equations by primitive and kind of operand", ""]
    lines += [f"| primitive | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    for primitive, row in sorted(kept["primitives"].items()):
        lines.append(f"| {primitive} | {' | '.join(str(row.get(k, 0)) for k in kinds)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--again", action="store_true", help="forget what was done")
    options = parser.parse_args()
    commit = _commit()
    results = _read(KEPT / "results.json") or {}
    chosen = [row for row in ROWS if not options.only or row.name in options.only]
    begun = _read(KEPT / "commit.json")
    if options.again or begun != commit:  # progress is a commit's
        for row in chosen:
            (KEPT / f"{row.name}.json").unlink(missing_ok=True)
            results.pop(row.name, None)
        _write(KEPT / "commit.json", commit)
    holds = True
    for row in chosen:
        if not results.get(row.name, {}).get("holds"):
            holds &= _prove(row, results, commit)
            _write(KEPT / "results.json", results)
    TABLE.write_text(page(results), encoding="utf-8")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
