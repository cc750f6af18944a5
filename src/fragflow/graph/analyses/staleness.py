"""Finds messages that may be late, and checks that a fragment can serve workers one at a time."""

from collections.abc import Mapping

from fragflow.errors import PolicyError
from fragflow.graph.check import describe
from fragflow.graph.ir import FDG, Fragment, Receive, Send, Transfer, Value
from fragflow.graph.passes.collectives import crossings
from fragflow.graph.replicas.kinds import Tag
from fragflow.policies.policy import Policy
from fragflow.policies.synchronisation import Asynchronous, Lag


def late_messages(policy: Policy, fdg: FDG) -> Mapping[str, int]:
    """By message, the number of iterations it is late: those that bring parameters to actors.

    Other state that goes the same way once per iteration is as late, in a message of its own too:
    whether messages were joined changes no result. In the language of dataflow, a message that
    brings a carry is an edge with one first token; a lag of k puts k more on it, and changes no
    program.
    """
    if not isinstance(policy.synchronisation, Lag):
        return {}
    lag = policy.synchronisation.iterations
    bringing = [t for t in fdg.transfers if _brings_params(fdg, t)]
    ways = {(t.source, t.target) for t in bringing}
    late = {
        t.name: lag
        for t in fdg.transfers
        if t in bringing or ((t.source, t.target) in ways and _is_state(fdg, t))
    }
    for transfer in fdg.transfers:
        if transfer.name not in late:
            continue
        _refuse_shared(fdg, transfer, f"{policy.name} with {policy.synchronisation}")
        for parcel in transfer.parcels:
            if _carried(fdg, parcel.value) is None:
                raise PolicyError(
                    f"{policy.name} with {policy.synchronisation}: the parameters travel with "
                    f"{describe(fdg.program, parcel.value)}, which is not state and cannot be late"
                )
    if not late:
        raise PolicyError(
            f"{policy.name} with {policy.synchronisation}: no message brings parameters once per "
            "iteration, so nothing can be late. A lag is for policies that act in one fragment and "
            "learn in another, like single-learner-coarse."
        )
    return late


def _brings_params(fdg: FDG, transfer: Transfer) -> bool:
    if crossings(fdg)[transfer.name] != 1:
        return False
    return any(_carried(fdg, parcel.value) in fdg.program.params for parcel in transfer.parcels)


def _is_state(fdg: FDG, transfer: Transfer) -> bool:
    if crossings(fdg)[transfer.name] != 1:
        return False
    return all(_carried(fdg, parcel.value) is not None for parcel in transfer.parcels)


def _refuse_shared(fdg: FDG, transfer: Transfer, title: str) -> None:
    """Refuses one value for two leaves of the state: they begin as two, and it can be only one."""
    carries = fdg.fragments[transfer.target].loop.carries
    for parcel in transfer.parcels:
        leaves = [fdg.program.labels[c.inside] for c in carries if c.next == parcel.value]
        if len(leaves) > 1:
            raise PolicyError(
                f"{title}: at the end of an iteration the state's {' and '.join(leaves)} are one "
                "array, but at its beginning they need not be, and a late message has to bring "
                "both. Keep one of them, or compute the other where it is used"
            )


def _carried(fdg: FDG, value: Value) -> Value | None:
    """The state leaf whose next value this is, if it is one."""
    for carry in fdg.program.loop.carries:
        if carry.next == value:
            return carry.inside
    return None


def server_of(policy: Policy, fdg: FDG) -> str:
    """Finds the fragment that serves the others; PolicyError if none just handles messages.

    `fdg` is the graph of one worker and the server.
    """
    assert isinstance(policy.synchronisation, Asynchronous)
    title = f"{policy.name} cannot be asynchronous"
    hint = "Use single-learner-coarse or central, or another --sync."
    single = [
        name
        for name, fragment in fdg.fragments.items()
        if all(p.replicas == "one" for p in policy.places if p.name in fragment.places)
    ]
    if len(single) != 1 or len(fdg.fragments) == 1:
        raise PolicyError(
            f"{title}: it needs exactly one fragment with a single replica, the server; every "
            f"other fragment must have one replica per worker. {hint}"
        )
    (server,) = single
    for name, trips in crossings(fdg).items():
        if server in _ends(fdg, name) and trips != 1:
            raise PolicyError(
                f"{title} here: {name} crosses {trips} times per iteration, but a server handles "
                f"one message of a worker and answers once. {hint}"
            )
    _check_order(fdg.fragments[server], server, title)
    for transfer in fdg.transfers:
        if transfer.source == server:
            _refuse_shared(fdg, transfer, title)
            for parcel in transfer.parcels:
                if _carried(fdg, parcel.value) is None:
                    raise PolicyError(
                        f"{title} here: {server} answers with "
                        f"{describe(fdg.program, parcel.value)}, which is not state, so that a "
                        f"worker would have to wait for it. {hint}"
                    )
    _check_workers_state(fdg, server, title)
    return server


def _ends(fdg: FDG, name: str) -> tuple[str, str]:
    transfer = next(t for t in fdg.transfers if t.name == name)
    return transfer.source, transfer.target


def _check_order(fragment: Fragment, server: str, title: str) -> None:
    has_answered = False
    for node in fragment.loop.body:
        if isinstance(node, Send):
            has_answered = True
        if isinstance(node, Receive) and has_answered:
            raise PolicyError(
                f"{title} here: {server} waits for {node.transfer.name} after it has answered"
            )


def _check_workers_state(fdg: FDG, server: str, title: str) -> None:
    received: dict[str, set[Value]] = {}
    for transfer in fdg.transfers:
        received.setdefault(transfer.target, set()).update(p.value for p in transfer.parcels)
    for name, fragment in fdg.fragments.items():
        for carry in fragment.loop.carries:
            is_mirror = carry.next in received.get(name, set())
            if name == server or is_mirror or carry.next == carry.inside:
                continue
            if fdg.row_kinds[carry.inside].tag is not Tag.VARYING:
                label = fdg.program.labels[carry.inside]
                raise PolicyError(
                    f"{title} here: the state's {label} is not per environment, and every worker "
                    f"would have one of its own. Its component belongs to {server!r}."
                )
