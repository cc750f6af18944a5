"""State that is written into, not copied: replay buffers are large and change little."""

from fragflow.graph.dataflow import num_bytes
from fragflow.graph.ir import FDG, Fragment, Value

LARGE_BYTES = 1 << 20
"""below this a copy costs less than a call"""


def large_state(fdg: FDG, fragment: Fragment) -> dict[Value, Value]:
    """By its name in an iteration, what each large leaf of the state is at the iteration's end.

    Not what is sent: its receiver has the same array. None where fragments run ahead of one
    another: there the last state is looked at while the next one is being made.
    """
    if fdg.delays or fdg.server is not None:
        return {}
    avals = fdg.program.avals[fragment.extent]
    carries = fragment.loop.carries
    shared = {c.next for c in carries if c.next == c.inside}
    shared |= {parcel.value for transfer in fdg.transfers for parcel in transfer.parcels}
    return {
        c.inside: c.next
        for c in carries
        if not {c.inside, c.next} & shared and num_bytes(avals[c.inside]) >= LARGE_BYTES
    }
