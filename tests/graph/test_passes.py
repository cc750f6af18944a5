"""Every pass of the compiler, on a few operations, with the result written down."""

from collections.abc import Mapping
from dataclasses import replace

from fragflow.graph.ir import Carry, Stack, Transfer, Value, walk
from fragflow.graph.optimisations import Optimisations
from fragflow.graph.passes.collectives import as_sends_and_receives, with_collectives
from fragflow.graph.passes.dataflow import FREE, dataflow
from fragflow.graph.passes.minimum_cut import minimum_cut
from fragflow.graph.passes.optimise import coalesce, unhoist
from fragflow.graph.passes.place_glue import colour
from fragflow.graph.passes.split import insert_transfers
from fragflow.graph.replicas.kinds import UNIFORM, Kind, partial, varying
from fragflow.policies.policy import Over
from graph.small import (
    FRAGMENTS,
    MEAN,
    loop,
    message,
    op,
    placed,
    program,
    split_of,
    written,
)

ALL = Optimisations()

# dataflow: the makers and readers of values, seen through loops


def turning(of: str = ""):
    """`a` goes into a loop as `x`, which hands out `y` for `c`."""
    carry = Carry(inside="x", init="a", next="b", final="y")
    return program(op("a", "key", of=of), loop("l", op("b", "x"), carries=(carry,)), op("c", "y"))


def test_what_a_loop_hands_out_is_made_inside_it():
    flow = dataflow(turning())
    assert flow.producer["y"] == flow.producer["x"] == "b"
    assert flow.users["y"] == ("c",)


def test_what_a_loop_begins_with_is_read_by_the_one_that_makes_the_next():
    assert dataflow(turning()).users["a"] == ("b",)


def test_what_is_in_a_loop_is_made_in_each_of_its_steps():
    flow = dataflow(turning())
    assert (flow.trips["a"], flow.trips["b"], flow.trips["c"]) == (1, 3, 1)


def test_glue_is_free_if_it_follows_from_sources_alone():
    assert {"a", "b", "x", "y", "c"} <= dataflow(turning()).free
    assert not {"a", "b", "x", "y", "c"} & dataflow(turning(of="actor")).free


# place_glue, by minimum_cut: the fewest bytes cross


def owners_of(sizes):
    made = program(
        op("k", "key"),
        op("acted", "k", of="actor"),
        op("glue", "acted"),
        op("learnt", "glue", of="learner"),
        sizes=sizes,
    )
    kinds: Mapping[Over, Mapping[Value, Kind]] = {
        "environments": dict.fromkeys(made.avals[made.extent], varying(0))
    }
    pair = [placed("actor", 2), placed("learner", 1)]
    return colour(made, dataflow(made), pair, lambda component: component, kinds)


def test_the_cheapest_cut_is_through_the_narrowest_edge():
    assert minimum_cut({("source", "a"): 3, ("a", "sink"): 1}, "source", "sink") == (
        1,
        {"source", "a"},
    )


def test_glue_that_makes_values_smaller_is_where_they_are_made():
    assert owners_of({"acted": 100, "glue": 4})["glue"] == "actor"


def test_glue_that_makes_values_larger_is_where_they_are_read():
    assert owners_of({"acted": 4, "glue": 100})["glue"] == "learner"


def test_free_glue_is_computed_by_all():
    assert owners_of({})["k"] == FREE


# split: homes and needs


def acting_and_learning():
    """The actor makes `seen` from the parameters, the learner the next parameters from it."""
    return program(
        op("seen", "w", of="actor"), op("update", "seen", "w", of="learner"), state={"w": "update"}
    )


def test_a_value_lives_where_it_is_made_and_is_needed_where_it_is_read():
    decided = split_of(acting_and_learning(), ALL)
    assert (decided.homes["seen"], decided.homes["w"]) == ("actor", "learner")
    assert decided.needs["learner"] == {"seen", "w", "update", "init w"}
    assert decided.keepers == {"final w": "learner"}


def test_state_of_another_is_kept_as_a_mirror():
    assert split_of(acting_and_learning(), ALL).needs["actor"] == {"w", "update", "init w"}


# insert_transfers: a message after each value that crosses


def sent(made, options=ALL, **glue):
    decided = split_of(made, options, **glue)
    return written(insert_transfers(made, decided, FRAGMENTS, options).body)


def test_a_value_is_sent_where_it_is_made():
    assert sent(acting_and_learning()) == [
        "seen",
        "actor>learner: seen",
        "update",
        "learner>actor: update",
    ]


def collecting():
    """Rows that the actor makes in a loop, which the learner reads after it."""
    stack = Stack(element="row", outside="rows")
    return program(
        loop("l", op("row", "w", of="actor"), stacks=(stack,)),
        op("update", "rows", of="learner"),
        state={"w": "w"},
    )


def test_what_a_loop_collects_is_sent_once_after_it():
    assert sent(collecting()) == [["row"], "actor>learner: rows", "update"]


def test_without_sinking_each_row_is_sent():
    assert sent(collecting(), replace(ALL, sink=False)) == [
        ["row", "actor>learner: row"],
        "update",
    ]


# unhoist: the naive placement


def reading_in_a_loop():
    """A value of the actor that the learner reads in each step of a loop they share."""
    return program(
        op("fixed", "w", of="actor"),
        loop("l", op("acts", "w", of="actor"), op("learns", "fixed", of="learner")),
        state={"w": "w"},
    )


def test_what_only_a_loop_reads_is_sent_once_before_it():
    assert sent(reading_in_a_loop()) == ["fixed", "actor>learner: fixed", ["acts", "learns"]]


def test_without_hoisting_it_is_sent_in_each_step():
    made = reading_in_a_loop()
    decided = split_of(made, ALL)
    naive = unhoist(insert_transfers(made, decided, FRAGMENTS, ALL), decided)
    assert written(naive.body) == ["fixed", ["actor>learner: fixed", "acts", "learns"]]


# coalesce: messages of one direction wait for one another


def joined(*body):
    made = program(*body, state={"w": "a"})
    decided = split_of(made, ALL, glue="actor")
    return written(coalesce(insert_transfers(made, decided, FRAGMENTS, ALL), decided).body)


def test_values_that_go_the_same_way_become_one_message():
    body = op("a", "w", of="actor"), op("glue", "w"), op("c", "a", "glue", of="learner")
    assert joined(*body) == ["a", "glue", "actor>learner: a glue", "c"]


def test_a_message_does_not_wait_for_a_component_of_its_sender():
    body = op("a", "w", of="actor"), op("b", "w", of="actor"), op("c", "a", "b", of="learner")
    assert joined(*body) == ["a", "actor>learner: a", "b", "actor>learner: b", "c"]


def test_a_message_does_not_wait_beyond_its_first_reader():
    body = (
        op("a", "w", of="actor"),
        op("c", "a", of="learner"),
        op("glue", "w"),
        op("d", "glue", of="learner"),
    )
    assert joined(*body) == [
        "a",
        "actor>learner: a",
        "c",
        "glue",
        "actor>learner: glue",
        "d",
    ]


# with_collectives: the way of each value, and the message's name


def travelling(kind, actors, learners, *after):
    body = program(op("a", "w"), message("actor", "learner", "a"), *after).loop
    ends = [placed("actor", actors), placed("learner", learners)]
    known = {"actor": {"a": kind}, "learner": {}}
    loop_ = with_collectives(body, ends, lambda _: known)
    (found,) = [node for node in loop_.body if isinstance(node, Transfer)]
    return found


def way(*given):
    return travelling(*given).parcels[0].collective


def test_rows_are_gathered_scattered_or_go_one_to_one():
    rows = varying(1)
    assert way(rows, 2, 1) == "gather"
    assert way(rows, 1, 2) == "scatter"
    assert way(rows, 2, 2) == "one-to-one"


def test_rows_are_joined_and_cut_along_their_axis():
    assert travelling(varying(1), 2, 1).parcels[0].join == 1
    assert travelling(varying(1), 1, 2).parcels[0].cut == 1


def test_what_all_replicas_have_is_broadcast_or_picked():
    assert way(UNIFORM, 1, 2) == "broadcast"
    assert way(UNIFORM, 2, 1) == "pick"


def test_parts_of_a_sum_are_reduced_as_their_reader_does():
    assert way(partial("here"), 2, 1, op("all", "a", eqn=MEAN)) == "reduce-mean"


def test_messages_are_numbered_in_the_order_of_the_program():
    messages = message("actor", "learner", "a"), message("learner", "actor", "b")
    body = program(op("a", "w"), op("b", "w"), messages[0], loop("l", messages[1])).loop
    known = {"actor": {"a": UNIFORM}, "learner": {"b": UNIFORM}}
    named = with_collectives(body, [placed(n, 1) for n in FRAGMENTS], lambda _: known)
    found = [node.name for node in walk((named,)) if isinstance(node, Transfer)]
    assert found == ["actor>learner#1", "learner>actor#2"]


# as_sends_and_receives: one end's view of a message


def test_the_source_sends_and_the_target_receives():
    body = program(op("a", "w"), loop("l", message("actor", "learner", "a"))).loop
    assert written(as_sends_and_receives(body, "actor").body) == ["a", ["send a"]]
    assert written(as_sends_and_receives(body, "learner").body) == ["a", ["receive a"]]
