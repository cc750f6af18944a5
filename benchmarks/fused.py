"""How fast the whole loop in one program is, against a rival, a hand-written loop, and in parts.

1. rival: the policy gpu-only against PPO of rejax, installed from PyPI in an environment of its
   own.
2. free: gpu-only against a hand-written jax.jit of the same loop.
3. coarse: the policy single-learner-coarse with one worker against gpu-only.
4. cartpole: gpu-only with fragflow's own CartPole-v1 against gpu-only with gymnax's, where that is
   installed.

The CartPole-v1 of parts 1 to 3 is fragflow's own; rejax's is that of the gymnax it comes with.
"""

import argparse
import statistics
import time
from collections import Counter
from importlib.util import find_spec
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
    median_of_ratios,
    print_table,
    rival_python,
)

RIVAL = ("rejax==0.1.3", "gymnax==0.0.9", "jax==0.10.2", "flax==0.12.8")
NAMING = ("parameter", "get-tuple-element", "tuple")
"""HLO instructions that only say where a value is"""
PARTS = ("rival", "free", "coarse", "cartpole")
CARTPOLE = "fragflow:CartPole-v1"
OTHER_CARTPOLE = "gymnax:CartPole-v1"


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    results: dict[str, Any] = {"machine": measure.machine(), "network": "tanh 64-64, 2 towers"}
    if "rival" in options.only:
        python = rival_python(options.venv, RIVAL)
        results["rival"] = [_rival(python, envs, options) for envs in options.envs]
    if "free" in options.only:
        results["free"] = _free(max(options.repeats, options.free_repeats))
    if "coarse" in options.only:
        results["coarse"] = _coarse(max(options.repeats, options.coarse_repeats))
    if "cartpole" in options.only:
        if find_spec("gymnax") is None:
            print("4. left out: gymnax is not installed (pip install 'fragflow[gymnax]')")
        else:
            results["cartpole"] = _cartpole(max(options.repeats, options.cartpole_repeats))
    measure.write(options.json, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", type=int, nargs="+", default=[64, 2048], help="sizes to meet the rival at")
    add("--repeats", type=int, default=5, help="samples of each side against the rival")
    add("--free-repeats", type=int, default=15, help="samples of each side in part 2")
    add("--coarse-repeats", type=int, default=7, help="samples of each side in part 3")
    add("--cartpole-repeats", type=int, default=15, help="samples of each side in part 4")
    add("--steps", type=int, default=524_288, help="environment steps per sample in part 1")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    add("--json", type=Path, help="where to write the results as data")
    add("--venv", type=Path, default=cache() / "rejax", help="where the rival is installed")
    add("--worker", choices=(*PARTS, "compile"), help=argparse.SUPPRESS)
    add("--by-hand", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for envs in options.envs:
        if options.steps % (128 * envs):
            parser.error(f"--steps must be a multiple of 128 x {envs}")
    return options


# Part 1


def _rival(python: str, envs: int, options: argparse.Namespace) -> dict[str, Any]:
    ours = Worker(HERE / "fused.py", "--worker", "rival", "--envs", envs, "--steps", options.steps)
    theirs = Worker(
        HERE / "rejax_worker.py", "--envs", envs, "--steps", options.steps, python=python
    )
    samples = interleaved(
        {"fragflow": lambda: ours.run("go"), "rejax": lambda: theirs.run("go")}, options.repeats
    )
    ours.close()
    theirs.close()
    rates = {name: options.steps / median(all_) for name, all_ in samples.items()}
    ratio = rates["fragflow"] / rates["rejax"]
    print_table(
        f"1. PPO, CartPole-v1, {envs} environments x 128 steps, 4 epochs x 4 minibatches, "
        f"{options.steps} steps per sample\n"
        "   (rejax's evaluation is switched off: one callback at the end that returns 0)\n"
        f"   CartPole is {CARTPOLE} here, {theirs.info['environment']} there",
        ("", "steps/s", "median s", "fastest", "slowest"),
        [
            (name, f"{rates[name]:,.0f}", f"{median(all_):.3f}", *_extremes(all_))
            for name, all_ in samples.items()
        ],
    )
    print("  ratio", measure.verdict(ratio, 1.5, "x", at_least=True))
    print(f"  {measure.quiet(samples)}")
    return {
        "envs": envs,
        "steps": options.steps,
        "steps_per_second": rates,
        "ratio": ratio,
        "target": 1.5,
        "environments": {"fragflow": CARTPOLE, "rejax": theirs.info["environment"]},
        "versions": {
            "fragflow": ours.info["versions"],
            "rejax": theirs.info["versions"],
        },
        **as_data(samples),
    }


def _extremes(samples: list[measure.Sample]) -> tuple[str, str]:
    seconds = [s.seconds for s in samples]
    return f"{min(seconds):.3f}", f"{max(seconds):.3f}"


# Part 2


def _free(repeats: int) -> dict[str, Any]:
    worker = Worker(HERE / "fused.py", "--worker", "free")
    samples = interleaved(
        {name: (lambda name=name: worker.run(name)) for name in ("gpu-only", "by hand")}, repeats
    )
    worker.close()
    ratio = median(samples["gpu-only"]) / median(samples["by hand"])
    paired = median_of_ratios(samples["gpu-only"], samples["by hand"])
    ours, hand = (Counter(worker.info["opcodes"][name]) for name in samples)
    difference = {op: [ours[op], hand[op]] for op in sorted(ours | hand) if ours[op] != hand[op]}
    computing = {op: counts for op, counts in difference.items() if op not in NAMING}
    compiled: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(3):
        for name, seconds in compiled.items():
            extra = ("--by-hand",) if name == "by hand" else ()
            fresh = Worker(HERE / "fused.py", "--worker", "compile", *extra)
            fresh.close()
            seconds.append(fresh.info["seconds"])
    compile_ratio = statistics.median(compiled["gpu-only"]) / statistics.median(compiled["by hand"])
    iterations = worker.info["iterations"]
    print_table(
        f"2. the policy gpu-only against a hand-written jax.jit of the same loop, 64 x 128, "
        f"{iterations} iterations per sample",
        ("", "ms/iteration", "HLO instructions", "trace to compiled, s"),
        [
            (
                name,
                f"{median(all_) / iterations * 1e3:.2f}",
                str(sum(worker.info["opcodes"][name].values())),
                f"{statistics.median(compiled[name]):.2f}",
            )
            for name, all_ in samples.items()
        ],
    )
    print("  run time", measure.verdict(ratio, 1.05, "x"), f"(median of ratios {paired:.3f}x)")
    print("  compile time", measure.verdict(compile_ratio, 1.3, "x"))
    print(f"  instructions that differ (ours, by hand): {computing or 'none'}", end="")
    # By hand, all that `run` knows is an argument, used or not; the compiler drops what is not.
    print(f", apart from names of values: {difference}" if difference and not computing else "")
    print(f"  {measure.quiet(samples)}")
    return {
        "ratio": ratio,
        "median_of_ratios": paired,
        "target": 1.05,
        "compile_seconds": compiled,
        "compile_ratio": compile_ratio,
        "compile_target": 1.3,
        "opcodes": worker.info["opcodes"],
        "opcode_difference": difference,
        "iterations": iterations,
        "versions": worker.info["versions"],
        **as_data(samples),
    }


# Part 3


def _coarse(repeats: int) -> dict[str, Any]:
    worker = Worker(HERE / "fused.py", "--worker", "coarse")
    names = ("gpu-only", "single-learner-coarse")
    samples = interleaved({name: (lambda name=name: worker.run(name)) for name in names}, repeats)
    worker.close()
    iterations = worker.info["iterations"]
    ratio = median(samples[names[0]]) / median(samples[names[1]])
    print_table(
        f"3. fragments: one worker rolls out, one learner learns, 64 x 128, {iterations} "
        "iterations per sample",
        ("", "steps/s", "ms/iteration", "fastest s", "slowest s"),
        [
            (
                name,
                f"{iterations * 64 * 128 / median(all_):,.0f}",
                f"{median(all_) / iterations * 1e3:.2f}",
                *_extremes(all_),
            )
            for name, all_ in samples.items()
        ],
    )
    print("  share of gpu-only's speed", measure.verdict(ratio, 0.85, "", at_least=True))
    print(f"  {measure.quiet(samples)}")
    return {
        "ratio": ratio,
        "median_of_ratios": median_of_ratios(samples[names[0]], samples[names[1]]),
        "target": 0.85,
        "iterations": iterations,
        "versions": worker.info["versions"],
        **as_data(samples),
    }


# Part 4


def _cartpole(repeats: int) -> dict[str, Any]:
    worker = Worker(HERE / "fused.py", "--worker", "cartpole")
    names = (CARTPOLE, OTHER_CARTPOLE)
    samples = interleaved({name: (lambda name=name: worker.run(name)) for name in names}, repeats)
    worker.close()
    iterations = worker.info["iterations"]
    ours, theirs = samples.values()
    clocks = {
        "wall-clock time": [[s.seconds for s in side] for side in (ours, theirs)],
        "CPU time": [[s.cpu_seconds or 0.0 for s in side] for side in (ours, theirs)],
    }
    print_table(
        f"4. two CartPoles in the same program, 64 x 128, {iterations} iterations per sample",
        ("", "ms/iteration", "CPU ms/iteration", "fastest s", "slowest s"),
        [
            (
                name,
                f"{statistics.median(wall) / iterations * 1e3:.2f}",
                f"{statistics.median(cpu) / iterations * 1e3:.2f}",
                *_extremes(samples[name]),
            )
            for name, wall, cpu in zip(names, *clocks.values(), strict=True)
        ],
    )
    ratios: dict[str, Any] = {}
    for clock, (a, b) in clocks.items():
        ratio, low, high = measure.ratio_of_medians(a, b)
        ratios[clock] = {"ratio": ratio, "interval": [low, high]}
        print(f"  {clock} {ratio:.3f}x, 95 % within {low:.3f} to {high:.3f} (target <= 1.02x)")
    print(f"  {measure.quiet(samples)}")
    return {
        "ratios": ratios,
        "target": 1.02,
        "iterations": iterations,
        "versions": worker.info["versions"],
        **as_data(samples),
    }


# The workers' side: the only place where JAX is imported.


def _work(options: argparse.Namespace) -> None:
    from fragflow.runtime.programs.devices import keep_loops_apart

    keep_loops_apart()  # as every run has it: before JAX starts
    import engines

    if options.worker == "rival":
        (envs,) = options.envs
        # rejax clips the critic's change; this side does so too.
        ppo = engines.PPO(rollout_length=128, epochs=4, minibatches=4, clip_value=True)
        task = engines.Task(envs, ppo, CARTPOLE)
        driver = engines.Driver(task.runtime("gpu-only"))
        iterations = options.steps // task.steps
        measure.serve({"go": lambda: driver.advance(iterations)}, {"versions": engines.versions()})
    elif options.worker == "free":
        task, iterations = engines.Task(64, env=CARTPOLE), 48
        # The same instructions are compared, hence without kernels of another kind.
        ours = engines.Driver(task.runtime("gpu-only", {"discounted_sums": "xla"}))
        hand = engines.HandDriver(task, ours.chunk)
        texts = {"gpu-only": ours.hlo(), "by hand": hand.compiled.as_text()}
        measure.serve(
            {
                "gpu-only": lambda: ours.advance(iterations),
                "by hand": lambda: hand.advance(iterations),
            },
            {
                "iterations": iterations,
                "opcodes": {name: engines.opcodes(text) for name, text in texts.items()},
                "versions": engines.versions(),
            },
        )
    elif options.worker == "coarse":
        task, iterations = engines.Task(64, env=CARTPOLE), 64
        fused = engines.Driver(task.runtime("gpu-only"))
        coarse = engines.Driver(task.runtime("single-learner-coarse"))
        measure.serve(
            {
                "gpu-only": lambda: fused.advance(iterations),
                "single-learner-coarse": lambda: coarse.advance(iterations),
            },
            {"iterations": iterations, "versions": engines.versions()},
        )
    elif options.worker == "cartpole":
        iterations = 64
        drivers = {
            name: engines.Driver(engines.Task(64, env=name).runtime("gpu-only"))
            for name in (CARTPOLE, OTHER_CARTPOLE)
        }
        measure.serve(
            {name: (lambda d=d: d.advance(iterations)) for name, d in drivers.items()},
            {"iterations": iterations, "versions": engines.versions()},
        )
    else:
        import jax

        task = engines.Task(64, env=CARTPOLE)
        train, arguments = task.by_hand()
        began = time.perf_counter()
        if options.by_hand:
            jax.jit(train).lower(*arguments).compile()
        else:
            task.runtime("gpu-only")
        measure.serve({}, {"seconds": time.perf_counter() - began})


if __name__ == "__main__":
    main()
