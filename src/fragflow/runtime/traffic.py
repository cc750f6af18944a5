"""Traffic between replicas, counted where messages are handed over."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Sent:
    """The traffic of one sender; only the sender's thread adds to it."""

    messages: int = 0
    bytes: int = 0
    """of the arrays in them"""

    def add(self, arrays: Iterable[Any], times: int = 1) -> None:
        """Counts a message."""
        self.messages += times
        self.bytes += times * size_of(arrays)


def size_of(arrays: Iterable[Any]) -> int:
    """Bytes in a message; None in it stands for a value that another sender sends."""
    return sum([array.nbytes for array in arrays if array is not None])


def together(parts: Iterable[Sent]) -> Sent:
    """Sums the traffic of several senders, as it is now."""
    found = list(parts)
    return Sent(messages=sum(p.messages for p in found), bytes=sum(p.bytes for p in found))
