"""Finds fragments that another process can take over when theirs is lost, and the state to keep."""

from typing import Literal

from fragflow._jax import hosts_compiled_into
from fragflow.api.host import Host
from fragflow.graph.ir import FDG, Fragment, Op, Value, is_host_call, walk
from fragflow.graph.passes.collectives import crossings
from fragflow.graph.passes.dataflow import num_bytes
from fragflow.graph.replicas.kinds import UNIFORM, Tag

Recovery = Literal["replay", "restart"]
"""replay: makes the lost iteration again, with the same result. restart: begins with new episodes;
a half-made iteration is dropped"""


def recovery_of(fdg: FDG, fragment: Fragment) -> Recovery | None:
    """The way in which a replica is replaced; None if it cannot be.

    Its state must belong to its environments, apart from what other fragments send it anyway.
    """
    has_messages = any(fragment.name in (t.source, t.target) for t in fdg.transfers)
    if fragment.group or fragment.name == fdg.server or not has_messages:
        return None
    own = own_state(fdg, fragment)
    if any(fdg.row_kinds.get(value, UNIFORM).tag is not Tag.VARYING for value in own):
        return None
    if fdg.server is not None:
        return "restart"
    if host_of(fragment) is None:
        return "replay"
    # Environments on the host cannot go back, so nothing of a broken rollout may have been used.
    times = crossings(fdg)
    is_whole = all(times[t.name] == 1 for t in fdg.transfers if t.source == fragment.name)
    return "restart" if is_whole else None


def own_state(fdg: FDG, fragment: Fragment) -> list[Value]:
    """State that changes and that no other fragment knows, by name inside the training loop."""
    sent = set(mirrors(fdg, fragment).values())
    carries = fragment.loop.carries
    return [c.inside for c in carries if c.next != c.inside and c.inside not in sent]


def kept_bytes(fdg: FDG, fragment: Fragment) -> int:
    """Bytes of a replica's state that are kept after every iteration, off its process."""
    avals = fdg.program.avals[fragment.extent]
    return sum(num_bytes(avals[value]) for value in own_state(fdg, fragment))


def mirrors(fdg: FDG, fragment: Fragment) -> dict[Value, Value]:
    """State that another fragment sends: the value that comes, and its name inside the loop."""
    comes = {p.value for t in fdg.transfers if t.target == fragment.name for p in t.parcels}
    return {c.next: c.inside for c in fragment.loop.carries if c.next in comes}


def host_of(fragment: Fragment) -> Host | None:
    """The host whose environments a fragment steps; None if they are not on the host."""
    for node in walk((fragment.loop,)):
        if isinstance(node, Op) and is_host_call(node):
            return node.eqn.params["host"]
        if isinstance(node, Op):
            for host in hosts_compiled_into(node.eqn):
                return host
    return None
