"""What a message consists of at either end: whole values, or pieces of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fragflow.graph.ir import FDG, Parcel, Transfer, Value
from fragflow.runtime.schedule import routes


def part_name(value: Value, k: int) -> Value:
    """The name of the k-th piece of a value that is cut or joined."""
    return f"{value}#{k}"


@dataclass(frozen=True, slots=True)
class Fan:
    """How the replicas at both ends of a message belong together."""

    sources: int
    targets: int
    crossed: bool

    @property
    def receivers(self) -> int:
        """of each sender"""
        return self.targets if self.crossed else max(self.targets // self.sources, 1)

    @property
    def senders(self) -> int:
        """to each receiver"""
        return self.sources if self.crossed else max(self.sources // self.targets, 1)

    @property
    def routes(self) -> tuple[tuple[int, int], ...]:
        """The (sending, receiving) replicas."""
        return routes(self.sources, self.targets, self.crossed)


def fan(fdg: FDG, transfer: Transfer) -> Fan:
    source, target = fdg.fragments[transfer.source], fdg.fragments[transfer.target]
    return Fan(source.replicas, target.replicas, transfer.crossed)


def is_joined(parcel: Parcel) -> bool:
    """Whether a receiver needs a piece of every sender; else the first sender's will do."""
    return parcel.join is not None or parcel.collective.startswith("reduce-")


def is_sent(parcel: Parcel, sender: int, fan: Fan) -> bool:
    """Whether a sender has something to send of a value."""
    return is_joined(parcel) or sender % fan.senders == 0


def outgoing(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a sender: one per receiver, or one for all."""
    pieces = fan(fdg, transfer).receivers
    return [
        [part_name(p.value, k) for k in range(pieces)] if p.cut is not None else [p.value]
        for p in transfer.parcels
    ]


def incoming(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a receiver: one per sender, or one from the first."""
    pieces = fan(fdg, transfer).senders
    return [
        [part_name(p.value, k) for k in range(pieces)] if is_joined(p) else [p.value]
        for p in transfer.parcels
    ]
