"""Policies are data; what does not fit is refused with the reason and the fix."""

import re
from typing import get_args

import pytest

from fragflow import component
from fragflow.errors import PolicyError, TraceError
from fragflow.policies import (
    ALIASES,
    POLICIES,
    Deployment,
    Place,
    Policy,
    PolicyAlias,
    PolicyName,
    named_policy,
    place,
)
from fragflow.runtime.programs.devices import needed_devices

PPO = ("environment.step", "actor", "learner.value", "learner.gradient", "learner.update")


def own(*places: Place) -> Policy:
    return Policy(name="own", places=places)


def fragments(policy: Policy, workers: int = 1) -> dict[str, tuple[int, tuple[str, ...]]]:
    placed = place(policy, Deployment(workers=workers), PPO, 8)
    return {p.name: (p.replicas, p.components) for p in placed}


def test_the_more_specific_name_wins():
    found = fragments(POLICIES["central"], workers=2)
    assert found["server"] == (1, ("learner.update",))
    assert found["worker"][0] == 2
    assert "learner.gradient" in found["worker"][1]


def test_paired_fragments_are_one_on_the_same_device():
    coarse = POLICIES["single-learner-coarse"]
    placed = place(coarse, Deployment(workers=2), PPO, 8)
    assert {p.name: p.places for p in placed} == {
        "environment+actor": ("environment", "actor"),
        "learner": ("learner",),
    }
    on_gpu = place(coarse, Deployment(workers=2, accelerator="gpu"), PPO, 8)
    assert [(p.name, p.device) for p in on_gpu] == [
        ("environment", "cpu"),
        ("actor", "gpu"),
        ("learner", "gpu"),
    ]


def test_pairs_of_pairs_are_one_fragment():
    policy = own(
        Place(name="a", components=("actor",), paired_with="e"),
        Place(name="e", components=("environment",), paired_with="l"),
        Place(name="l", components=("learner",), paired_with="a"),
    )
    (placed,) = place(policy, Deployment(), PPO, 8)
    assert (placed.name, placed.places) == ("l+e+a", ("l", "e", "a"))
    assert placed.components == tuple(sorted(PPO))


def test_the_types_of_names_hold_the_tables_names():
    assert get_args(PolicyName) == tuple(POLICIES)
    assert get_args(PolicyAlias) == tuple(ALIASES)


@pytest.mark.parametrize("alias", ALIASES)
def test_the_papers_names_are_accepted(alias):
    assert named_policy(alias) is POLICIES[ALIASES[alias]]
    assert named_policy(alias.lower()) is POLICIES[ALIASES[alias]]


def test_an_unknown_policy():
    with pytest.raises(PolicyError, match="Did you mean 'multi-learner'"):
        named_policy("multi-lerner")


def test_a_forgotten_component():
    policy = own(Place(name="w", components=("environment", "actor")))
    with pytest.raises(PolicyError, match=r"does not place component 'learner\.gradient'"):
        fragments(policy)


def test_a_component_placed_twice():
    with pytest.raises(PolicyError, match="places component 'actor' twice: in 'a' and in 'b'"):
        own(Place(name="a", components=("actor",)), Place(name="b", components=("actor",)))


def test_a_component_the_algorithm_does_not_have():
    policy = own(Place(name="a", components=("environment", "actor", "lerner")))
    with pytest.raises(PolicyError, match=r"does not have\. Did you mean 'learner\.") as error:
        fragments(policy)
    assert "Its components are: actor, environment.step" in str(error.value)


@pytest.mark.parametrize("name", ["env+act", "a#1", "a@cpu", ""])
def test_names_that_fragflow_would_read_something_into(name):
    with pytest.raises(PolicyError, match=f"named {re.escape(repr(name))}: expected a name"):
        own(Place(name=name, components=("actor",)))
    with pytest.raises(PolicyError, match=f"paired with {re.escape(repr(name))}: expected a name"):
        own(Place(name="a", components=("actor",), paired_with=name))
    placed = f"has component {re.escape(repr(name))}: expected a name"
    with pytest.raises(PolicyError, match=placed):
        own(Place(name="a", components=(name,)))
    with pytest.raises(PolicyError, match=placed):
        own(Place(name="a", components=("actor",), optional=(name,)))


@pytest.mark.parametrize("name", ["learner+x", "learner#1", "actor@cpu"])
def test_components_have_no_such_names_either(name):
    with pytest.raises(TraceError, match=f"component name {re.escape(repr(name))}: expected"):
        component(name)


def test_two_fragments_of_one_name():
    with pytest.raises(PolicyError, match="two fragments named 'a'"):
        own(Place(name="a", components=("actor",)), Place(name="a", components=("learner",)))


def test_environments_that_cannot_be_divided():
    with pytest.raises(PolicyError, match=r"num-envs is 8.*3 replicas.*use a multiple of 3"):
        fragments(POLICIES["gpu-only"], workers=3)


def test_replica_counts_that_do_not_divide_one_another():
    policy = POLICIES["environments"]
    with pytest.raises(PolicyError, match="2 replicas of one fragment beside 3"):
        place(policy, Deployment(workers=3, learners=2), PPO, 12)


def test_counts_must_be_positive():
    with pytest.raises(PolicyError, match="workers is 0: expected at least 1"):
        Deployment(workers=0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("single-learner-coarse", 1), ("single-learner-fine", 1), ("gpu-only", 4), ("central", 4)],
)
def test_only_learners_need_devices_of_their_own(policy, expected):
    assert needed_devices(POLICIES[policy], Deployment(workers=4)) == expected


def test_replicas_that_share_a_place_are_fused():
    deployment = Deployment(workers=4, accelerator="gpu", slots={"gpu": 2})
    placed = {p.name: p for p in place(POLICIES["multi-learner"], deployment, PPO, 8)}
    assert (placed["learner"].replicas, placed["learner"].asked_replicas) == (2, 4)
    assert placed["environment"].replicas == 4


def test_a_fragment_for_each_team():
    components = [
        *("environment.step", "actor", "learner.update.team0", "learner.update.team1"),
        *("learner.value.team0", "learner.value.team1", "learner.report"),
    ]
    placed = place(POLICIES["learner-per-team"], Deployment(workers=2), components, 8)
    owned = {p.name: p.components for p in placed}
    assert owned["learner-team0"] == ("learner.update.team0", "learner.value.team0")
    assert owned["learner-team1"] == ("learner.update.team1", "learner.value.team1")
    assert owned["learner"] == ("learner.report",)
    one = place(POLICIES["learner-per-team"], Deployment(workers=2), components[:3], 8)
    assert [p.name for p in one] == ["environment+actor", "learner"]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (
            {"components": "actor"},
            r"components is the text 'actor': expected a tuple, \('actor',\)",
        ),
        ({"replicas": "worker"}, "replicas is 'worker': expected one, workers, learners or"),
        ({"replicas": 0}, "replicas is 0: expected"),
        ({"device": "gpu"}, "fragment 'p': unknown device 'gpu'.* Known: accelerator, cpu"),
        ({"over": "agent"}, "unknown over 'agent'. Did you mean 'agents'?"),
    ],
)
def test_a_place_that_cannot_be(wrong, expected):
    with pytest.raises(PolicyError, match=expected):
        Place(**{"name": "p", "components": ("actor",), **wrong})


def test_a_synchronisation_that_is_none():
    with pytest.raises(PolicyError, match=r"is 'lag=1': expected .* ff.Lag\(iterations=K\)"):
        Policy(name="own", places=(), synchronisation="lag=1")  # pyright: ignore[reportArgumentType]
