"""Which versions of parameters workers use. Apart: pure, and tested without threads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A pure record: workers begin with a version, and the server handles what they made of it.

    Handling a message makes a new version. The lag of a message is the number of versions made
    between its worker's beginning and its being handled; it never exceeds `bound`.
    """

    bound: int
    version: int = 0
    under_way: tuple[tuple[int, int], ...] = ()
    """(worker, version) of what was begun and not yet handled, in the order of beginning"""

    def begin(self, worker: int) -> "Ledger":
        """A worker takes the newest version."""
        return replace(self, under_way=(*self.under_way, (worker, self.version)))

    def choose(self, waiting: Sequence[int]) -> int | None:
        """Whose message to handle: the first that lets all others be in time, if there is one.

        Messages under way are like jobs with deadlines, one of which can be done at a time: all can
        be in time if the i-th most urgent can wait for i others. The most urgent may always be
        handled; others only while enough time is left.
        """
        return next((w for w in dict.fromkeys(waiting) if self._all_in_time(w)), None)

    def handle(self, worker: int) -> tuple["Ledger", int]:
        """The server has learnt from a worker's oldest message; also, its lag."""
        position = self._position(worker)
        lag = self.version - self.under_way[position][1]
        rest = self.under_way[:position] + self.under_way[position + 1 :]
        return replace(self, version=self.version + 1, under_way=rest), lag

    def _position(self, worker: int) -> int:
        return next(k for k, (owner, _) in enumerate(self.under_way) if owner == worker)

    def _all_in_time(self, worker: int) -> bool:
        after, _ = self.handle(worker)
        slack = sorted(self.bound - (after.version - begun) for _, begun in after.under_way)
        return all(s >= others for others, s in enumerate(slack))
