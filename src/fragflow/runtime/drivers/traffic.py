"""What replicas have sent one another: counted where it is handed over."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Sent:
    """By one sender: whose thread alone adds to it."""

    messages: int = 0
    bytes: int = 0
    """of the arrays in them"""

    def add(self, arrays: Iterable[Any], times: int = 1) -> None:
        """Counts a message."""
        self.messages += times
        self.bytes += times * size_of(arrays)


def size_of(arrays: Iterable[Any]) -> int:
    """Bytes in a message; None in it is what its sender leaves to another one."""
    return sum([array.nbytes for array in arrays if array is not None])


def together(parts: Iterable[Sent]) -> Sent:
    """What several senders have sent, as it is now."""
    found = list(parts)
    return Sent(messages=sum(p.messages for p in found), bytes=sum(p.bytes for p in found))
