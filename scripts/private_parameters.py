"""Fail where a file other than `_jax.py` reads what equations of control flow look like inside.

JAX changes these parameters from release to release (`scan` has lost `num_consts` and `num_carry`),
so that they have one reader: `scan_of`, `while_of`, `branches_of`, `called_by` and `num_turns`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READERS = ("_jax.py", "_jax_process.py")
_NAMES = """
jaxpr call_jaxpr fun_jaxpr cond_jaxpr body_jaxpr branches jvp_jaxpr_fun jvp_jaxpr_thunk
num_consts num_carry cond_nconsts body_nconsts ft_in ft_out length reverse linear unroll
"""
PARAMETERS = frozenset(_NAMES.split())


def readings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines at which such a parameter is a subscript, the argument of `get`, or looked for."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                pass
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
                pass
            case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()]):
                pass
            case _:
                continue
        if name in PARAMETERS:
            yield node.lineno, name


def main() -> int:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name!r} is private to JAX: add a reader to _jax.py"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path.name not in READERS
        for line, name in readings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    print("\n".join(found) or "no parameter of control flow is read outside of _jax.py")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
