"""Writes docs/algorithms-and-policies.md: every algorithm under every policy, or why not.

python scripts/policy_table.py          prints it
python scripts/policy_table.py --write  writes the file
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fragflow.algorithms import ALGORITHMS, algorithm_class
from fragflow.environments import make_environment
from fragflow.errors import FragflowError
from fragflow.graph.cut import Traced, cut, traced
from fragflow.policies import POLICIES, Deployment, Policy, synchronisation

PAGE = Path(__file__).parent.parent / "docs" / "algorithms-and-policies.md"
ENVIRONMENTS = {
    "sac": "Pendulum-v1",
    "recurrent-ppo": "CartPole-positions",
}
TAG: dict[str, Any] = {"agents": 6, "neighbours": 3}
AGENTS = {"ippo": TAG, "mappo": TAG}
"""algorithms for several agents, and the game they play"""
WORKERS = 2
KINDS = ("lockstep", "lag=1", "async")
INTRODUCTION = """\
# Algorithms and policies

What every algorithm can be deployed as, with two workers and two learners. This page is made by
`python scripts/policy_table.py --write`, which cuts each of them; a test keeps it true.

A letter means that it runs. `L` is lockstep, where results are those of the undivided program; `K`
a lag (`--sync lag=K`); `A` asynchronous (`--sync async`). A number instead refers to the reason
below.

"""


def page() -> str:
    """The whole page."""
    reasons: dict[str, int] = {}
    lines = [
        f"| | {' | '.join(POLICIES)} |",
        f"|---|{'---|' * len(POLICIES)}",
    ]
    for name in ALGORITHMS:
        if name in AGENTS:
            environment = make_environment("Tag", **AGENTS[name])
        else:
            environment = make_environment(ENVIRONMENTS.get(name, "CartPole-v1"))
        algorithm = algorithm_class(name)()
        all_workers = traced(algorithm, environment, WORKERS * 2)
        one_worker = traced(algorithm, environment, 2, WORKERS * 2)
        cells = []
        for policy in POLICIES.values():
            marks = []
            for kind, letter in zip(KINDS, "LKA", strict=True):
                chosen = replace(policy, synchronisation=synchronisation(kind))
                reason = (
                    refusal(one_worker, chosen, 1)
                    if kind == "async"
                    else refusal(all_workers, chosen, WORKERS)
                )
                if reason is None:
                    marks.append(f"**{letter}**")
                else:
                    marks.append(str(reasons.setdefault(reason, len(reasons) + 1)))
            cells.append(" ".join(marks))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return INTRODUCTION + "\n".join(lines) + "\n\n## Why not\n\n" + "\n".join(notes) + "\n"


def refusal(source: Traced, policy: Policy, workers: int) -> str | None:
    """Why an algorithm cannot be deployed so; None if it can."""
    try:
        cut(source, policy, Deployment(workers=workers, learners=workers))
    except FragflowError as error:
        reason = " ".join(str(error).split())
        for words in (f"policy {policy.name!r}", policy.name):
            reason = reason.replace(words, "the policy", 1)
        reason = re.sub(r"\d+ times", "many times", reason)
        return f"{reason[0].upper()}{reason[1:]}"
    return None


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
