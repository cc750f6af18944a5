"""Statements as lines of Python that fit a width: what is too long is broken at its brackets."""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

WIDTH = 100
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Slot:
    """A name that is decided once all are known."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Group:
    """Items between brackets, with commas."""

    items: "tuple[Part, ...]"
    brackets: str = "()"
    is_tuple: bool = False
    """a single item is followed by a comma"""
    is_bare: bool = False
    """brackets are left out where they can be"""

    @property
    def flat(self) -> str:
        """All in one line."""
        inner = ", ".join(map(flat, self.items))
        if self.is_bare and (len(self.items) > 1 or (self.items and not self.is_tuple)):
            return inner
        comma = "," if self.is_tuple and len(self.items) == 1 else ""
        return f"{self.brackets[0]}{inner}{comma}{self.brackets[1]}"


Part: TypeAlias = str | Slot | Group
Statement: TypeAlias = tuple[Part, ...]
"""its parts, one after the other"""


def filled_in(part: Part, names: Mapping[Hashable, str]) -> Part:
    """A part with names in its slots."""
    match part:
        case Slot(key):
            return names[key]
        case Group(items):
            return replace(part, items=tuple(filled_in(item, names) for item in items))
        case str():
            return part


def flat(part: Part) -> str:
    assert not isinstance(part, Slot), "names are filled in before lines are written"
    return part if isinstance(part, str) else part.flat


def lines_of(statement: Statement, depth: int, comment: str = "") -> list[str]:
    """Writes a statement at a depth of blocks, with a comment behind it, or above if that is long.

    As few of its groups are broken as will do, the last ones if there is a choice.
    """
    indent = INDENT * depth
    whole = indent + "".join(map(flat, statement))
    behind = f"{whole}  # {comment}" if comment else whole
    if len(behind) <= WIDTH:
        return [behind]
    above = _filled(comment.split(" "), f"{indent}# ", " ") if comment else []
    groups = [k for k, part in enumerate(statement) if isinstance(part, Group) and part.items]
    lines = [whole]
    for count in range(1, len(groups) + 1):
        for broken in itertools.combinations(reversed(groups), count):
            if max(map(len, lines)) > WIDTH:
                lines = _broken(statement, broken, depth)
    return [*above, *lines]


def _broken(statement: Statement, broken: Sequence[int], depth: int) -> list[str]:
    """The lines of a statement some of whose groups have lines of their own."""
    lines = [INDENT * depth]
    for k, part in enumerate(statement):
        if k in broken and isinstance(part, Group):
            lines[-1] += part.brackets[0]
            lines += _items(part, depth + 1)
            lines.append(INDENT * depth + part.brackets[1])
        else:
            lines[-1] += flat(part)
    return lines


def _items(group: Group, depth: int) -> list[str]:
    """The items of a broken group: as many in a line as fit, groups that are too long below."""
    indent = INDENT * depth
    lines: list[str] = []
    row: list[str] = []
    for item in group.items:
        if isinstance(item, Group) and len(indent + item.flat) >= WIDTH:
            lines += [*_filled(row, indent, ", ", ","), *lines_of((item, ","), depth)]
            row = []
        else:
            row.append(flat(item))
    lines += _filled(row, indent, ", ", ",")
    is_single_value = len(group.items) == 1 and not group.is_tuple
    return [line.removesuffix(",") for line in lines] if is_single_value else lines


def _filled(words: Sequence[str], indent: str, between: str, end: str = "") -> list[str]:
    """Joins words to lines that are as long as may be; each ends with `end`."""
    lines: list[str] = []
    row = ""
    for word in words:
        longer = f"{row}{between}{word}" if row else indent + word
        if row and len(longer + end) > WIDTH:
            lines.append(row + end)
            longer = indent + word
        row = longer
    return [*lines, row + end] if row else lines
