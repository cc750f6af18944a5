"""Nothing is remembered where a reader, or a test, would not look for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fragflow

SOURCE = Path(fragflow.__file__).parent
TREES = {
    str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}

CACHES = {
    "api/kernel.py:KERNELS": "kernels that were declared; a decorator adds to it, for all to see",
    "environments/wrapping/wrappers.py:_bounds": "a pure function's results",
    "environments/wrapping/wrappers.py:_centre_and_reach": "likewise",
    "graph/probe/double_precision.py:_least_time": "options that this jaxlib knows",
    "graph/replicas/interpret.py:_known": "a pure function's results, by jaxpr, and gone with it",
    "graph/replicas/rules/table.py:_TABLE": "the table of rules, filled when it is imported",
    "ops/kernels/native.py:_load": "a library is loaded once for a process",
    "remote/transport/frames.py:_packed": "a pure function's results",
    "remote/transport/frames.py:_unpacked": "likewise",
    "runtime/programs/devices.py:_model_of_cpu": "the processor of this process",
    "runtime/programs/devices.py:are_loops_apart": "what XLA was started with, for this process",
    "runtime/promises/run_probe.py:_how": "the code of this process",
    "tools/experiment/restore_settings.py:_runs": "runs that are under way: the last one puts back",
}
"""module-level caches, each with the reason why it can never be out of date"""

VARIABLES = {
    "remote/launch/ray_connect.py": "Ray reads its token there alone; put back at once",
    "runtime/programs/devices.py": "XLA reads NPROC and XLA_FLAGS there alone",
    "tools/experiment/restore_settings.py": "puts back what a run has set",
    "tools/inputs/options.py": "a help's width; put back at once",
}
"""modules that set variables of the process, each with the reason"""


CONTAINERS = ("dict", "list", "set", "defaultdict", "deque", "Counter", "WeakKeyDictionary")


def is_cache(decorator: ast.expr) -> bool:
    return "cache" in ast.unparse(decorator).rpartition(".")[2]


def is_mutable(value: ast.expr) -> bool:
    """True for an empty container, a call that makes one, and an object of a class of ours."""
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in CONTAINERS or (name.startswith("_") and name[1:2].isupper())
        case _:
            return False


def caches() -> Iterator[str]:
    """Cached functions, and what modules have that can grow."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(map(is_cache, node.decorator_list)):
                yield f"{name}:{node.name}"
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and is_mutable(node.value):
                    yield f"{name}:{target.id}"


def test_every_cache_of_a_module_says_why() -> None:
    assert set(caches()) == set(CACHES)


def written(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What is assigned to by subscript or grows by a method, and the line that does it."""
    adding = ("append", "add", "update", "setdefault", "extend", "pop", "clear")
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
                yield ast.unparse(owner), ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=owner, attr=verb)) if verb in adding:
                yield ast.unparse(owner), ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="__setattr__")):
                yield "self.", ast.unparse(node)
            case _:
                pass


def test_few_modules_set_variables_of_the_process() -> None:
    setting = {n for n, tree in TREES.items() if any(o == "os.environ" for o, _ in written(tree))}
    assert setting == set(VARIABLES)


def test_what_is_frozen_remembers_nothing() -> None:
    """No method of a frozen record adds to one of its fields."""
    records = [
        (name, record)
        for name, tree in TREES.items()
        for record in ast.walk(tree)
        if isinstance(record, ast.ClassDef)
        and any("frozen=True" in ast.unparse(d) for d in record.decorator_list)
    ]
    assert len(records) > 100
    found = [
        f"{name}: {line}"
        for name, record in records
        for owner, line in written(record)
        if owner.startswith(("self.", "vars(self)"))
    ]
    assert found == []
