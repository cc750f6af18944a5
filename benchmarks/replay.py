"""How fast learning from a replay buffer is in one program: DQN and SAC against rejax.

Both sides have the same environments, buffer, batch, network and gradient steps per step.
"""

import argparse
from pathlib import Path
from typing import Any

import measure
from fused import RIVAL
from measure import HERE, Worker, as_data, cache, interleaved, median, print_table, rival_python

TASKS: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", "envs": 16, "updates": 2, "batch": 128, "buffer": 65_536},
    "sac": {"env": "Pendulum-v1", "envs": 8, "updates": 4, "batch": 256, "buffer": 131_072},
}
"""`updates` is gradient steps per step of all environments"""
HIDDEN = (64, 64)
ROLLOUT = 8
"""steps of all environments per iteration on this side; the rival makes one"""
TARGET = 1.2


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    results: dict[str, Any] = {"machine": measure.machine(), "network": f"relu {HIDDEN}"}
    python = rival_python(options.venv, RIVAL)
    for name in options.only:
        results[name] = _against_rival(name, python, options)
    measure.write(options.json, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--repeats", type=int, default=5, help="samples of each side")
    add("--steps", type=int, default=8_192, help="environment steps per sample")
    add("--only", nargs="+", choices=TASKS, default=list(TASKS), help="the algorithms to run")
    add("--json", type=Path, help="where to write the results as data")
    add("--venv", type=Path, default=cache() / "rejax", help="where the rival is installed")
    add("--worker", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps % (16 * ROLLOUT):
        parser.error(f"--steps must be a multiple of {16 * ROLLOUT}")
    return options


def _against_rival(name: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    task = TASKS[name]
    ours = Worker(HERE / "replay.py", "--worker", name, "--steps", options.steps)
    settings = [f"--{key}={task[key]}" for key in ("envs", "updates", "batch", "buffer")]
    words = ["--algorithm", name, "--steps", options.steps, *settings]
    theirs = Worker(HERE / "rejax_worker.py", *words, python=python)
    samples = interleaved(
        {"fragflow": lambda: ours.run("go"), "rejax": lambda: theirs.run("go")}, options.repeats
    )
    ours.close()
    theirs.close()
    rates = {side: options.steps / median(all_) for side, all_ in samples.items()}
    ratio = rates["fragflow"] / rates["rejax"]
    per_step = task["updates"] / task["envs"]
    print_table(
        f"{name}, {task['env']}, {task['envs']} environments, batches of {task['batch']}, buffer "
        f"of {task['buffer']:,}, {task['updates']} gradient steps per step of all",
        ("", "steps/s", "gradient steps/s", "median s"),
        [
            (side, f"{rates[side]:,.0f}", f"{rates[side] * per_step:,.0f}", f"{median(all_):.3f}")
            for side, all_ in samples.items()
        ],
    )
    print("  ratio", measure.verdict(ratio, TARGET, "x", at_least=True))
    print(f"  {measure.quiet(samples)}")
    return {
        **task,
        "steps": options.steps,
        "steps_per_second": rates,
        "ratio": ratio,
        "target": TARGET,
        "versions": {"fragflow": ours.info["versions"], "rejax": theirs.info["versions"]},
        **as_data(samples),
    }


def _work(options: argparse.Namespace) -> None:
    """The worker's side: the only place where JAX is imported."""
    import engines

    from fragflow.algorithms import algorithm_class

    task = TASKS[options.worker]
    algorithm = algorithm_class(options.worker)(
        rollout_length=ROLLOUT,
        updates=ROLLOUT * task["updates"],
        batch_size=task["batch"],
        buffer_size=task["buffer"],
        learning_starts=1024,
        hidden=HIDDEN,
        # rejax has no returns of several steps.
        **({"n_step": 1} if options.worker == "dqn" else {}),
    )
    driver = engines.Driver(engines.Task(task["envs"], algorithm, task["env"]).runtime("gpu-only"))
    iterations = options.steps // (ROLLOUT * task["envs"])
    measure.serve({"go": lambda: driver.advance(iterations)}, {"versions": engines.versions()})


if __name__ == "__main__":
    main()
