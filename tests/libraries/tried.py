"""Does an environment of a library learn the same with 1, 2 and 4 workers?

python -m libraries.tried brax:reacher                       the three policies of POLICIES
python -m libraries.tried mine:Game --policy multi-learner   one of them; `mine` is a module here

Each run makes two iterations of PPO (IPPO for several agents) with the smallest settings, compiled
with few optimisations and probed as those of users are. What it learnt must be what one worker
learns, up to rounding. Run it in tests/, or with that folder on PYTHONPATH.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# One thread for each device of a collective, or it waits for ever. Read when JAX starts.
os.environ.setdefault("NPROC", "16")

import jax
import numpy as np

from fragflow.algorithms import algorithm_class
from fragflow.api.environment import num_agents_of
from fragflow.errors import FragflowError
from fragflow.policies import named_policy
from fragflow.run import Experiment, Silent, Start, run
from fragflow.tools.inputs.resolve import find_environment

POLICIES = ("single-learner-coarse", "multi-learner", "central")
WORKERS = (1, 2, 4)
NUM_ENVS = 8
SETTINGS: dict[str, Any] = {"rollout_length": 4, "epochs": 1, "minibatches": 1, "hidden": (8,)}
MOST = 1e-2
"""of how far one worker's parameters moved, by how much those of others may differ: where a
gradient is nearly nothing, Adam divides rounding by rounding. What half of the environments teach,
as a wrong cut might, differs by 1.5 (CartPole)."""


class First(Silent):
    """Remembers what a run began with, and what was tried before."""

    params: list[np.ndarray]
    probe: str

    def started(self, start: Start) -> None:
        self.params, self.probe = _numbers(start.state().params), start.probe


def _numbers(params: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]


def trained(environment: Any, policy: str, workers: int, seed: int = 0) -> dict[str, Any]:
    """The parameters after two iterations, and by how much they moved."""
    algorithm = algorithm_class("ppo" if num_agents_of(environment) is None else "ippo")
    experiment = Experiment(
        algorithm=algorithm(**SETTINGS),
        environment=environment,
        num_envs=NUM_ENVS,
        total_steps=2 * NUM_ENVS * SETTINGS["rollout_length"],
        seed=seed,
    )
    first = First()
    outcome = run(experiment, named_policy(policy), workers=workers, observer=first)
    last = _numbers(outcome.state.params)
    return {
        "iterations": len(outcome.rows),
        "probe": first.probe,
        "params": np.concatenate([leaf.ravel() for leaf in last]).tolist(),
        "moved": max(float(np.abs(a - b).max()) for a, b in zip(first.params, last, strict=True)),
    }


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest between parameters, of how far they moved; infinite if something is no number."""
    apart = np.abs(np.subtract(one["params"], other["params"])).max() / one["moved"]
    return float(apart) if np.isfinite(apart) else float("inf")


def tried(
    env: str,
    policies: Sequence[str] = POLICIES,
    numbers: Sequence[int] = WORKERS,
    file: Path | None = None,
) -> str:
    """A line of what was found; raises an error if anything is wrong."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    environment = find_environment(env, {})
    for policy in policies:
        for workers in numbers:
            name = f"{policy} {workers}"
            if name not in kept:
                kept[name] = trained(environment, policy, workers)
                print(f"{env} {name}: probe {kept[name]['probe']}", flush=True)
                jax.clear_caches()  # programs take memory maps, which are limited
            if file:
                file.write_text(json.dumps(kept))
    one = kept[f"{policies[0]} {numbers[0]}"]
    apart = {name: difference(one, other) for name, other in kept.items()}
    wrong = [f"{name} by {d:.0e}" for name, d in apart.items() if d > MOST]
    wrong += [
        f"{name} in {k['iterations']} iterations"
        for name, k in kept.items()
        if k["iterations"] != 2
    ]
    if wrong:
        raise AssertionError(f"{env}: parameters differ: {', '.join(wrong)}")
    workers = ", ".join(map(str, numbers))
    return (
        f"{env} with {workers} workers under {', '.join(policies)}: {len(kept)} runs, "
        f"parameters differ by at most {max(apart.values()):.0e} of how far they moved"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--progress", type=Path, help="a file to go on from, and to keep runs in")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", max(options.workers))
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would go there
    warnings.simplefilter("ignore")  # Brax warns of itself
    try:
        policies = options.policy or POLICIES
        print(tried(options.env, policies, options.workers, options.progress))
    except (FragflowError, AssertionError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
