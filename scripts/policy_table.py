"""Writes docs/algorithms-and-policies.md: every algorithm under every policy, or why not.

python scripts/policy_table.py          prints it
python scripts/policy_table.py --write  writes the file
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fragflow.algorithms import ALGORITHMS, algorithm_class
from fragflow.environments import make_environment
from fragflow.errors import FragflowError
from fragflow.graph.analyses.staleness import late_messages
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment, Policy, synchronisation

PAGE = Path(__file__).parent.parent / "docs" / "algorithms-and-policies.md"
ENVIRONMENTS = {
    "sac": "Pendulum-v1",
    "recurrent-ppo": "CartPole-positions",
}
TAG: dict[str, Any] = {"agents": 6, "taggers": 2, "neighbours": 3}
AGENTS = {"ippo": TAG, "mappo": TAG}
"""algorithms for several agents, and the game they play"""
WORKERS = 2
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
        all_workers = tracer(algorithm, environment, WORKERS * 2)
        one_worker = tracer(algorithm, environment, 2, WORKERS * 2)
        cells = []
        for policy in POLICIES.values():
            marks = []
            for letter, reason in zip(
                "LKA", refusals(all_workers, one_worker, policy), strict=True
            ):
                if reason is None:
                    marks.append(f"**{letter}**")
                else:
                    marks.append(str(reasons.setdefault(reason, len(reasons) + 1)))
            cells.append(" ".join(marks))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return INTRODUCTION + "\n".join(lines) + "\n\n## Why not\n\n" + "\n".join(notes) + "\n"


def refusals(all_workers: Tracer, one_worker: Tracer, policy: Policy) -> list[str | None]:
    """Why an algorithm cannot be in lockstep, late, asynchronous; None if it can."""
    policy, late, asynchronous = (
        replace(policy, synchronisation=synchronisation(kind))
        for kind in ("lockstep", "lag=1", "async")
    )
    several = Deployment(workers=WORKERS, learners=WORKERS)
    graphs: list[FDG] = []
    lockstep = refusal(policy, lambda: graphs.append(cut(all_workers, policy, several)))
    # The graph of a late policy is the same; only its messages must allow it.
    lag = lockstep if lockstep else refusal(late, lambda: late_messages(late, graphs[0]))
    return [
        lockstep,
        lag,
        refusal(asynchronous, lambda: cut(one_worker, asynchronous, Deployment())),
    ]


def refusal(policy: Policy, act: Callable[[], object]) -> str | None:
    """What an act says against a policy; None if nothing."""
    try:
        act()
    except FragflowError as error:
        reason = " ".join(str(error).split())
        reason = re.sub(rf"policy {policy.name!r}|^{policy.name}\b", "the policy", reason, count=1)
        reason = re.sub(r"\d+ times", "many times", reason)
        # Lines change with every edit; files do not.
        where = r"[^\s(]*/src/(fragflow/[\w/]+\.py):\d+:\d+ \([^)]*\)"
        reason = re.sub(where, r"`\1`", reason)
        return f"{reason[0].upper()}{reason[1:]}"
    return None


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
