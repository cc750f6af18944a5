"""The cheapest cut, with networkx as the judge."""

import math
import random
import time
from itertools import pairwise

import networkx as nx
import pytest

from fragflow.graph.passes.minimum_cut import Unbounded, minimum_cut

SOURCE, SINK = "source", "sink"
SIZES = ((0, 1, 2, 3), (0, 1, 5, 7, 1 << 41, (1 << 62) + 1, 10**30), (1,))
"""capacities to draw from: many equal ones, so that there are many cheapest cuts, and huge ones"""


def random_capacities(seed: int) -> dict[tuple[str, str], int | float]:
    draw = random.Random(seed)
    nodes = [SOURCE, SINK, *(f"n{k}" for k in range(draw.randrange(12)))]
    sizes = draw.choice(SIZES)
    density, infinite = draw.choice((0.1, 0.3, 0.7)), draw.choice((0.0, 0.1, 0.5))
    return {
        (tail, head): math.inf if draw.random() < infinite else draw.choice(sizes)
        for tail in nodes
        for head in nodes  # loops too, and edges into the source
        if draw.random() < density
    }


def judged(capacities: dict[tuple[str, str], int | float]) -> tuple[int, set[str]] | None:
    graph = nx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    for (tail, head), capacity in capacities.items():
        graph.add_edge(tail, head, **({} if capacity == math.inf else {"capacity": capacity}))
    try:
        cost, (side, _) = nx.minimum_cut(graph, SOURCE, SINK)
    except nx.NetworkXUnbounded:
        return None
    return cost, side


def found(capacities: dict[tuple[str, str], int | float]) -> tuple[int, set[str]] | None:
    try:
        return minimum_cut(capacities, SOURCE, SINK)
    except Unbounded:
        return None


def test_as_networkx_on_500_random_graphs() -> None:
    kinds = {"unbounded": 0, "nothing": 0, "something": 0, "huge": 0}
    for seed in range(500):
        capacities = random_capacities(seed)
        answer = found(capacities)
        expected = judged(capacities)
        assert answer == expected, f"seed {seed}"
        if answer is None:
            kinds["unbounded"] += 1
            continue
        cost, side = answer
        crossing = [c for (u, v), c in capacities.items() if u in side and v not in side]
        assert cost == sum(crossing), f"seed {seed}: the cut costs something else"
        assert SOURCE in side
        assert SINK not in side
        kinds["huge" if cost > 1 << 40 else "something" if cost else "nothing"] += 1
    assert min(kinds.values()) > 20, kinds  # every kind of graph was among them


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_edges_does_not_matter(seed: int) -> None:
    capacities = random_capacities(seed)
    edges = list(capacities.items())
    random.Random(seed).shuffle(edges)
    assert found(dict(edges)) == found(capacities)


def test_of_equal_cuts_the_one_nearest_to_the_sink() -> None:
    capacities = {(SOURCE, "a"): 1, ("a", "b"): 1, ("b", SINK): 1}
    assert minimum_cut(capacities, SOURCE, SINK) == (1, {SOURCE, "a", "b"})


def test_infinity_is_no_large_number() -> None:
    much = 10**400  # more than a float can hold
    capacities = {(SOURCE, "a"): much, ("a", SINK): math.inf, (SOURCE, "b"): math.inf}
    assert minimum_cut(capacities, SOURCE, SINK) == (much, {SOURCE, "b"})
    with pytest.raises(Unbounded, match="nothing may be cut"):
        minimum_cut(capacities | {("b", SINK): math.inf}, SOURCE, SINK)


def test_nothing_to_cut() -> None:
    assert minimum_cut({}, SOURCE, SINK) == (0, {SOURCE})
    assert minimum_cut({("a", "b"): 3}, SOURCE, SINK) == (0, {SOURCE, "a", "b"})


def test_a_long_path_and_a_wide_graph_take_no_time() -> None:
    names = [SOURCE, *(f"n{k}" for k in range(20_000)), SINK]
    chain = {(u, v): k + 1 for k, (u, v) in enumerate(pairwise(names))}
    wide = {(SOURCE, f"w{k}"): k for k in range(20_000)} | {
        (f"w{k}", SINK): 10_000 for k in range(20_000)
    }
    began = time.process_time()
    assert minimum_cut(chain | wide, SOURCE, SINK)[0] == 1 + sum(
        min(k, 10_000) for k in range(20_000)
    )
    assert time.process_time() - began < 5
