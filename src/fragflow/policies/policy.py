"""The vocabulary of distribution policies: which components run together, how often, on what."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fragflow.errors import PolicyError, did_you_mean, unknown
from fragflow.policies.synchronisation import LOCKSTEP, Synchronisation

Replicas = Literal["one", "workers", "learners"]
Device = Literal["cpu", "accelerator"]
Over = Literal["environments", "agents"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


RESERVED = "+#@"
"""characters that no name in a policy may have: they join made-up names, as in `a+b`"""


def _refuse_reserved(what: str, name: str) -> None:
    """Refuses `name`; `what` is how the message begins."""
    if not name or set(name) & set(RESERVED):
        raise PolicyError(
            f"{what} {name!r}: expected a name, without {', '.join(RESERVED[:-1])} and "
            f"{RESERVED[-1]}, which join names"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One fragment of a policy."""

    name: str
    components: tuple[str, ...]
    """a name stands for itself and all that follow it with a dot; the more specific one wins"""
    replicas: Replicas | int = "one"
    """a number, or the name of one of the deployment's"""
    over: Over = "environments"
    """the axis that its replicas divide: environments, or the agents of every team"""
    device: Device = "accelerator"
    paired_with: str | None = None
    """a fragment whose workers its replicas share; on the same device, both become one"""
    optional: tuple[str, ...] = ()
    """components that an algorithm need not have"""
    own_devices: bool = False
    """its replicas have devices that no other fragment uses"""
    each: str | None = None
    """a word: components that end with it and a number (`learner.update.team0`, ...) get a fragment
    for each number"""

    def __post_init__(self) -> None:
        title = f"fragment {self.name!r}"
        for what, given in (("components", self.components), ("optional", self.optional)):
            if isinstance(given, str):
                raise PolicyError(
                    f"{title}: {what} is the text {given!r}: expected a tuple, ({given!r},)"
                )
        if self.replicas not in get_args(Replicas) and not _is_count(self.replicas):
            raise PolicyError(
                f"{title}: replicas is {self.replicas!r}: expected one, workers, learners or a "
                "whole number of at least 1"
            )
        for what, given, known in (("device", self.device, Device), ("over", self.over, Over)):
            if given not in get_args(known):
                raise PolicyError(f"{title}: {unknown(what, str(given), get_args(known))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The cut of a training loop into fragments. Data: it knows no algorithm and no machine."""

    name: str
    places: tuple[Place, ...]
    summary: str = ""
    synchronisation: Synchronisation = LOCKSTEP
    ahead: int = 1
    """if asynchronous: messages of one worker that may wait while it goes on"""
    first: int | None = None
    """environments of a worker acted on at a time, the first that have answered, where they answer
    one by one (EnvPool's); None: all together"""

    def __post_init__(self) -> None:
        names = [place.name for place in self.places]
        for name in names:
            _refuse_reserved(f"policy {self.name!r}: a fragment is named", name)
            if names.count(name) > 1:
                raise PolicyError(f"policy {self.name!r} has two fragments named {name!r}")
        for place in self.places:
            title = f"policy {self.name!r}: fragment {place.name!r}"
            for component in (*place.components, *place.optional):
                _refuse_reserved(f"{title} has component", component)
            if place.paired_with is not None:
                _refuse_reserved(f"{title} is paired with", place.paired_with)
            if place.paired_with is not None and place.paired_with not in names:
                raise PolicyError(
                    f"policy {self.name!r} pairs fragment {place.name!r} with "
                    f"{place.paired_with!r}, which it does not have. Its fragments are: "
                    f"{', '.join(names)}."
                )
        given = self.synchronisation
        if not isinstance(given, Synchronisation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(
                f"policy {self.name!r}: synchronisation is {given!r}: expected "
                "ff.Lockstep(), ff.Lag(iterations=K) or ff.Asynchronous()"
            )
        seen: dict[str, str] = {}
        for place in self.places:
            for component in (*place.components, *place.optional):
                if component in seen:
                    raise PolicyError(
                        f"policy {self.name!r} places component {component!r} twice: in "
                        f"{seen[component]!r} and in {place.name!r}. Place it once."
                    )
                seen[component] = place.name

    @property
    def is_one_program(self) -> bool:
        """True if it compiles the whole loop, environments included, for an accelerator."""
        return len(self.places) == 1 and self.places[0].device == "accelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The workers, learners and devices that a run may use."""

    workers: int = 1
    learners: int = 1
    accelerator: str = "cpu"
    """platform of the accelerators (gpu, tpu), or cpu where there are none"""
    slots: Mapping[str, int] = field(default_factory=dict[str, int])
    """by platform, the number of replicas with a place of their own; more are fused"""

    def __post_init__(self) -> None:
        for name, count in (("workers", self.workers), ("learners", self.learners)):
            if count < 1:
                raise PolicyError(f"{name} is {count}: expected at least 1")

    def count(self, replicas: Replicas | int) -> int:
        if isinstance(replicas, int):
            return replicas
        return {"one": 1, "workers": self.workers, "learners": self.learners}[replicas]

    def fused(self, replicas: int, platform: str) -> int:
        """Replicas that remain when those that share a place become one, with a larger batch."""
        places = self.slots.get(platform, replicas)
        return max(r for r in range(1, replicas + 1) if replicas % r == 0 and r <= max(places, 1))

    def platform(self, device: Device) -> str:
        return "cpu" if device == "cpu" else self.accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A fragment of a policy, with the deployment's numbers filled in."""

    name: str
    places: tuple[str, ...]
    """those of the policy that are this fragment: several where paired ones are one"""
    components: tuple[str, ...]
    replicas: int
    device: str
    num_envs: int
    """environments per replica"""
    asked_replicas: int
    """before replicas that share a place were fused"""
    over: Over = "environments"
    own_devices: bool = False
    first_device: int = 0
    """index of its first device, among those of its platform"""


def place(
    policy: Policy,
    deployment: Deployment,
    components: Iterable[str],
    num_envs: int,
    teams: tuple[int, ...] = (),
) -> tuple[Placed, ...]:
    """The fragments of `policy` for an algorithm with these components.

    `teams` are the numbers of agents in each; empty for one agent without an axis of its own.
    """
    components = sorted(components)
    policy = _with_each(policy, components)
    assignment = assign(policy, components)
    placed: list[Placed] = []
    taken = 0
    for together in _merge_pairs(policy.places, deployment):
        spec, names = together[0], tuple(p.name for p in together)
        name = "+".join(names)
        owned = tuple(sorted(c for c, owner in assignment.items() if owner in names))
        if not owned:
            continue
        replicas = deployment.count(spec.replicas)
        if spec.over == "agents":
            _check_agents(policy, name, replicas, owned, teams)
        elif num_envs % replicas:
            fits = [r for r in range(1, num_envs + 1) if num_envs % r == 0]
            nearest = min(fits, key=lambda r: abs(r - replicas))
            raise PolicyError(
                f"num-envs is {num_envs}, which cannot be divided among the {replicas} replicas of "
                f"fragment {name!r} under policy {policy.name!r}: use a multiple of "
                f"{replicas}, for example {max(1, round(num_envs / replicas)) * replicas}, "
                f"or {nearest} replicas."
            )
        platform = deployment.platform(spec.device)
        fused = deployment.fused(replicas, platform)
        placed.append(
            Placed(
                name=name,
                places=names,
                components=owned,
                replicas=fused,
                device=platform,
                num_envs=num_envs if spec.over == "agents" else num_envs // fused,
                asked_replicas=replicas,
                over=spec.over,
                own_devices=spec.own_devices,
                first_device=taken if spec.own_devices else 0,
            )
        )
        taken += fused if spec.own_devices else 0
    for over in ("environments", "agents"):
        counts = sorted({p.replicas for p in placed if p.over == over})
        for small, large in itertools.pairwise(counts):
            if large % small:
                raise PolicyError(
                    f"policy {policy.name!r} would run {small} replicas of one fragment beside "
                    f"{large} of another: one number must divide the other. Change --workers or "
                    "--learners."
                )
    return tuple(placed)


def _check_agents(
    policy: Policy, name: str, replicas: int, owned: tuple[str, ...], teams: tuple[int, ...]
) -> None:
    """Checks that agents can be divided among the replicas of a fragment."""
    title = f"policy {policy.name!r} divides agents among the replicas of fragment {name!r}"
    if any(c.split(".")[0] == "environment" for c in owned):
        raise PolicyError(f"{title}, which has the environment: its agents share one world")
    if not teams and replicas > 1:
        raise PolicyError(
            f"{title}, but this environment has a single agent. Use one with several, or another "
            "policy (multi-learner)."
        )
    if any(size % replicas for size in teams):
        fits = [r for r in range(1, min(teams) + 1) if all(size % r == 0 for size in teams)]
        nearest = min(fits, key=lambda r: abs(r - replicas))
        sizes = " and ".join(map(str, teams))
        what = f"teams of {sizes}" if len(teams) > 1 else f"a team of {sizes}"
        raise PolicyError(
            f"{title}, but {what} cannot be divided among {replicas}: use {nearest} "
            f"replica{'s' * (nearest > 1)} (--learners)."
        )


def _with_each(policy: Policy, components: Sequence[str]) -> Policy:
    """`policy` with a fragment for each number that components of a place end with."""
    places: list[Place] = []
    for spec in policy.places:
        numbered: dict[str, list[str]] = {}
        claims = (*spec.components, *spec.optional)
        for component in components if spec.each is not None else ():
            word = component.rpartition(".")[2]
            is_claimed = any(component.startswith(claim + ".") for claim in claims)
            if is_claimed and re.fullmatch(rf"{spec.each}\d+", word):
                numbered.setdefault(word, []).append(component)
        plain = replace(spec, each=None)
        if len(numbered) < 2:
            places.append(plain)
            continue
        # Components without a number stay together, if there are any.
        places.append(replace(plain, components=(), optional=claims))
        places += [
            replace(plain, name=f"{spec.name}-{word}", components=tuple(owned), optional=())
            for word, owned in numbered.items()
        ]
    return replace(policy, places=tuple(places))


def assign(policy: Policy, components: Iterable[str]) -> Mapping[str, str]:
    """Finds the fragment that owns each component; exactly one does."""
    known = sorted(components)
    policy = _with_each(policy, known)
    claims = {
        c: place.name for place in policy.places for c in (*place.components, *place.optional)
    }
    required = [c for place in policy.places for c in place.components]
    for claim in required:
        if not any(c == claim or c.startswith(claim + ".") for c in known):
            raise PolicyError(
                f"policy {policy.name!r} places component {claim!r}, which the algorithm does not "
                f"have.{did_you_mean(claim, known)} Its components are: {', '.join(known)}."
            )
    assignment: dict[str, str] = {}
    for component in known:
        words = component.split(".")
        prefixes = [".".join(words[:k]) for k in range(len(words), 0, -1)]
        owner = next((claims[p] for p in prefixes if p in claims), None)
        if owner is None:
            raise PolicyError(
                f"policy {policy.name!r} does not place component {component!r}. Add it to one of "
                f"its fragments: {', '.join(place.name for place in policy.places)}."
            )
        assignment[component] = owner
    return assignment


def _merge_pairs(places: tuple[Place, ...], deployment: Deployment) -> Sequence[tuple[Place, ...]]:
    """The places of each fragment; paired ones that would share a device make one, as the first."""
    merged: list[tuple[Place, ...]] = [(spec,) for spec in places]
    for spec in places:
        if spec.paired_with is None:
            continue
        own, partners = (
            next(together for together in merged if name in [p.name for p in together])
            for name in (spec.name, spec.paired_with)
        )
        partner = partners[0]
        same_device = deployment.platform(spec.device) == deployment.platform(partner.device)
        same_count = deployment.count(spec.replicas) == deployment.count(partner.replicas)
        if own is not partners and same_device and same_count:
            merged.remove(own)
            merged[merged.index(partners)] = (*partners, *own)
    return merged


def replicas_over(over: Over, placed: Sequence[Placed]) -> dict[str, int]:
    """By fragment, its replicas along `over`: one for fragments replicated over something else."""
    return {p.name: p.replicas if p.over == over else 1 for p in placed}
