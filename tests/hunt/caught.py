"""What each check catches by itself: of wrong programs, those the static one refuses and the probe.

python -m hunt.caught --count 500            programs drawn at random
python -m hunt.caught --written              those that people wrote
python -m hunt.caught --replay SEED:INDEX    one that was drawn, and what the probe says of it

A drawn program is wrong if replicas that nobody has checked end somewhere else than the undivided
program does; that is found by a player of its own (lockstep.py), which shares nothing with either
check. Run it in tests/, or with that folder on PYTHONPATH.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.errors import FragflowError, ReplicaError
from fragflow.graph.cut import cut
from fragflow.graph.probe.probe import probe
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from graph.strangers import WRONG as STRANGERS
from graph.telling import Telling
from graph.test_sound import CAUSES
from graph.test_strangers import Stranger
from graph.toy import Drift
from hunt.programs import Case, drawn, play

POLICY = POLICIES["gpu-only"]
ENVS, WORKERS = 8, 2
"""for programs that people wrote"""
LEAST = 0.95
"""of wrong programs, how many the probe must catch without help"""
PORTION = 10
"""wrong programs after which counts are kept"""


@dataclass
class Caught:
    """Of some wrong programs, what caught them."""

    programs: int = 0
    accepted: list[str] = field(default_factory=list)
    """those that the static check lets through"""
    missed: list[str] = field(default_factory=list)
    """those that the probe lets through"""
    uncut: int = 0
    """those that cannot be cut, even unchecked: there is nothing to probe"""

    def add(self, name: str, source: Tracer, workers: int) -> None:
        self.programs += 1
        if is_accepted(source, workers):
            self.accepted.append(name)
        outcome = probed(source, workers)
        if outcome == "uncut":
            self.uncut += 1
        elif outcome != "caught":
            self.missed.append(f"{name} ({outcome})")

    @property
    def share(self) -> float:
        tried = self.programs - self.uncut
        return 1 - len(self.missed) / tried if tried else 1.0

    @property
    def is_enough(self) -> bool:
        return not self.accepted and self.share >= LEAST

    def __str__(self) -> str:
        static = self.programs - len(self.accepted)
        tried = self.programs - self.uncut
        return (
            f"{self.programs} wrong programs: {static} refused by the static check; of {tried} "
            f"that can be cut unchecked, {tried - len(self.missed)} caught by the probe "
            f"({100 * self.share:.1f} %)"
        )


@contextmanager
def unchecked() -> Iterator[None]:
    """The static check accepts everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fragflow.graph.check.check_replicas", lambda *_: None)
        yield


def is_accepted(source: Tracer, workers: int) -> bool:
    try:
        cut(source, POLICY, Deployment(workers=workers))
    except FragflowError:
        return False
    return True


def probed(source: Tracer, workers: int) -> str:
    """What the probe does without the static check: caught, or what else happened."""
    with unchecked():
        try:
            fdg = cut(source, POLICY, Deployment(workers=workers))
        except FragflowError:
            return "uncut"
    try:
        return f"worst {probe(fdg, source).worst:.0e}"
    except ReplicaError:
        return "caught"
    except Exception as error:  # then a run would go on, and say so
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def wrong(seed: int, index: int) -> tuple[Case, Tracer] | None:
    """A drawn program, if it is a wrong one that can be computed."""
    case = drawn(seed, index)
    if case is None:
        return None
    case = replace(case, policy="gpu-only")
    source = tracer(case.algorithm, Drift(), case.sizes.whole)
    try:
        source.at(source.extent)
        difference = play(source, case.sizes, np.random.default_rng([seed, index]))
    except Exception:  # no program, or one that nobody can compute part by part
        return None
    return (case, source) if difference else None


def of_people() -> Caught:
    """Programs that were written to be wrong, by cause and by those who had seen the docs alone."""
    found = Caught()
    algorithms: dict[str, Any] = {p.name: Stranger(p) for p in STRANGERS}
    for cause, members in CAUSES.items():
        algorithms |= {f"{cause}: {name}": Telling(e) for name, e in members.items()}
    for name, algorithm in algorithms.items():
        found.add(name, tracer(algorithm, Drift(), ENVS), WORKERS)
    return found


def at_random(count: int, seed: int, file: Path | None) -> Caught:
    kept: Any = json.loads(file.read_text()) if file and file.exists() else {}
    index: int = kept.pop("next", 0)
    found = Caught(**kept)
    while found.programs < count:
        made = wrong(seed, index)
        if made is not None:
            case, source = made
            found.add(f"{seed}:{index}", source, case.sizes.replicas)
        index += 1
        if made is not None and found.programs % PORTION == 0:
            jax.clear_caches()  # programs take memory maps, which are limited
            if file:
                file.write_text(json.dumps({"next": index, **vars(found)}))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--written", action="store_true", help="programs that people wrote")
    parser.add_argument("--replay", metavar="SEED:INDEX")
    parser.add_argument("--progress", type=Path, help="a file to go on from, and to keep counts in")
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if options.replay:
            seed, index = map(int, options.replay.split(":"))
            made = wrong(seed, index)
            print("no wrong program" if made is None else made[0])
            if made is not None:
                accepted = is_accepted(made[1], made[0].sizes.replicas)
                print("static check:", "accepted" if accepted else "refused")
                print("probe:", probed(made[1], made[0].sizes.replicas))
            return 0
        if options.written:
            found = of_people()
        else:
            found = at_random(options.count, options.seed, options.progress)
    for what, which in (("accepted", found.accepted), ("not caught", found.missed)):
        if which:
            print(f"{what}: {'; '.join(which)}")
    print(found)
    return 0 if found.is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
