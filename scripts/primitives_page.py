"""Writes docs/primitives.md: every primitive of JAX, how it is treated, and which test shows it.

python scripts/primitives_page.py          prints it
python scripts/primitives_page.py --write  writes the file

Nothing in it is said by hand: rules, and what may enter them, are those of the table; of what has
no rule the check itself is asked, with the programs of its tests.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import fragflow as ff  # noqa: E402
from fragflow._jax import CALLS, Eqn  # noqa: E402
from fragflow.graph.fragment_extent import environments_axis  # noqa: E402
from fragflow.graph.replicas.interpret import Context, analyse  # noqa: E402
from fragflow.graph.replicas.kinds import UNIFORM, Kind, Tag, varying  # noqa: E402
from fragflow.graph.replicas.rules.table import TABLE, Entry  # noqa: E402
from graph import test_families, test_outside, test_rows, test_unknown  # noqa: E402
from graph.families import BY_ALL, FAMILIES  # noqa: E402
from graph.telling import TIME, Told  # noqa: E402
from graph.toy import Drift  # noqa: E402
from hunt.catalogue import MODULES  # noqa: E402
from hunt.primitives import NOT_DRAWN, all_primitives  # noqa: E402

PAGE = ROOT / "docs" / "primitives.md"
OURS = {"all_reduce", "host_call", "host_program"}
"""fragflow's own primitives"""
SIZES = (4, 2)
"""environments of all, and of one of two replicas"""
INTRODUCTION = """\
# Primitives

Every primitive that JAX {version} lists (`jax.extend.core.primitives`), how the [replica
check](soundness.md) treats it where replicas depend on it, and which test shows that. Primitives of
extensions, such as Pallas and sparse arrays, have no rule: what has none and is not believed by
JAX's batching rule is refused. This page is made by `python scripts/primitives_page.py --write`,
which asks the check; a test keeps it true.

Where all operands are the same on all replicas, and none is a number of environments, results are
so too, whatever the primitive: unless it reads from outside of the program.

What shows it:

- *proofs*: each of the first three marks has a proof in
  `src/fragflow/graph/replicas/rules/table.py`, and a case with numbers in
  `tests/graph/test_rule_table.py`.
- *hunt*: it is drawn at random, with operands of every kind, and every claim is tried with numbers.
  How often is counted in [proofs](proofs.md).
- Another name is that of a program in `tests/graph`: in `families.py`, if no file is named.

"""
RULES = """\
## With a rule

Rows may enter all of these, and the rule says what becomes of them. The marks say what else may:
parts of a *sum*; parts of a *maximum* or a minimum; a *scale*, which is a value that grows or
shrinks with the number of environments; a row's own *number*. What has no mark is refused.

| primitive | rule | sum | maximum | scale | number | shown by |
|---|---|---|---|---|---|---|
"""
OPENED = """\
## Read inside

Calls, loops and branches are what is inside them, equation by equation. A loop's end must be the
same on all replicas, or each row's own; the choice of a branch must be the same.

| primitive | read by | shown by |
|---|---|---|
"""
BATCHED = """\
## Believed by JAX's batching rule

These have no rule. Rows may enter where there is an equation of one row, of which JAX's own
batching rule makes this very equation, in the program of all environments and in that of a replica.
Nothing else may.

| primitive | shown by |
|---|---|
"""
ALONE = """\
## Without operands or results

| primitive | why nothing is asked of it | shown by |
|---|---|---|
"""
REFUSED = """\
## Refused

| primitive | what is said of it | shown by |
|---|---|---|
"""
UNKNOWN = """\
## Not met

These have no rule either, and no program above asks about them. Nothing is believed of their names:
given rows, a part of a sum or a count of environments, an equation with each of these names is
refused at the user's line (`tests/graph/test_unknown.py`).

| primitives | why no program asks |
|---|---|
"""
OTHERS = """\
## Of other versions of JAX

These have a rule, and are no primitives of JAX {version}: {names}.
"""


BY_NAME = "by its name (test_unknown.py)"
"""what shows that a call is read, whether a function of JAX makes it or not"""


class Asked(NamedTuple):
    """A program of the tests that the check is asked about."""

    name: str
    tell: Callable[[Told], Any]
    may_be_refused: bool = False


def asked() -> Iterator[Asked]:
    """The programs of the families, then those that are refused."""
    for functions in FAMILIES.values():
        for name, function in functions.items():
            yield Asked(name, functools.partial(_of_rows, {name: function}))
    for name, function in BY_ALL.items():
        yield Asked(name, functools.partial(_of_all, function))
    for name, tell in test_unknown.UNPROVEN.items():
        yield Asked(f"{name} (test_unknown.py)", tell, may_be_refused=True)
    for name, tell in test_outside.OUTSIDE.items():
        yield Asked(f"{name} (test_outside.py)", tell, may_be_refused=True)
    for name, (rows, _) in test_rows.ROWS.items():
        yield Asked(f"{name} (test_rows.py)", rows, may_be_refused=True)


def _of_rows(functions: Any, t: Told) -> Any:
    return test_families.of_rows(functions, t.x[0], t.env.keys(t.key))


def _of_all(function: Callable[[Any], Any], t: Told) -> Any:
    return function(t.x[0])


class Answer(NamedTuple):
    """What the check says of a primitive in a program."""

    program: str
    reason: str = ""
    """why it is refused, if it is"""


class Watching(Context):
    """A context that keeps what is said of each primitive first."""

    program: ClassVar[str] = ""
    accepted: ClassVar[dict[str, list[str]]] = {}
    """by a primitive, the programs in which rows may enter it"""
    alone: ClassVar[dict[str, Answer]] = {}
    """of those without operands or results, which of them they are without"""
    refused: ClassVar[dict[str, Answer]] = {}

    def apply(self, a: Eqn, b: Eqn, kinds: Sequence[Kind]) -> list[Kind]:
        results, name = super().apply(a, b, kinds), a.primitive.name
        if any(k.tag is Tag.MIXED for k in kinds):
            return results
        bad = next((k for k in results if k.tag is Tag.MIXED), None)
        if bad is not None:
            Watching.refused.setdefault(name, Answer(Watching.program, bad.reason))
        elif any(k.tag is Tag.VARYING for k in kinds):
            Watching.accepted.setdefault(name, []).append(Watching.program)
        if not (kinds and results):
            without = "results, on which anything could depend" if kinds else "operands"
            Watching.alone.setdefault(name, Answer(Watching.program, f"has no {without}"))
        return results


def ask() -> None:
    """Lets the check read all programs, as two replicas would run them."""
    context = Watching(axis=environments_axis(*SIZES))
    kinds = [varying(0), varying(1), UNIFORM, UNIFORM, UNIFORM]
    for program in asked():
        Watching.program = program.name
        whole, part = (_trace(program.tell, n) for n in SIZES)
        results = analyse(whole, part, kinds, context)
        bad = next((k for k in results if k.tag is Tag.MIXED), None)
        if bad is not None and not program.may_be_refused:
            raise SystemExit(f"{program.name} is refused: it {bad.reason} ({bad.line})")


def _trace(tell: Callable[[Told], Any], n: int) -> Any:
    def told(ids: Any, x: Any, m: Any, weights: Any, key: Any) -> Any:
        return tell(Told(ff.Environments(Drift(), ids, SIZES[0]), n, x, m, weights, key))

    shapes = ((n,), "int32"), ((TIME, n, 3), "float32"), ((), "float32"), ((24,), "float32")
    avals = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    return jax.make_jaxpr(told)(*avals, jax.eval_shape(lambda: jax.random.key(0)))


def page() -> str:
    """The whole page."""
    for module in MODULES:
        importlib.import_module(module)
    ask()
    names = sorted(all_primitives())
    entries = {name: TABLE[name] for name in names if name in TABLE}
    others = [name for name in names if name not in TABLE]
    alone = [name for name in others if name in Watching.alone]
    met = [name for name in others if name in Watching.accepted and name not in alone]
    refused = [name for name in others if name in Watching.refused.keys() - {*met, *alone}]
    unmet = [name for name in others if name not in {*alone, *met, *refused}]
    version = jax.__version__
    parts = [
        INTRODUCTION.format(version=version),
        RULES,
        *(_ruled(name, entry) for name, entry in entries.items() if entry.rule),
        "\n" + OPENED,
        *(_opened(name, entry) for name, entry in entries.items() if entry.opened),
        "\n" + BATCHED,
        *(_line(f"`{name}`", _shown(name, *_program(name))) for name in met),
        "\n" + ALONE,
        *(_answered(name, Watching.alone[name]) for name in alone),
        "\n" + REFUSED,
        *(_answered(name, Watching.refused[name]) for name in refused),
        "\n" + UNKNOWN,
        *_unmet(unmet),
        "\n" + OTHERS.format(version=version, names=_listed(TABLE.keys() - OURS - set(names))),
    ]
    return "".join(parts)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _shown(name: str, *others: str) -> str:
    return "; ".join([*(("hunt",) if name not in NOT_DRAWN else ()), *others])


def _ruled(name: str, entry: Entry) -> str:
    facts = (entry.linear, entry.monotone, entry.homogeneous, entry.numbers)
    proofs = ("proofs",) if any(facts[:3]) else ()
    marks = ("✓" if fact else "" for fact in facts)
    return _line(f"`{name}`", _called(entry.rule), *marks, _shown(name, *proofs, *_own(name)))


def _opened(name: str, entry: Entry) -> str:
    by_name = (BY_NAME,) if name in CALLS else ()
    return _line(f"`{name}`", _called(entry.opened), _shown(name, *_own(name), *by_name))


def _program(name: str) -> list[str]:
    """The first program that has a primitive, or that of its name."""
    programs = Watching.accepted.get(name, [])
    return [p for p in programs if p.rpartition(".")[2] == name][:1] or programs[:1]


def _own(name: str) -> list[str]:
    """The program of its name; any other, if it is not drawn at random."""
    return [p for p in _program(name) if name in NOT_DRAWN or p.rpartition(".")[2] == name]


def _called(rule: Any) -> str:
    """The file and the name of a rule, or of what made it."""
    file, name = rule.__module__.rpartition(".")[2], rule.__qualname__.partition(".")[0]
    return f"`{name}` in `{file}.py`"


def _answered(name: str, answer: Answer) -> str:
    return _line(f"`{name}`", answer.reason, _shown(name, answer.program))


def _unmet(names: Sequence[str]) -> Iterator[str]:
    reasons = {name: NOT_DRAWN.get(name, "drawn by the hunt only") for name in names}
    for reason in sorted(set(reasons.values())):
        yield _line(_listed(name for name in names if reasons[name] == reason), reason)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
