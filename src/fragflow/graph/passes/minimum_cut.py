"""The cheapest way to separate two nodes of a directed graph: Dinic's algorithm, in whole numbers.

Costs are bytes of whole runs: Python's integers hold them exactly, however large they are.
"""

import math
from collections import deque
from collections.abc import Mapping
from itertools import pairwise

Capacity = int | float
"""a whole number, or `math.inf` for an edge that must not be cut"""

Room = dict[str, dict[str, Capacity]]
"""remaining capacity of each edge, and of its reverse"""


class Unbounded(Exception):
    """Every cut would cost infinity."""


def minimum_cut(
    capacities: Mapping[tuple[str, str], Capacity], source: str, sink: str
) -> tuple[int, set[str]]:
    """The cost of the cheapest cut, and the nodes on the source's side of it.

    Of several cheapest cuts it is the one nearest to the sink, so the answer does not depend on the
    order of edges. `capacities` are by `(tail, head)`.
    """
    room: Room = {node: {} for ends in (*capacities, (source, sink)) for node in ends}
    for (tail, head), capacity in capacities.items():
        if tail != head:
            room[tail][head] = capacity
            room[head].setdefault(tail, 0)
    cost = 0
    while source in (distance := _distances(room, sink)):
        cost += _fill(room, distance, source, sink)
    return cost, set(room) - set(distance)


def _distances(room: Room, sink: str) -> dict[str, int]:
    """The number of edges to the sink, from each node that can still send something there."""
    distance = {sink: 0}
    queue = deque([sink])
    while queue:
        head = queue.popleft()
        for tail in room[head]:  # edges have reverses: neighbours are the same in both directions
            if tail not in distance and room[tail][head] > 0:
                distance[tail] = distance[head] + 1
                queue.append(tail)
    return distance


def _fill(room: Room, distance: Mapping[str, int], source: str, sink: str) -> int:
    """Sends along shortest paths until none has room left; returns the amount."""
    untried = {node: list(room[node]) for node in distance}
    sent, path = 0, [source]
    while True:
        here = path[-1]
        if here == sink:
            sent += _send(room, list(pairwise(path)))
            path = [source]
        elif not untried[here]:
            if here == source:
                return sent
            path.pop()
            untried[path[-1]].pop()
        else:
            there = untried[here][-1]
            if room[here][there] > 0 and distance.get(there) == distance[here] - 1:
                path.append(there)
            else:
                untried[here].pop()


def _send(room: Room, path: list[tuple[str, str]]) -> int:
    """Sends as much along `path` as it can take; returns the amount."""
    amount = min(room[tail][head] for tail, head in path)
    if amount == math.inf:
        raise Unbounded("an infinite path leads from the source to the sink: nothing may be cut")
    for tail, head in path:
        for one, other, change in ((tail, head, -amount), (head, tail, amount)):
            if room[one][other] != math.inf:
                room[one][other] += change
    return int(amount)
