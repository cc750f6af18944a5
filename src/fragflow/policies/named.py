"""The named policies, made by a few templates."""

from typing import Literal

from fragflow.errors import PolicyError, unknown
from fragflow.policies.policy import Over, Place, Policy, Replicas
from fragflow.policies.synchronisation import Lag

PolicyName = Literal[
    "single-learner-coarse",
    "learner-per-team",
    "agents",
    "single-learner-fine",
    "multi-learner",
    "gpu-only",
    "environments",
    "central",
    "split-device",
]
"""names of `POLICIES`, for editors and type checkers"""

PolicyAlias = Literal[
    "fused",
    "DP-SingleLearnerCoarse",
    "DP-SingleLearnerFine",
    "DP-MultiLearner",
    "DP-MultipleLearners",
    "DP-GPUOnly",
    "DP-Environments",
    "DP-Central",
    "sebulba",
]
"""names of `ALIASES`"""

BRAIN = ("actor", "learner")
"""the components that act and learn"""


def everything_together(name: str, summary: str, replicas: Replicas = "workers") -> Policy:
    """One fragment holds the whole loop; its replicas share the environments."""
    loop = Place(
        name="loop",
        components=("environment",),
        optional=(*BRAIN, "buffer"),
        replicas=replicas,
    )
    return Policy(name=name, places=(loop,), summary=summary)


def environments_apart(name: str, summary: str, brains: Replicas) -> Policy:
    """Environments on workers; acting and learning together on `brains` accelerators."""
    return Policy(
        name=name,
        places=(
            Place(
                name="environment", components=("environment",), replicas="workers", device="cpu"
            ),
            Place(name="learner", components=BRAIN, optional=("buffer",), replicas=brains),
        ),
        summary=summary,
    )


def actors_and_learner(
    name: str,
    summary: str,
    each: str | None = None,
    learners: Replicas = "one",
    over: Over = "environments",
) -> Policy:
    """Workers act in their environments; one learner, or one for `each`, gets trajectories."""
    return Policy(
        name=name,
        places=(
            Place(
                name="environment", components=("environment",), replicas="workers", device="cpu"
            ),
            Place(
                name="actor",
                components=("actor",),
                replicas="workers",
                paired_with="environment",
            ),
            Place(
                name="learner",
                components=("learner",),
                optional=("buffer",),
                replicas=learners,
                over=over,
                each=each,
            ),
        ),
        summary=summary,
    )


def parameter_server(name: str, summary: str) -> Policy:
    """Workers do all but the update, which one server makes for them."""
    return Policy(
        name=name,
        places=(
            Place(
                name="worker",
                components=("environment",),
                optional=(*BRAIN, "buffer"),
                replicas="workers",
            ),
            Place(name="server", components=("learner.update",)),
        ),
        summary=summary,
        ahead=0,
    )


def devices_apart(name: str, summary: str) -> Policy:
    """Some devices act, others learn, at the same time."""
    return Policy(
        name=name,
        places=(
            Place(
                name="actor",
                components=("environment", "actor"),
                replicas="workers",
                own_devices=True,
            ),
            Place(
                name="learner",
                components=("learner",),
                optional=("buffer",),
                replicas="learners",
                own_devices=True,
            ),
        ),
        summary=summary,
        synchronisation=Lag(iterations=1),
    )


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        actors_and_learner(
            "single-learner-coarse",
            "workers roll out, one learner learns; trajectories up, parameters down, per iteration",
        ),
        actors_and_learner(
            "learner-per-team",
            "workers roll out, and every team of agents has a learner of its own",
            each="team",
        ),
        actors_and_learner(
            "agents",
            "workers roll out, and learners have some of the agents each; gradients are averaged",
            learners="learners",
            over="agents",
        ),
        environments_apart(
            "single-learner-fine",
            "workers step environments, one learner acts and learns; observations up, actions "
            "down, each step",
            brains="one",
        ),
        environments_apart(
            "multi-learner",
            "as many learners as workers, in pairs; gradients are averaged among learners",
            brains="workers",
        ),
        everything_together(
            "gpu-only", "the whole loop in one compiled program, on one or more devices"
        ),
        environments_apart(
            "environments",
            "environments on workers of their own, serving a group of learners",
            brains="learners",
        ),
        parameter_server(
            "central", "workers compute gradients, one server updates; parameters come back"
        ),
        devices_apart(
            "split-device",
            "some devices act, others learn from what was collected before (lag=1)",
        ),
    )
}

ALIASES: dict[PolicyAlias, PolicyName] = {
    "fused": "gpu-only",
    "DP-SingleLearnerCoarse": "single-learner-coarse",
    "DP-SingleLearnerFine": "single-learner-fine",
    "DP-MultiLearner": "multi-learner",
    "DP-MultipleLearners": "multi-learner",
    "DP-GPUOnly": "gpu-only",
    "DP-Environments": "environments",
    "DP-Central": "central",
    "sebulba": "split-device",
}


def named_policy(name: str) -> Policy:
    """The policy called `name`; the names of the MSRL paper are accepted too."""
    if name in POLICIES:
        return POLICIES[name]
    by_lower: dict[str, PolicyName] = {alias.lower(): target for alias, target in ALIASES.items()}
    if name.lower() in by_lower:
        return POLICIES[by_lower[name.lower()]]
    raise PolicyError(unknown("policy", name, [*POLICIES, *ALIASES]))
