"""The compiler's stages: in order, each checked where it is made."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fragflow.errors import GraphError, StageError
from fragflow.graph.check_stages import check_stage
from fragflow.graph.cut import cut, stages
from fragflow.graph.ir import Loop, Op, Receive, Send, Stack, Transfer
from fragflow.graph.replicas.kinds import varying
from fragflow.graph.stages import STAGES
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from fragflow.runtime.planning.instructions import Enter, Get, Keep, Put, Repeat, Run
from fragflow.runtime.planning.plan import Plan, check_plan, make_plan
from graph.toy import Drift, Toy

FINE, TWO = POLICIES["single-learner-fine"], Deployment(workers=2)


@pytest.fixture(scope="module")
def source() -> Tracer:
    return tracer(Toy(), Drift(), 8)


@pytest.fixture(scope="module")
def made(source: Tracer) -> Mapping[str, Any]:
    return {stage.name: stage for stage in stages(source, FINE, TWO)}


@pytest.fixture(scope="module")
def plan(made: Mapping[str, Any]) -> Plan:
    return make_plan(made["fragments"].fdg)


def test_a_cut_tells_of_its_stages_in_order(source: Tracer):
    told: list[str] = []
    cut(source, FINE, TWO, on_stage=lambda stage: told.append(stage.name))
    assert told == [stage.name for stage in STAGES]


def test_stages_are_made_when_they_are_asked_for(source: Tracer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("fragflow.graph.cut.build")
    made = stages(source, FINE, TWO)
    assert next(made).name == "trace"
    with pytest.raises(NameError):
        next(made)


def test_a_broken_stage_stops_the_cut(source: Tracer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fragflow.graph.cut.colour", lambda *_: {})
    told: list[str] = []
    with pytest.raises(StageError, match=r"after owners: operation 0 .random_wrap. has no owner"):
        cut(source, FINE, TWO, on_stage=lambda stage: told.append(stage.name))
    assert told == ["trace", "program", "kinds"]


def test_it_is_a_fault_of_fragflow():
    error = StageError("split", "learner runs 3 without 2.0")
    assert isinstance(error, GraphError)
    assert error.exit_code == 70


def refused(stage: Any, match: str) -> None:
    with pytest.raises(StageError, match=f"^after {stage.name}: {match}"):
        check_stage(stage)


# trace


def test_traces_have_the_same_leaves(made: Mapping[str, Any]):
    whole, part, *rest = made["trace"].traces
    other = replace(part, metric_labels=("loss",))
    refused(replace(made["trace"], traces=(whole, other, *rest)), "the trace for 4 env.* .'loss',.")


def test_a_trace_has_an_output_for_each_leaf(made: Mapping[str, Any]):
    fewer = [
        replace(t, metric_labels=(), episodes=(), state_labels=t.state_labels)
        for t in made["trace"].traces
    ]
    refused(replace(made["trace"], traces=tuple(fewer)), r"the trace .* \(11, 10\).* \(11, 6\)")


# program


def changed(stage: Any, body: Any) -> Any:
    program = stage.program
    return replace(stage, program=replace(program, loop=replace(program.loop, body=body)))


def test_a_value_is_made_before_it_is_read(made: Mapping[str, Any]):
    first, *others = made["program"].program.loop.body
    refused(changed(made["program"], (*others, first)), r"the program runs 3 .* without 0\.0")


def test_a_value_is_made_once(made: Mapping[str, Any]):
    body = made["program"].program.loop.body
    refused(changed(made["program"], (body[0], *body)), r"the program makes 0\.0 twice")


def test_the_body_of_a_loop_makes_what_the_loop_keeps(made: Mapping[str, Any]):
    body = made["program"].program.loop.body
    emptied = tuple(replace(n, body=()) if isinstance(n, Loop) else n for n in body)
    refused(changed(made["program"], emptied), "the program ends a step of loop 10 without")


def test_a_value_has_a_type_for_every_extent(made: Mapping[str, Any]):
    program = made["program"].program
    whole, *others = program.avals
    fewer = {value: aval for value, aval in program.avals[whole].items() if value != "0.0"}
    avals = {whole: fewer, **{extent: program.avals[extent] for extent in others}}
    stage = replace(made["program"], program=replace(program, avals=avals))
    refused(stage, r"0\.0 has no type for 8 environments")


# kinds


def with_kind(made: Mapping[str, Any], value: str, kind: Any) -> Any:
    return replace(made["kinds"], kinds={**made["kinds"].kinds, value: kind})


def test_every_value_has_a_kind(made: Mapping[str, Any]):
    kinds = {v: k for v, k in made["kinds"].kinds.items() if v != "state:obs"}
    refused(replace(made["kinds"], kinds=kinds), "state:obs has no kind")


def test_a_kind_fits_the_shape(made: Mapping[str, Any]):
    stage = with_kind(made, "state:obs", varying(1))
    refused(stage, r"state:obs is V1, but has the shapes \(8, 3\) and \(4, 3\)")


# owners


def test_an_owner_is_a_fragment(made: Mapping[str, Any]):
    owners = {**made["owners"].owners, "0": "lerner"}
    stage = replace(made["owners"], owners=owners)
    refused(stage, "operation 0 .random_wrap. has the owner 'lerner', which is no fragment")


# split


def with_split(made: Mapping[str, Any], **fields: Any) -> Any:
    return replace(made["split"], split=replace(made["split"].split, **fields))


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("state:params.w", r"learner runs 10/0 .* without state:params.w"),
        ("10/slice0", "learner runs 10/0 .* without 10/slice0"),
        ("9.0", "learner begins loop 10 without 9.0"),
        ("10/1.3", "learner ends a step of loop 10 without 10/1.3"),
    ],
)
def test_what_a_fragment_reads_is_among_its_needs(made: Mapping[str, Any], value: str, match: str):
    needs = dict(made["split"].split.needs)
    assert value in needs["learner"]
    refused(with_split(made, needs=needs | {"learner": needs["learner"] - {value}}), match)


def test_what_a_fragment_needs_is_made_somewhere(made: Mapping[str, Any]):
    homes = {**made["split"].split.homes, "10/0.0": "actor"}
    refused(with_split(made, homes=homes), "10/0.0, which .* needs, is made by no fragment")


def test_every_leaf_of_the_state_is_kept(made: Mapping[str, Any]):
    refused(with_split(made, keepers={}), "no fragment keeps final:params.unused")


def test_every_metric_is_reported_by_a_fragment(made: Mapping[str, Any]):
    keepers = {v: k for v, k in made["split"].split.keepers.items() if v != "metric:reward"}
    refused(with_split(made, keepers=keepers), "no fragment keeps metric:reward")


# messages


def with_messages(made: Mapping[str, Any], change: Any) -> Any:
    """The stage with every message replaced by what `change` makes of it: nodes."""

    def block(nodes: Any) -> Any:
        for node in nodes:
            if isinstance(node, Transfer):
                yield from change(node)
            else:
                is_loop = isinstance(node, Loop)
                yield replace(node, body=tuple(block(node.body))) if is_loop else node

    stage = made["messages"]
    return replace(stage, loop=replace(stage.loop, body=tuple(block(stage.loop.body))))


def test_no_message_goes_to_its_sender(made: Mapping[str, Any]):
    stage = with_messages(made, lambda t: [replace(t, target=t.source)])
    refused(stage, "learner>environment#1 goes from learner to itself")


def test_what_is_sent_has_been_made(made: Mapping[str, Any]):
    unmade = with_messages(made, lambda _: [])
    (early,) = [n for n in made["messages"].loop.body if isinstance(n, Transfer)]
    loop = replace(unmade.loop, body=(early, *unmade.loop.body))
    refused(replace(unmade, loop=loop), "the program sends environment>learner#3 without")


def test_what_is_sent_is_read_afterwards(made: Mapping[str, Any]):
    unread = with_messages(made, lambda _: [])
    (late,) = [n for n in made["messages"].loop.body if isinstance(n, Transfer)]
    loop = replace(unread.loop, body=(*unread.loop.body, late))
    refused(replace(unread, loop=loop), "learner does not read .* after environment>learner#3")


def test_values_of_a_message_are_in_the_order_made(made: Mapping[str, Any]):
    stage = with_messages(made, lambda t: [replace(t, parcels=t.parcels[::-1])])
    refused(stage, "the values of environment>learner#3 are not in the order made")


# fragments


def with_fragment(made: Mapping[str, Any], name: str, change: Any) -> Any:
    """The graph in which fragment `name` has other nodes: what `change` makes of each."""

    def block(nodes: Any) -> Any:
        for node in nodes:
            is_loop = isinstance(node, Loop)
            yield from change(replace(node, body=tuple(block(node.body))) if is_loop else node)

    fdg = made["fragments"].fdg
    fragment = fdg.fragments[name]
    part = replace(fragment, loop=replace(fragment.loop, body=tuple(block(fragment.loop.body))))
    return replace(made["fragments"], fdg=replace(fdg, fragments={**fdg.fragments, name: part}))


def test_a_fragment_has_what_it_reads(made: Mapping[str, Any]):
    stage = with_fragment(made, "learner", lambda n: [] if isinstance(n, Op) else [n])
    refused(stage, r"fragment learner begins loop 10 without 9\.0")


def test_a_message_is_sent_and_received(made: Mapping[str, Any]):
    stage = with_fragment(made, "environment", lambda n: [] if isinstance(n, Send) else [n])
    refused(stage, "message environment>learner#2 occurs 0 times in environment")


def test_messages_are_sent_and_received_in_one_order(made: Mapping[str, Any]):
    other = {"environment>learner#2": "environment>learner#3"}
    other |= {after: before for before, after in other.items()}

    def renamed(node: Any) -> Any:
        is_one = isinstance(node, Receive) and node.transfer.name in other
        transfer = replace(node.transfer, name=other[node.transfer.name]) if is_one else None
        return [Receive(transfer=transfer) if transfer else node]

    refused(
        with_fragment(made, "learner", renamed),
        r"environment sends \[.*#2', .*#3'\], learner receives \[.*#3', .*#2'\]",
    )


def test_a_fragment_has_no_messages_that_are_neither_sent_nor_received(made: Mapping[str, Any]):
    stage = with_fragment(
        made, "learner", lambda n: [n.transfer] if isinstance(n, Receive | Send) else [n]
    )
    refused(stage, "fragment learner neither sends nor receives learner>environment#1")


# plan


def broken(plan: Plan, name: str, change: Any, match: str) -> None:
    part = plan.parts[name]
    changed = replace(part, code=tuple(change(part.code)))
    with pytest.raises(StageError, match=f"^after plan: {match}"):
        check_plan(replace(plan, parts={**plan.parts, name: changed}))


def test_instructions_refer_to_what_there_is(plan: Plan):
    broken(
        plan,
        "learner",
        lambda code: [Run(9), *code],
        "instruction 0 of learner, Run, refers to segment 9 of 4",
    )
    broken(
        plan,
        "learner",
        lambda code: [replace(c, loop=1) if isinstance(c, Enter) else c for c in code],
        "instruction 1 of learner, Enter, refers to loop 1 of 1",
    )


def test_a_row_is_kept_within_its_loop(plan: Plan):
    part = plan.parts["learner"]
    rows = (Stack(element="answer", outside="answers"),)
    loops = tuple(replace(loop, rows=rows) for loop in part.loops)
    parts = {**plan.parts, "learner": replace(part, loops=loops)}
    broken(
        replace(plan, parts=parts),
        "learner",
        lambda code: [Keep(0, 0), *code],
        "instruction 0 of learner, Keep, is outside of loop 0",
    )


def test_loops_nest(plan: Plan):
    broken(
        plan,
        "learner",
        lambda code: [c for c in code if not isinstance(c, Repeat)],
        "learner never ends loop 0",
    )
    broken(
        plan,
        "learner",
        lambda code: [c for c in code if not isinstance(c, Enter)],
        "instruction 5 of learner, Repeat, ends no loop",
    )
    broken(
        plan,
        "learner",
        lambda code: [replace(c, first=4) if isinstance(c, Repeat) else c for c in code],
        "instruction 6 of learner, Repeat, is Repeat.*first=4.*expected Repeat.*first=2",
    )


def test_what_is_put_is_got(plan: Plan):
    broken(
        plan,
        "learner",
        lambda code: [c for c in code if not isinstance(c, Get)],
        "environment puts environment>learner#2 ×4, environment>learner#3 ×1; learner gets nothing",
    )


def test_a_fragment_puts_its_own_messages(plan: Plan):
    (got, *_) = [c for c in plan.parts["learner"].code if isinstance(c, Get)]
    broken(
        plan,
        "learner",
        lambda code: [*code, Put(got.transfer)],
        "instruction 9 of learner, Put, is about environment>learner#2, which is of environment",
    )
