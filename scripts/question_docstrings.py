"""Fail where too many docstrings begin with a question word: name the thing, or say what it does.

`--list` prints them.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_QUESTIONS = 40
WORDS = {"what", "whether", "where", "who", "which", "how", "why", "when", "whose"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def questions(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and first lines of those docstrings in a file, of fields and constants too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in node.body if isinstance(node, Documented) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    words = text.split()
                    if words and words[0].lower().strip(",:") in WORDS:
                        yield statement.lineno, text.strip().splitlines()[0]


def main() -> int:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in questions(path)
    ]
    if "--list" in sys.argv:
        print("\n".join(found))
    print(f"{len(found)} docstrings begin with a question word; the limit is {MAX_QUESTIONS}")
    return 1 if len(found) > MAX_QUESTIONS else 0


if __name__ == "__main__":
    sys.exit(main())
