"""Learning before and after a change of the algorithms: the same tasks and seeds, by two trees.

    git worktree add ../before COMMIT
    python benchmarks/learning_before_after.py ../before

Each task is trained from five seeds by the sources of either tree, one tree after the other, and
ends with 100 greedy episodes. Where no bit has changed the table says so; else it has the means
with the half-width of their 95 % intervals by Student's t, and that of the difference of seeds.
EnvPool's environments spend a step on starting an episode, which is masked.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learning_tables import summarised
from measure import HERE, machine, print_table, write

SEEDS = (0, 1, 2, 3, 4)
TAG = {"agents": 6, "taggers": 2, "neighbours": 3}
CHEETAH = {
    "normalise_observations": True,
    "learning_rate": 3e-4,
    "epochs": 10,
    "minibatches": 32,
    "max_grad_norm": 5.0,
    "entropy_coef": 0.0,
}
TASKS: dict[str, tuple[str, str, int, Mapping[str, Any]]] = {
    "ppo, CartPole-v1": ("ppo", "CartPole-v1", 131_072, {}),
    "ppo, Pendulum-v1": ("ppo", "Pendulum-v1", 131_072, {"gamma": 0.9}),
    "ippo, Tag": ("ippo", "Tag", 32_768, {}),
    "ppo, envpool:CartPole-v1": ("ppo", "envpool:CartPole-v1", 65_536, {}),
    "recurrent-ppo, envpool:CartPole-v1": ("recurrent-ppo", "envpool:CartPole-v1", 65_536, {}),
    "ppo, envpool:HalfCheetah-v4": ("ppo", "envpool:HalfCheetah-v4", 131_072, CHEETAH),
}
"""algorithm, environment, steps, settings"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the tree with the sources before")
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument(
        "--results", type=Path, default=HERE / "results" / "learning_before_after.json"
    )
    options = parser.parse_args()
    if options.worker:
        train(options.worker)
        return
    trees = {"before": options.before.resolve(), "after": HERE.parent}
    found: dict[str, Any] = {
        "machine": {k: v for k, v in machine().items() if k != "command"},
        "commits": {side: _commit(tree) for side, tree in trees.items()},
        "tasks": {},
    }
    for task in options.task:
        found["tasks"][task] = {side: _trained(tree, task) for side, tree in trees.items()}
        write(options.results, found)
    _show(found["tasks"])


def train(task: str) -> None:
    """The worker's side: a line for each seed."""
    import fragflow as ff  # that of the tree

    algorithm, env, steps, settings = TASKS[task]
    for seed in SEEDS:
        result = ff.train(
            algorithm,
            env,
            env_args=TAG if env == "Tag" else None,
            hyperparameters=dict(settings),
            total_steps=steps,
            seed=seed,
            quiet=True,
            probe=False,
        )
        found = {"seed": seed, "return": result.eval_return, "params": result.params_sha256}
        print(json.dumps(found), flush=True)


def _trained(tree: Path, task: str) -> list[dict[str, Any]]:
    script = [sys.executable, __file__, str(tree), "--worker", task]
    variables = {**os.environ, "PYTHONPATH": str(tree / "src")}
    made = subprocess.run(script, env=variables, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in made.stdout.splitlines()]


def _show(tasks: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> None:
    rows = []
    for task, sides in tasks.items():
        before, after = ([row["return"] for row in sides[side]] for side in ("before", "after"))
        bits = [[row["params"] for row in rows] for rows in sides.values()]
        change = [b - a for a, b in zip(before, after, strict=True)]
        is_same = bits[0] == bits[1]
        rows.append((task, _mean(before), _mean(after), "same bits" if is_same else _mean(change)))
    print_table("mean return of 100 greedy episodes", ("", "before", "after", "change"), rows)


def _mean(returns: Sequence[float]) -> str:
    found = summarised(returns)
    return f"{found.mean:.1f} ± {found.half_width:.1f}"


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
