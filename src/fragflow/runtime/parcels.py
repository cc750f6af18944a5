"""What a message consists of at either end: whole values, or pieces of them."""

from collections.abc import Sequence

from fragflow.graph.ir import FDG, Parcel, Transfer, Value


def part_name(value: Value, k: int) -> Value:
    """The name of the k-th piece of a value that is cut or joined."""
    return f"{value}#{k}"


def share(fdg: FDG, transfer: Transfer) -> int:
    """How many replicas of the larger side belong to one of the smaller."""
    source = fdg.fragments[transfer.source].replicas
    target = fdg.fragments[transfer.target].replicas
    return max(source, target) // min(source, target)


def is_divided(parcel: Parcel) -> bool:
    """Whether the value travels in pieces, one per replica of the larger side."""
    return parcel.collective in ("gather", "scatter") or parcel.collective.startswith("reduce-")


def outgoing(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a sender: one per receiver, or one for all."""
    pieces = share(fdg, transfer)
    return [
        [part_name(p.value, k) for k in range(pieces)] if p.collective == "scatter" else [p.value]
        for p in transfer.parcels
    ]


def incoming(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a receiver: one per sender, or one from the first."""
    sources = fdg.fragments[transfer.source].replicas
    targets = fdg.fragments[transfer.target].replicas
    pieces = sources // targets if sources > targets else 1
    return [
        [part_name(p.value, k) for k in range(pieces)]
        if pieces > 1 and is_divided(p)
        else [p.value]
        for p in transfer.parcels
    ]
