"""Decides which processes should be on one host, and which on different ones; Ray places them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fragflow.graph.ir import FDG, Loop, Node, Send, Transfer
from fragflow.remote.transport.mailbox import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Processes by site; those of one site are on one host."""

    sites: tuple[tuple[str, ...], ...]
    is_packed: bool
    """True if sites should be near one another: they exchange messages at every step"""


def place(fdg: FDG, processes: Sequence[str], routes: Sequence[Route]) -> Placement:
    """Joins processes that exchange messages at every step with each other only.

    If all exchange them with one process, as environments with a central actor, one host may not
    have room for all: they are packed onto as few as possible. So are groups, which reduce among
    themselves. Others are spread.
    """
    often = messages_in_rollouts(fdg)
    partners: dict[str, set[str]] = {name: set() for name in processes}
    for route in routes:
        if route.key[0] in often:
            partners[route.source].add(route.target)
            partners[route.target].add(route.source)
    sites: list[tuple[str, ...]] = []
    for name in processes:
        if any(name in site for site in sites):
            continue
        (partner,) = partners[name] if len(partners[name]) == 1 else (None,)
        is_pair = partner is not None and partners[partner] == {name}
        sites.append((name, partner) if is_pair and partner is not None else (name,))
    homes = {name: site for site in sites for name in site}
    is_packed = any(
        homes[route.source] != homes[route.target] for route in routes if route.key[0] in often
    ) or any(fragment.group for fragment in fdg.fragments.values())
    return Placement(sites=tuple(sites), is_packed=is_packed)


def messages_in_rollouts(fdg: FDG) -> frozenset[str]:
    """Messages that are sent in a loop inside the training loop."""
    found: set[str] = set()
    for fragment in fdg.fragments.values():
        for node in fragment.loop.body:
            if isinstance(node, Loop):
                found |= _sent(node.body)
    return frozenset(found)


def _sent(nodes: Sequence[Node]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, Loop):
            found |= _sent(node.body)
        elif isinstance(node, Send):
            found.add(node.transfer.name)
        elif isinstance(node, Transfer):
            found.add(node.name)
    return found


def totals(amounts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums amounts by name; leaves out those of zero."""
    found: dict[str, float] = {}
    for each in amounts:
        for name, amount in each.items():
            found[name] = found.get(name, 0.0) + amount
    return {name: amount for name, amount in found.items() if amount}
