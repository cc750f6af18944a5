"""Print lines per package; fail where a file or a folder is too large, or a module too small.

- No Python file is longer than 500 lines, tables of rules apart.
- No folder of src has more than 12 modules.
- A module of less than 60 lines that one other imports belongs into it, unless the first line of
  its docstring says why not ("Apart: ..."). Folders that only pass names on do not count.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fragflow"
FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")
MAX_LINES = 500
MAX_MODULES = 12
MIN_LINES = 60
TABLES = ("src/fragflow/graph/replicas/rules/table.py",)
"""tables are as long as what they list"""
APART = "Apart: "


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def package_of(path: Path) -> str:
    """`fragflow.graph` for files below that folder, `fragflow` for modules at the top."""
    return ".".join(path.relative_to(ROOT / "src").parent.parts[:2])


def too_long(lines: Mapping[Path, int]) -> Iterator[str]:
    tables = {ROOT / table for table in TABLES}
    for path, count in lines.items():
        if count > MAX_LINES and path not in tables:
            yield f"{path.relative_to(ROOT)} has {count} lines; the limit is {MAX_LINES}: split it"


def too_full(lines: Mapping[Path, int]) -> Iterator[str]:
    modules = Counter(
        path.parent for path in lines if path.is_relative_to(PACKAGE) and path.name != "__init__.py"
    )
    for folder, count in modules.items():
        if count > MAX_MODULES:
            place = folder.relative_to(ROOT)
            yield f"{place} has {count} modules; the limit is {MAX_MODULES}: give it rooms"


def too_small(lines: Mapping[Path, int]) -> Iterator[str]:
    importers = _importers([path for path in lines if path.is_relative_to(PACKAGE)])
    for path, count in lines.items():
        users = importers.get(path, set())
        if path.name == "__init__.py" or count >= MIN_LINES or len(users) != 1:
            continue
        (user,) = users
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if user.name != "__init__.py" and APART not in doc.partition("\n")[0]:
            yield (
                f"{path.relative_to(ROOT)} has {count} lines and one user: merge it into "
                f"{user.relative_to(ROOT)}, or say in its first line why not "
                f'("{APART}...")'
            )


def _importers(paths: list[Path]) -> dict[Path, set[Path]]:
    """By module, those that import it or something in it."""
    modules = {_name(path): path for path in paths}
    found: dict[Path, set[Path]] = defaultdict(set)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in names:
                if name in modules:
                    found[modules[name]].add(path)
    return found


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    lines = {
        path: count_lines(path)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    packages: Counter[str] = Counter()
    for path, count in lines.items():
        if path.is_relative_to(PACKAGE):
            packages[package_of(path)] += count
    for package, count in sorted(packages.items()):
        print(f"{count:6} {package}")
    print(f"{packages.total():6} total")
    wrong = [*too_long(lines), *too_full(lines), *too_small(lines)]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
