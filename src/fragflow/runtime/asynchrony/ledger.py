"""A record of the parameter versions that workers use. Apart: pure, tested without threads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A pure record: workers begin with a version, and the server handles their messages.

    Handling a message makes a new version. The lag of a message is the number of versions made
    after its worker began and before it is handled; it never exceeds `bound`.
    """

    bound: int
    version: int = 0
    under_way: tuple[tuple[int, int], ...] = ()
    """(worker, version) of messages begun and not yet handled, in the order of beginning"""

    def begin(self, worker: int) -> "Ledger":
        """Records that a worker begins with the newest version."""
        return replace(self, under_way=(*self.under_way, (worker, self.version)))

    def choose(self, waiting: Sequence[int]) -> int | None:
        """Chooses a worker whose message to handle: the first that lets all others be in time.

        Messages under way are like jobs with deadlines, one of which can be done at a time: all can
        be in time if the i-th most urgent can wait for i others. The most urgent may always be
        handled; others only while enough time is left. None if no message can be.
        """
        return next((w for w in dict.fromkeys(waiting) if self._all_in_time(w)), None)

    def handle(self, worker: int) -> tuple["Ledger", int]:
        """Records that a worker's oldest message was handled; returns its lag as well."""
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
