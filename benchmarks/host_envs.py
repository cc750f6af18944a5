"""Environments on the host: PPO against rivals, and against what its parts can do at best.

- cartpole: Gymnasium's CartPole-v1, 64 environments, against Stable-Baselines3 and RLlib;
- cheetah: EnvPool's HalfCheetah-v4, 64 environments, against a plain PyTorch loop over the same
  pool, and against the bound composed of raw stepping, inference and learning by themselves;
- pong: EnvPool's Pong-v5, 8 environments, from pixels, against the same PyTorch loop.

Both sides use the same network, rollout length, epochs, minibatches and optimiser.
"""

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
from measure import (
    HERE,
    Worker,
    as_data,
    cache,
    interleaved,
    median,
    print_table,
    rival_python,
    serve,
)

PARTS = ("cartpole", "cheetah", "pong")
TORCH = ("torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium==1.3.0", "envpool==1.2.5")
RLLIB = ("torch==2.13.0", "ray[rllib]==2.54.0", "gymnasium")
ENVS, ROLLOUT = 64, 128
ITERATION = ENVS * ROLLOUT
CHEETAH, PONG = "HalfCheetah-v4", "Pong-v5"
SETTINGS = {
    CHEETAH: {"epochs": 10, "minibatches": 32, "learning_rate": 3e-4},
    PONG: {"epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4},
}
"""on both sides"""
OURS = {
    CHEETAH: {"normalise_observations": True},
    PONG: {"hidden": (512,)},
}
"""what the rival does anyway"""
PONG_ENVS, PONG_ITERATIONS, PONG_SAMPLES = 8, 14, 7
"""100,352 steps on each side, of which the first sample is not measured"""
ALONE = ("raw stepping", "inference", "learning")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    add("--repeats", type=int, default=5, help="samples of each side")
    add("--iterations", type=int, default=8, help="iterations per sample")
    add("--no-rllib", action="store_true", help="leave out RLlib, which is large to install")
    add("--json", type=Path, help="where to write the results as data")
    add("--envs", type=int, default=ENVS, help=argparse.SUPPRESS)
    add("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _serve(options.worker[0], dict(word.split("=") for word in options.worker[1:]), options)
        return
    results: dict[str, Any] = {"machine": measure.machine()}
    if "cartpole" in options.only:
        results["cartpole"] = _cartpole(options)
    if "cheetah" in options.only:
        results["cheetah"] = _cheetah(options)
    if "pong" in options.only:
        results["pong"] = _pong()
    measure.write(options.json, results)


def _cartpole(options: argparse.Namespace) -> dict[str, Any]:
    steps = options.iterations * ITERATION
    arguments = ("--envs", ENVS, "--steps", steps)
    ours = ("--iterations", options.iterations, "--worker", "gymnasium:CartPole-v1")
    workers = {
        "fragflow": Worker(HERE / "host_envs.py", *ours),
        "fragflow, plain sync": Worker(HERE / "host_envs.py", *ours, "vectorization=sync"),
        "SB3": Worker(
            HERE / "sb3_worker.py", *arguments, python=rival_python(cache() / "torch", TORCH)
        ),
    }
    if not options.no_rllib:
        python = rival_python(cache() / "rllib", RLLIB)
        workers["RLlib"] = Worker(HERE / "rllib_worker.py", *arguments, python=python)
    samples = interleaved(
        {name: (lambda w=worker: w.run("go")) for name, worker in workers.items()}, options.repeats
    )
    for worker in workers.values():
        worker.close()
    rates = {name: steps / median(all_) for name, all_ in samples.items()}
    _table(f"Gymnasium CartPole-v1, {ENVS} environments x {ROLLOUT} steps, 4 x 4", rates, samples)
    ratios = {name: rates["fragflow"] / rates[name] for name in rates}
    ratios["SB3, like for like"] = rates["fragflow, plain sync"] / rates["SB3"]
    print("  against SB3", measure.verdict(ratios["SB3"], 4.0, "x", at_least=True))
    print(f"  against SB3, both on synchronous environments: {ratios['SB3, like for like']:.2f}x")
    if "RLlib" in ratios:
        print("  against RLlib", measure.verdict(ratios["RLlib"], 10.0, "x", at_least=True))
    print(f"  {measure.quiet(samples)}")
    return {
        "steps_per_second": rates,
        "ratios": ratios,
        "versions": {name: worker.info["versions"] for name, worker in workers.items()},
        **as_data(samples),
    }


def _cheetah(options: argparse.Namespace) -> dict[str, Any]:
    steps = options.iterations * ITERATION
    command = (HERE / "host_envs.py", "--iterations", options.iterations, "--worker")
    ours = Worker(*command, f"envpool:{CHEETAH}", "threads=2")
    halves = Worker(*command, f"envpool:{CHEETAH}", "threads=1", "workers=2")
    rival = _torch_loop(CHEETAH, ENVS, steps)
    samples = interleaved(
        {
            "fragflow": lambda: ours.run("go"),
            "fragflow, two half-batches": lambda: halves.run("go"),
            "PyTorch loop": lambda: rival.run("go"),
            **{part: (lambda p=part: ours.run(p)) for part in ALONE},
        },
        options.repeats,
    )
    for worker in (ours, halves, rival):
        worker.close()
    rates = {name: steps / median(all_) for name, all_ in samples.items()}
    bound = steps / sum(median(samples[part]) for part in ALONE)
    _table(
        f"EnvPool {CHEETAH}, {ENVS} environments x {ROLLOUT} steps, "
        f"{SETTINGS[CHEETAH]['epochs']} x {SETTINGS[CHEETAH]['minibatches']}",
        rates | {"bound of the last three": bound},
        samples,
    )
    share, ratio = rates["fragflow"] / bound, rates["fragflow"] / rates["PyTorch loop"]
    print("  share of the bound", measure.verdict(share, 0.85, "", at_least=True))
    halved = rates["fragflow, two half-batches"] / rates["fragflow"]
    print(f"  two half-batches, one stepping while the other infers: {halved:.2f}x")
    print("  against the PyTorch loop", measure.verdict(ratio, 1.5, "x", at_least=True))
    print(f"  {measure.quiet(samples)}")
    return {
        "steps_per_second": rates,
        "bound": bound,
        "share_of_bound": share,
        "half_batches": halved,
        "ratio": ratio,
        "versions": {"fragflow": ours.info["versions"], "PyTorch loop": rival.info["versions"]},
        **as_data(samples),
    }


def _pong() -> dict[str, Any]:
    steps = PONG_ITERATIONS * PONG_ENVS * ROLLOUT
    numbers = ("--envs", PONG_ENVS, "--iterations", PONG_ITERATIONS)
    ours = Worker(HERE / "host_envs.py", *numbers, "--worker", f"envpool:{PONG}", "threads=2")
    rival = _torch_loop(PONG, PONG_ENVS, steps)
    samples = interleaved(
        {"fragflow": lambda: ours.run("go"), "PyTorch loop": lambda: rival.run("go")},
        PONG_SAMPLES - 1,
    )
    alone = {part: [ours.run(part)] for part in ALONE}
    for worker in (ours, rival):
        worker.close()
    rates = {name: steps / median(all_) for name, all_ in (samples | alone).items()}
    bound = steps / sum(median(alone[part]) for part in ALONE)
    _table(
        f"EnvPool {PONG} from pixels, {PONG_ENVS} environments x {ROLLOUT} steps, "
        f"{SETTINGS[PONG]['epochs']} x {SETTINGS[PONG]['minibatches']}, "
        f"{PONG_SAMPLES * steps:,} steps on each side",
        rates | {"bound of the last three": bound},
        samples | alone,
    )
    ratio = rates["fragflow"] / rates["PyTorch loop"]
    print(f"  against the PyTorch loop: {ratio:.2f}x")
    print(f"  share of the bound: {rates['fragflow'] / bound:.2f}")
    print(f"  {measure.quiet(samples)}")
    return {
        "steps_per_second": rates,
        "bound": bound,
        "share_of_bound": rates["fragflow"] / bound,
        "ratio": ratio,
        "versions": {"fragflow": ours.info["versions"], "PyTorch loop": rival.info["versions"]},
        **as_data(samples | alone),
    }


def _torch_loop(name: str, envs: int, steps: int) -> Worker:
    settings = [w for k, v in SETTINGS[name].items() for w in (f"--{k.replace('_', '-')}", v)]
    return Worker(
        HERE / "torch_ppo_worker.py",
        *("--env", name, "--envs", envs, "--steps", steps, *settings),
        python=rival_python(cache() / "torch", TORCH),
    )


def _table(title: str, rates: dict[str, float], samples: dict[str, list[measure.Sample]]) -> None:
    rows = []
    for name, rate in rates.items():
        seconds = [s.seconds for s in samples.get(name, [])]
        extremes = (f"{min(seconds):.2f}", f"{max(seconds):.2f}") if seconds else ("", "")
        rows.append((name, f"{rate:,.0f}", *extremes))
    print_table(title, ("", "steps/s", "fastest s", "slowest s"), rows)


def _serve(name: str, arguments: dict[str, Any], options: argparse.Namespace) -> None:
    """The side of fragflow."""
    from host_engine import HostEngine

    numbers = {key: int(arguments.pop(key)) for key in ("workers",) if key in arguments}
    if "threads" in arguments:
        arguments["threads"] = int(arguments["threads"])
    game = name.partition(":")[2]
    settings = SETTINGS.get(game, {}) | OURS.get(game, {})
    engine = HostEngine(name, arguments, options.envs, ROLLOUT, settings, **numbers)
    runs: dict[str, Callable[[], object]] = {"go": lambda: engine.advance(1)}
    if game in SETTINGS:
        runs |= engine.parts()
    for run in runs.values():
        run()
    time.sleep(0.1)
    packages = ("fragflow", "jax", "jaxlib", "gymnasium", "envpool", "numpy")
    runs = {name: (lambda run=run: _repeat(run, options.iterations)) for name, run in runs.items()}
    serve(
        runs | {"go": lambda: engine.advance(options.iterations)},
        {"versions": {package: version(package) for package in packages}},
    )


def _repeat(run: Callable[[], object], times: int) -> None:
    for _ in range(times):
        run()


if __name__ == "__main__":
    main()
