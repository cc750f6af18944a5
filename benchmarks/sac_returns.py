"""What SAC has learnt after equally many steps: fragflow and Stable-Baselines3 on HalfCheetah-v5.

Both with their library's defaults, which are the same numbers: two hidden layers of 256, learning
rate 3e-4, batches of 256, a gradient step per environment step. fragflow plays in several
environments, Stable-Baselines3 in one. Greedy episodes at the end. Returns, not speed: both run at
the same time, on a core each. A seed is in the file as soon as it is done, and not trained again.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measure
from learning_tables import summarised
from measure import HERE, cache, print_table, rival_python

SB3 = ("torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium[mujoco]==1.3.0")
ENV = "HalfCheetah-v5"
SIDES = {"fragflow": "fragflow", "sb3": "Stable-Baselines3"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    results: dict[str, Any] = {"steps": options.steps, "episodes": options.episodes, "runs": []}
    if options.json and options.json.exists():
        before = json.loads(options.json.read_text(encoding="utf-8"))
        if any(before.get(key) != results[key] for key in ("steps", "episodes")):
            raise SystemExit(f"{options.json} has runs of another length: name another file")
        results = before
    python = rival_python(cache() / "sb3-mujoco", SB3)
    for seed in options.seeds:
        if seed not in {run["seed"] for run in results["runs"]}:
            results["runs"].append(trained(python, seed, options))
            measure.write(options.json, results)
    report(results)


def trained(python: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What both sides reach with a seed."""
    import fragflow as ff

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "sb3.json"
        numbers = [str(n) for n in (options.steps, options.episodes, seed)]
        rival = subprocess.Popen([python, str(HERE / "sb3_sac_worker.py"), *numbers, str(output)])
        ours = ff.train(
            "sac",
            f"gymnasium:{ENV}",
            total_steps=options.steps,
            seed=seed,
            eval_episodes=options.episodes,
        )
        if rival.wait():
            raise SystemExit(f"Stable-Baselines3 ended with exit code {rival.returncode}")
        theirs = json.loads(output.read_text(encoding="utf-8"))
    return {
        "seed": seed,
        "fragflow": ours.eval_return,
        "sb3": theirs["return"],
        "machine": measure.machine(),
        "versions": dict(ours.versions) | {"sb3": theirs["version"]},
    }


def report(results: dict[str, Any]) -> None:
    rows = []
    for side, title in SIDES.items():
        found = summarised([run[side] for run in results["runs"]])
        values = (found.mean, found.half_width, found.lowest, found.highest)
        rows.append((title, str(found.seeds), *(f"{value:,.0f}" for value in values)))
    header = ("", "seeds", "greedy return", "± (95 %, t)", "lowest", "highest")
    print_table(f"SAC on {ENV}, {results['steps']:,} steps", header, rows)


if __name__ == "__main__":
    main()
