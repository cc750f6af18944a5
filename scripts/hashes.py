"""Compares the parameters of short runs with tests/hashes.json: nothing may change unnoticed.

python scripts/hashes.py            runs every cell and names those whose parameters differ
python scripts/hashes.py --write    keeps what it finds
python scripts/hashes.py ppo sac    only these algorithms

A cell is an algorithm under a policy, in lockstep or one iteration late, as far as
docs/algorithms-and-policies.md has it; three iterations of the smallest settings. Bits belong to
the versions and the CPU they were made with: elsewhere, make them anew at the commit before.
"""

import argparse
import gc
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One thread for each device of a collective, or it waits for ever. Read when JAX starts.
os.environ.setdefault("NPROC", "16")

import jax

import fragflow as ff
from fragflow.algorithms import ALGORITHMS
from fragflow.policies import POLICIES
from fragflow.tools.experiment.run_directory import versions

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "hashes.json"
TABLE = ROOT / "docs" / "algorithms-and-policies.md"
SYNCHRONISATIONS = {"L": "lockstep", "K": "lag=1"}
NUM_ENVS, ITERATIONS = 8, 3

ON_POLICY = {"rollout_length": 8, "hidden": (8,)}
EPOCHS = {**ON_POLICY, "epochs": 2, "minibatches": 2}
REPLAY = {**ON_POLICY, "batch_size": 16, "buffer_size": 256, "updates": 2}
TAG = {"agents": 6, "taggers": 2, "neighbours": 3}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", EPOCHS),
    "a2c": ("CartPole-v1", ON_POLICY),
    "a3c": ("CartPole-v1", ON_POLICY),
    "impala": ("CartPole-v1", ON_POLICY),
    "recurrent-ppo": ("CartPole-positions", {**EPOCHS, "chunk_length": 4}),
    "ippo": ("Tag", EPOCHS),
    "mappo": ("Tag", {**EPOCHS, "chunk_length": 4}),
    "dqn": ("CartPole-v1", {**REPLAY, "learning_starts": 64}),
    "sac": ("Pendulum-v1", {**REPLAY, "learning_starts": 64}),
}
"""the environment and the smallest settings of each algorithm"""


def cells(page: str) -> Iterator[tuple[str, str, str]]:
    """(algorithm, policy, synchronisation) of every cell of the table that runs and repeats."""
    rows = dict(re.findall(r"^\| ([\w-]+) \| (.*) \|$", page, re.M))
    for algorithm in ALGORITHMS:
        for policy, marks in zip(POLICIES, rows[algorithm].split(" | "), strict=True):
            for letter in re.findall(r"\*\*([LK])\*\*", marks):
                yield algorithm, policy, SYNCHRONISATIONS[letter]


def trained(algorithm: str, policy: str, sync: str) -> ff.Result:
    """A short run with two workers and two learners.

    Kernels are XLA's: with few optimisations it rounds products and sums apart, those by hand not.
    """
    env, settings = SMALL[algorithm]
    return ff.train(
        algorithm,
        env,
        env_args=TAG if env == "Tag" else None,
        hyperparameters=settings,
        num_envs=NUM_ENVS,
        total_steps=ITERATIONS * NUM_ENVS * settings["rollout_length"],
        policy=policy,
        sync=sync,
        workers=2,
        learners=2,
        implementations=None if "buffer_size" in settings else {"discounted_sums": "xla"},
        eval_episodes=0,
        quiet=True,
    )


def circumstances() -> dict[str, str]:
    """What bits depend on beside the code."""
    found = {k: v for k, v in versions().items() if k in ("jax", "jaxlib", "numpy", "optax")}
    return {**found, "cpu": _cpu()}


def _cpu() -> str:
    """The model with its numbers: a name alone may be that of several, with other bits."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: (.*)$", text, re.M))
    return " ".join(found.values()) or platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="*", choices=[*ALGORITHMS, []])
    parser.add_argument("--write", action="store_true", help="keep what is found")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would go there
    here = circumstances()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"made_with": here, "cells": {}}
    if kept["made_with"] != here and not options.write:
        print(f"kept for {kept['made_with']}, here is {here}: compare with --write at two commits")
        return 2
    chosen = options.algorithms or list(ALGORITHMS)
    found: dict[str, str] = {}
    untried: list[str] = []
    for algorithm, policy, sync in cells(TABLE.read_text()):
        if algorithm not in chosen:
            continue
        name = f"{algorithm} {policy} {sync}"
        result = trained(algorithm, policy, sync)
        found[name] = result.params_sha256
        if "could not be tried" in result.probe:
            untried.append(name)
        was = kept["cells"].get(name)
        word = "new" if was is None else "same" if was == found[name] else "DIFFERS"
        print(f"{word:8}{name} (probe: {result.probe})", flush=True)
        jax.clear_caches()
        gc.collect()
    differ = [name for name, value in found.items() if kept["cells"].get(name) != value]
    gone = [n for n in kept["cells"] if n not in found and n.split()[0] in chosen]
    print(
        f"{len(found)} cells, {len(differ)} differ or are new, {len(gone)} are gone, the probe "
        f"failed in {len(untried)}"
    )
    if options.write:
        others = {n: v for n, v in kept["cells"].items() if n.split()[0] not in chosen}
        KEPT.write_text(json.dumps({"made_with": here, "cells": {**others, **found}}, indent=1))
        return 0
    return 1 if differ or gone or untried else 0


if __name__ == "__main__":
    sys.exit(main())
