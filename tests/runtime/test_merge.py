"""One thread does the work of several fragments in an order in which nobody waits for himself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fragflow.graph.ir import Transfer
from fragflow.runtime.drivers.interleave import Block, DriverStep, ProgramOrder, SharedLoop, merged
from fragflow.runtime.planning.instructions import Code, Enter, Get, Put, Repeat, Run

FRAGMENTS = ("a", "b", "c")


def message(name: str, source: str, target: str) -> Transfer:
    return Transfer(name=name, source=source, target=target, parcels=())


def flat(block: Block) -> list[DriverStep]:
    """The steps of one pass through every loop."""
    return [s for i in block for s in (flat(i.body) if isinstance(i, SharedLoop) else (i,))]


@st.composite
def programs(draw: st.DrawFn) -> tuple[dict[str, Code], dict[str, list[str]], list[str]]:
    """Messages in nested loops, as every fragment sees them."""
    codes: dict[str, list] = {f: [] for f in FRAGMENTS}
    loops: dict[str, list[str]] = {f: [] for f in FRAGMENTS}
    names: list[str] = []

    def block(depth: int) -> set[str]:
        involved: set[str] = set()
        for _ in range(draw(st.integers(1, 3))):
            if depth < 2 and draw(st.booleans()):
                involved |= loop(depth)
            else:
                source, target = draw(st.permutations(FRAGMENTS))[:2]
                transfer = message(f"m{len(names)}", source, target)
                names.append(transfer.name)
                if draw(st.booleans()):
                    codes[source].append(Run(0))
                codes[source].append(Put(transfer))
                codes[target].append(Get(transfer))
                involved |= {source, target}
        return involved

    def loop(depth: int) -> set[str]:
        name = f"loop{sum(map(len, loops.values()))}.{depth}"
        before = {f: len(code) for f, code in codes.items()}
        involved = block(depth + 1)
        for f in involved:
            loops[f].append(name)
            index = len(loops[f]) - 1
            codes[f].insert(before[f], Enter(index, 2))
            codes[f].append(Repeat(index, 2, before[f] + 1))
        return involved

    block(0)
    return {f: tuple(code) for f, code in codes.items()}, loops, names


@given(programs(), st.sets(st.sampled_from(FRAGMENTS), min_size=1))
@settings(max_examples=200, deadline=None)
def test_messages_of_a_thread_are_sent_before_they_are_awaited(program, driver):
    codes, loops, names = program
    order = ProgramOrder(names, codes, loops)
    block = merged({f: codes[f] for f in FRAGMENTS if f in driver}, loops, order)
    sent: set[str] = set()
    places = []
    for step in flat(block):
        match step.instruction:
            case Put(transfer):
                sent.add(transfer.name)
                places.append(names.index(transfer.name))
            case Get(transfer):
                assert transfer.source not in driver or transfer.name in sent
                places.append(names.index(transfer.name))
    assert places == sorted(places)
    for fragment in driver:
        mine = [s.instruction for s in flat(block) if s.fragment == fragment]
        assert mine == [c for c in codes[fragment] if not isinstance(c, Enter | Repeat)]


def test_fragments_go_through_a_loop_together():
    up, down = message("up", "a", "b"), message("down", "b", "a")
    a = (Run(0), Enter(0, 3), Put(up), Get(down), Run(1), Repeat(0, 3, 2))
    b = (Enter(0, 3), Get(up), Run(0), Put(down), Repeat(0, 3, 1), Run(1))
    names = {"a": ["rollout"], "b": ["rollout"]}
    order = ProgramOrder(["up", "down"], {"a": a, "b": b}, names)
    block = merged({"a": a, "b": b}, names, order)
    first, loop, last = block
    assert first == DriverStep(fragment="a", instruction=Run(0))
    assert last == DriverStep(fragment="b", instruction=Run(1))
    assert isinstance(loop, SharedLoop)
    assert [(s.fragment, s.instruction) for s in flat(loop.body)] == [
        ("a", Put(up)),
        ("b", Get(up)),
        ("b", Run(0)),
        ("b", Put(down)),
        ("a", Get(down)),
        ("a", Run(1)),
    ]
