"""What SAC has learnt after equally many steps: fragflow and Stable-Baselines3 on HalfCheetah-v5.

Both with their library's defaults, which are the same numbers: two hidden layers of 256, learning
rate 3e-4, batches of 256, a gradient step per environment step. fragflow plays in several
environments, Stable-Baselines3 in one. Greedy episodes at the end. Returns, not speed: both may run
at the same time, on a core each.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measure
from measure import HERE, cache, print_table, rival_python

import fragflow as ff

SB3 = ("torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium[mujoco]==1.3.0")
ENV = "HalfCheetah-v5"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    python = rival_python(cache() / "sb3-mujoco", SB3)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "sb3.json"
        numbers = [str(n) for n in (options.steps, options.episodes, options.seed)]
        rival = subprocess.Popen([python, str(HERE / "sb3_sac_worker.py"), *numbers, str(output)])
        ours = ff.train(
            "sac",
            f"gymnasium:{ENV}",
            total_steps=options.steps,
            seed=options.seed,
            eval_episodes=options.episodes,
        )
        rival.wait()
        theirs = json.loads(output.read_text())
    rows = [
        ["fragflow", f"{ours.env_steps:,}", f"{ours.eval_return:,.0f}"],
        ["Stable-Baselines3", f"{options.steps:,}", f"{theirs['return']:,.0f}"],
    ]
    print_table(f"SAC on {ENV}, seed {options.seed}", ["", "steps", "greedy return"], rows)
    results: dict[str, Any] = {
        "machine": measure.machine(),
        "fragflow": {"return": ours.eval_return, "steps": ours.env_steps},
        "sb3": theirs,
        "seed": options.seed,
        "episodes": options.episodes,
    }
    measure.write(options.json, results)


if __name__ == "__main__":
    main()
