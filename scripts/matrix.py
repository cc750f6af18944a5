"""Runs the smoke set (tests/smoke and the docs' examples) in environments made for it.

python scripts/matrix.py smoke     the lock's versions, on every interpreter that is here
python scripts/matrix.py prepare   only makes the environments for that, all at once
python scripts/matrix.py matrix    every Python with every supported JAX; writes docs/versions.md
python scripts/matrix.py newest    the newest releases within pyproject.toml's bounds

`--not 3.11` leaves a version out, `--pair 3.12:0.11.2` tries this pair only. A finished pair of the
matrix, as the page has it, is kept until the code changes, with `--keep` also then: the table has
its commit.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".matrix"
PAGE = ROOT / "docs" / "versions.md"
JAX = ("0.10.0", "0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1")
"""the first and the last release of each minor version"""
FOLLOWS_JAX = ("jax", "jaxlib", "flax", "numpy", "scipy", "ml-dtypes", "optax")
"""packages whose releases depend on JAX's: not held at the lock's versions where JAX is not"""
EXTRAS = "ray,mujoco,flax,pettingzoo,draw"
"""what the smoke set and the docs' examples need"""
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "beartype")
TESTS = ("tests/smoke", "tests/docs/test_docs.py", "tests/docs/test_examples.py")
READY = ".ready"
"""a file in an environment that is complete, and has not been used"""
MARKS = {"passed": "✓", "failed": "**failed**", "absent": "–"}


PAGE_TEXT = """\
# Versions

fragflow declares `{bounds}` and Python `{python}`. `make matrix` installs it, as a wheel, with
every pair of them below in an environment of its own, everything else at the lock's versions, runs
the smoke set there (`tests/smoke`, the examples and the code of these pages) and writes this page.
`–`: JAX has no release for that Python. JAX adds primitives in every release: `make newest` tries
the newest ones.

{table}
{made}
The whole suite runs with the lock's versions: JAX {locked}.

gymnax and jaxmarl hold JAX below 0.12: they are tested in an environment of their own, by
`make test-legacy`.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What was found of one Python with one JAX: by check, `passed`, `failed` or `absent`."""

    python: str
    jax: str
    checks: Mapping[str, str]
    seconds: float
    versions: str
    commit: str = ""


def interpreters() -> dict[str, str]:
    """Those that work, by version."""
    found = subprocess.run(
        [ROOT / "scripts" / "interpreters.sh"], capture_output=True, text=True, check=True
    )
    return dict(line.split(maxsplit=1) for line in found.stdout.splitlines())


def installed(venv: Path, python: str, install: Sequence[Sequence[str]]) -> str:
    """Makes an environment and installs into it: how that ended."""
    log = _log(venv)
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    shutil.rmtree(venv, ignore_errors=True)
    _call([python, "-m", "venv", str(venv)], log)
    for words in (*install, ("check",)):
        pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        if _call([*pip, *words], log):
            is_absent = "No matching distribution found" in log.read_text()
            return "absent" if is_absent else "failed"
    (venv / READY).touch()
    return "passed"


def tried(venv: Path, python: str, install: Sequence[Sequence[str]], name: str, jax: str) -> Cell:
    """Runs the smoke set in an environment, which is made unless it has been prepared."""
    start = datetime.now(UTC)
    log = _log(venv)
    checks = {"install": "passed" if (venv / READY).exists() else installed(venv, python, install)}
    if checks["install"] != "passed":
        return Cell(name, jax, checks, 0.0, "")
    (venv / READY).unlink()  # the next time it is made anew
    ours = str(venv / "bin" / "python")
    report = HOME / f"{venv.name}.xml"
    report.unlink(missing_ok=True)
    words = ("--numprocesses", "auto", "--dist", "worksteal", f"--junitxml={report}")
    _call([ours, "-m", "pytest", "-q", *words, *TESTS], log, quiet=True)
    checks |= _results(report)
    _call([ours, "-m", "pip", "freeze", "--exclude-editable"], log)
    seconds = (datetime.now(UTC) - start).total_seconds()
    return Cell(name, jax, checks, round(seconds), _version(ours, "jax"))


def _log(venv: Path) -> Path:
    return HOME / f"{venv.name}.log"


def _call(words: Sequence[str], log: Path, quiet: bool = False) -> int:
    """Runs a command with its output in a log; its end is shown if it fails."""
    # The caller's own settings for pytest or fragflow's path must not reach another environment.
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with log.open("a") as out:
        code = subprocess.run(
            words, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=variables
        ).returncode
    if code and not quiet:
        print("\n".join(log.read_text().splitlines()[-5:]), file=sys.stderr)
    return code


def _results(report: Path) -> dict[str, str]:
    """By check, how its tests ended. A check is what a reader of the table would ask for."""
    checks: dict[str, str] = {}
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        ended = {child.tag for child in case}
        if "skipped" in ended:
            continue
        is_smoke = "smoke" in case.get("classname", "")
        name = _check_name(case.get("name", "")) if is_smoke else "docs' examples"
        has_failed = bool(ended & {"failure", "error"})
        checks[name] = "failed" if has_failed or checks.get(name) == "failed" else "passed"
    return checks or {"tests": "failed"}


def _check_name(test: str) -> str:
    name, _, case = test.removeprefix("test_").partition("[")
    return f"{name} {case.rstrip(']')}" if name == "policy" else case.rstrip("]") or name


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def constraints() -> Path:
    """The lock as constraints, without what follows JAX's version."""
    text = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^([a-z0-9.-]+)==([^ \\]+)( ; [^\\]*)?", text, re.M)
    path = HOME / "constraints.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{n}=={v}{marker}\n" for n, v, marker in pins if n not in FOLLOWS_JAX))
    return path


def wheel() -> str:
    """fragflow as it would be published: built once, for all."""
    place = HOME / "dist"
    shutil.rmtree(place, ignore_errors=True)
    words = ["pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "."]
    subprocess.run([sys.executable, "-m", *words, "-w", str(place)], cwd=ROOT, check=True)
    return str(next(place.glob("*.whl")))


def with_jax(built: str, jax: str) -> list[list[str]]:
    held = [f"jax=={jax}", f"jaxlib=={jax}", "-c", str(constraints())]
    return [["install", "--quiet", f"{built}[{EXTRAS}]", *TOOLS, *held]]


def from_lock(built: str) -> list[list[str]]:
    install = ["install", "--quiet", "--no-deps", "--no-compile"]
    return [[*install, "-r", "requirements.lock"], [*install, built]]


def newest(built: str) -> list[list[str]]:
    return [["install", "--quiet", "--upgrade", f"{built}[{EXTRAS}]", *TOOLS]]


def table(cells: Sequence[Cell]) -> str:
    """A row for each check, a column for each pair."""
    checks = list(dict.fromkeys(check for cell in cells for check in cell.checks))
    lines = [
        f"| Python | {' | '.join(cell.python for cell in cells)} |",
        f"|---|{'---|' * len(cells)}",
        f"| **JAX** | {' | '.join(f'**{cell.jax}**' for cell in cells)} |",
    ]
    for check in checks:
        marks = (MARKS[cell.checks.get(check, "absent")] for cell in cells)
        lines.append(f"| {check} | {' | '.join(marks)} |")
    if any(cell.commit for cell in cells):
        lines.append(f"| commit | {' | '.join(f'`{cell.commit}`' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def cells_in(text: str) -> list[Cell]:
    """What a page says of each pair: it is all that is kept of a matrix."""
    ended = {mark: word for word, mark in MARKS.items()}
    lines = re.findall(r"^\| (.+) \|$", text, re.M)
    rows = [[entry.strip() for entry in line.split(" | ")] for line in lines]
    found = []
    for python, *column in zip(*(entries for _, *entries in rows), strict=True):
        named = dict(zip((name for name, *_ in rows[1:]), column, strict=True))
        jax, commit = named.pop("**JAX**").strip("*"), named.pop("commit", "").strip("`")
        checks = {name: ended[mark] for name, mark in named.items()}
        if checks["install"] != "passed":  # then nothing else was tried
            checks = {"install": checks["install"]}
        found.append(Cell(python, jax, checks, 0.0, jax, commit))
    return found


def page(cells: Sequence[Cell]) -> str:
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = next(d for d in supported["dependencies"] if d.startswith("jax"))
    machine = f"{platform.system()} {platform.machine()}"
    return PAGE_TEXT.format(
        bounds=bounds,
        python=supported["requires-python"],
        table=table(cells),
        made=f"Made on {datetime.now(UTC).date()}, on {machine}.",
        locked=_locked("jax"),
    )


def _locked(package: str) -> str:
    text = (ROOT / "requirements.lock").read_text()
    marker = r" ; python_full_version (\S+) '([^']+)'"
    pins = re.findall(rf"^{package}==(\S+){marker}", text, re.M)
    words = {"<": "below Python {}", ">=": "from Python {} on"}
    return ", ".join(f"{version} {words[op].format(bound)}" for version, op, bound in pins)


def commit_of() -> str:
    """The commit whose code is tried; what only changes texts does not count."""
    paths = ["src", "tests/smoke", "pyproject.toml", "requirements.lock"]
    found = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", *paths],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return found.stdout.strip()


def matrix(pythons: Mapping[str, str], pairs: Sequence[str], keep: bool, built: str) -> list[Cell]:
    """Every pair, or those asked for; what was finished is not tried again."""
    commit = commit_of()
    cells = {(cell.python, cell.jax): cell for cell in cells_in(PAGE.read_text())}
    order = [(name, jax) for name in pythons for jax in JAX]
    for name, python in pythons.items():
        for jax in JAX:
            if pairs and f"{name}:{jax}" not in pairs:
                continue
            found = cells.get((name, jax))
            is_old = found is None or (found.commit != commit and not keep)
            if found is None or is_old or "failed" in found.checks.values():
                made = tried(HOME / f"{name}-{jax}", python, with_jax(built, jax), name, jax)
                shutil.rmtree(HOME / f"{name}-{jax}", ignore_errors=True)
                found = cells[name, jax] = replace(made, commit=commit)
                PAGE.write_text(page([cells[pair] for pair in order if pair in cells]))
            _say(found)
    return [cells[pair] for pair in order if pair in cells]


def _say(cell: Cell) -> None:
    bad = [check for check, ended in cell.checks.items() if ended == "failed"]
    words = f"failed: {', '.join(bad)}" if bad else f"{len(cell.checks)} checks"
    print(f"Python {cell.python}, JAX {cell.versions or cell.jax}: {words}, {cell.seconds} s")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("prepare", "smoke", "matrix", "newest"))
    parser.add_argument("--not", dest="without", action="append", default=[], metavar="VERSION")
    parser.add_argument("--pair", action="append", default=[], metavar="PYTHON:JAX")
    parser.add_argument("--keep", action="store_true", help="also what was made at other commits")
    options = parser.parse_args()
    pythons = {n: p for n, p in interpreters().items() if n not in options.without}
    if options.what == "prepare":
        install = from_lock(wheel())
        with ThreadPoolExecutor() as several:
            for name, python in pythons.items():
                several.submit(installed, HOME / f"smoke-{name}", python, install)
        return 0  # what went wrong is said by those who need it
    if options.what == "matrix":
        cells = matrix(pythons, options.pair, options.keep, wheel())
    else:
        install = (from_lock if options.what == "smoke" else newest)(wheel())
        cells = []
        for name, python in pythons.items():
            cell = tried(HOME / f"{options.what}-{name}", python, install, name, options.what)
            cells.append(Cell(name, cell.versions, cell.checks, cell.seconds, cell.versions))
            _say(cell)
    for version in options.without:
        print(f"Python {version}: not asked for here (`make check` runs the whole suite on it)")
    print(table(cells) if cells else "there is no other interpreter here")
    return 1 if any("failed" in cell.checks.values() for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
