"""Messages between fragments: whole values, or pieces that are cut and joined here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from fragflow._all_reduce import as_summed
from fragflow._jax import apart, is_key, plain_aval, wrapped_key
from fragflow.graph.ir import FDG, REDUCTIONS, Parcel, Transfer, Value
from fragflow.runtime.planning.instructions import routes


def piece_name(value: Value, k: int) -> Value:
    """The name of the k-th piece of a value that is cut or joined. No value of a program has it."""
    return f"piece {k} of {value}"


@dataclass(frozen=True, slots=True)
class Fan:
    """The numbers of replicas at both ends of a message, and the routes between them."""

    sources: int
    targets: int
    crossed: bool

    @property
    def receivers(self) -> int:
        """The number of receivers of each sender."""
        return self.targets if self.crossed else max(self.targets // self.sources, 1)

    @property
    def senders(self) -> int:
        """The number of senders to each receiver."""
        return self.sources if self.crossed else max(self.sources // self.targets, 1)

    @property
    def routes(self) -> tuple[tuple[int, int], ...]:
        """The (sending, receiving) replicas."""
        return routes(self.sources, self.targets, self.crossed)


def fan(fdg: FDG, transfer: Transfer) -> Fan:
    source, target = fdg.fragments[transfer.source], fdg.fragments[transfer.target]
    return Fan(source.replicas, target.replicas, transfer.crossed)


def is_joined(parcel: Parcel) -> bool:
    """True if a receiver needs a piece from every sender, not only the first sender's value."""
    return parcel.join is not None or parcel.collective in REDUCTIONS


def is_sent(parcel: Parcel, sender: int, fan: Fan) -> bool:
    """True if `sender` sends this parcel: only the first sender does, unless pieces are joined."""
    return is_joined(parcel) or sender % fan.senders == 0


def outgoing(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a sender: one per receiver, or one for all."""
    pieces = fan(fdg, transfer).receivers
    return [
        [piece_name(p.value, k) for k in range(pieces)] if p.cut is not None else [p.value]
        for p in transfer.parcels
    ]


def incoming(fdg: FDG, transfer: Transfer) -> Sequence[Sequence[Value]]:
    """Per parcel, the names of its pieces at a receiver: one per sender, or one from the first."""
    pieces = fan(fdg, transfer).senders
    return [
        [piece_name(p.value, k) for k in range(pieces)] if is_joined(p) else [p.value]
        for p in transfer.parcels
    ]


def wholes(fdg: FDG, name: str) -> dict[Value, Value]:
    """Maps the name of each piece that a fragment sends or receives to that of the whole value."""
    return {
        piece: parcel.value
        for transfer in fdg.transfers
        for end, pieces_of in ((transfer.source, outgoing), (transfer.target, incoming))
        if end == name
        for parcel, pieces in zip(transfer.parcels, pieces_of(fdg, transfer), strict=True)
        for piece in pieces
    }


def splitter(pieces: int, axis: int) -> Callable[..., Sequence[Any]]:
    """Cuts a value for a scatter."""

    def split(whole: Any) -> Sequence[Any]:
        return jnp.split(whole, pieces, axis)

    return split


def joiner(parcel: Parcel, aval: Any) -> Callable[..., Sequence[Any]]:
    """Joins the pieces of a gather or a reduction."""

    def gather(*parts: Any) -> Sequence[Any]:
        return (jnp.concatenate(parts, parcel.join),)

    def reduce(*parts: Any) -> Sequence[Any]:
        # Summed in the order of replicas, not of arrival.
        shaped = [as_summed(part.reshape(aval.shape)) for part in parts]
        total = shaped[0]
        for part in shaped[1:]:
            total = jnp.maximum(total, part) if parcel.collective == "reduce-max" else total + part
        total = total / len(parts) if parcel.collective == "reduce-mean" else total
        return (total.astype(aval.dtype),)

    return apart(reduce if parcel.join is None else gather)


def zeros(aval: Any) -> Callable[..., Sequence[Any]]:
    """Makes the buffer that a loop's output is collected in."""

    def make() -> Sequence[Any]:
        if is_key(aval):
            plain = plain_aval(aval)
            return (wrapped_key(jnp.zeros(plain.shape, plain.dtype), aval),)
        return (jnp.zeros(aval.shape, aval.dtype),)

    return make


def take_row(whole: Any, step: Any) -> Sequence[Any]:
    """The row of a loop's input that a step reads."""
    return (lax.dynamic_index_in_dim(whole, step, 0, keepdims=False),)


def put_row(buffer: Any, element: Any, step: Any) -> Sequence[Any]:
    """A loop's output with the row of this step filled in."""
    return (lax.dynamic_update_index_in_dim(buffer, element, step, 0),)
