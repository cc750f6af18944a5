"""Holes made on purpose: a rule of the analysis without what it refuses.

The hunt is as good as what it would find. A rule is replaced by one that, where the right one says
that nothing is known, lets the operand's kind through: as if its restrictions had been forgotten.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from fragflow.graph import replicas
from fragflow.graph.kinds import Kind, Tag
from fragflow.graph.pair import Pair

PROOFS = ("linear", "monotone", "homogeneous")


def _tables() -> list[dict[str, Any]]:
    """Where rules are found by a primitive's name: one table, or those that are asked in turn."""
    one = getattr(replicas, "TABLE", None)
    if one is not None:
        return [one]
    return [replicas.RULES, replicas.INDEX_RULES]  # pyright: ignore[reportAttributeAccessIssue]


def ruled() -> list[str]:
    """Primitives that have a rule of their own."""
    names = {name for table in _tables() for name, entry in table.items() if _rule(entry)}
    return sorted(names - {"all_reduce", "host_call", "host_program"})


def _rule(entry: Any) -> Callable[..., Any] | None:
    return entry if callable(entry) else entry.rule


def _without_refusals(rule: Callable[..., Any]) -> Callable[[Pair, Sequence[Kind]], Any]:
    def lax(pair: Pair, kinds: Sequence[Kind]) -> Any:
        result = rule(pair, kinds)
        results = result if isinstance(result, list) else [result] * len(pair.a.outvars)
        return [_let_through(kinds, k) for k in results]

    return lax


def _let_through(kinds: Sequence[Kind], result: Kind) -> Kind:
    """The kind of the operand that says most, with its axis as it was."""
    if result.tag is not Tag.MIXED or not kinds:
        return result
    for tag in (Tag.PARTIAL, Tag.VARYING, Tag.UNIFORM):
        for kind in kinds:
            if kind.tag is tag:
                return replace(kind, zero=False)
    return result


@contextmanager
def unrestricted(primitive: str) -> Iterator[None]:
    """The analysis with all restrictions of one primitive's rule removed."""
    table = next(t for t in _tables() if primitive in t)
    entry = table[primitive]
    table[primitive] = _lax_entry(entry)
    _forget()
    try:
        yield
    finally:
        table[primitive] = entry
        _forget()


def _forget() -> None:
    """What was found of jaxprs with other rules: those of library functions are met again."""
    replicas._known.clear()


def _lax_entry(entry: Any) -> Any:
    if callable(entry):
        return _without_refusals(entry)
    names = {f.name for f in fields(entry)}
    proofs = {name: "removed" for name in PROOFS if name in names}
    return replace(entry, rule=_without_refusals(entry.rule), **proofs)
