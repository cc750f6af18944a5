"""Print lines per package and fail when a Python file is over the limit."""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")
MAX_LINES = 500
TABLES = ("src/fragflow/graph/replicas/rules/table.py",)
"""tables are as long as what they list"""


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def package_of(path: Path) -> str:
    """`fragflow.graph` for files of a subpackage, `fragflow` for modules at the top."""
    return ".".join(path.relative_to(ROOT / "src").parent.parts[:2])


def main() -> int:
    lines = {
        path: count_lines(path)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    packages: Counter[str] = Counter()
    for path, count in lines.items():
        if path.is_relative_to(ROOT / "src" / "fragflow"):
            packages[package_of(path)] += count
    for package, count in sorted(packages.items()):
        print(f"{count:6} {package}")
    print(f"{packages.total():6} total")

    tables = {ROOT / table for table in TABLES}
    too_long = {p: count for p, count in lines.items() if count > MAX_LINES and p not in tables}
    for path, count in too_long.items():
        print(
            f"{path.relative_to(ROOT)} has {count} lines; the limit is {MAX_LINES}. Split it.",
            file=sys.stderr,
        )
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
