"""When another implementation of a kernel pays.

Compares, in one process and alternating:

- the recursion of advantage estimates and V-trace (discounted_sums): XLA's loop, and the kernel in
  C++;
- whole iterations of PPO on CartPole-v1 with either, which are in the compiled programs: that is
  read off before anything is measured.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import jax
import jax.numpy as jnp
import measure
from engines import Driver, Task
from measure import Sample, as_data, interleaved, print_table, timed

from fragflow import ops

SECONDS = 0.25
"""about how long a sample takes"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="samples of each side")
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    cases: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = [
        *(_kernel(envs) for envs in (1, 16, 64, 1024)),
        *(_iteration(envs) for envs in (16, 256)),
    ]
    rows, data = [], {}
    for name, other, xla, alternative in cases:
        count = _count(xla)
        samples = interleaved(
            {"xla": _repeated(xla, count), other: _repeated(alternative, count)}, options.repeats
        )
        both = ([sample.seconds for sample in samples[s]] for s in ("xla", other))
        ratio, low, high = measure.ratio_of_medians(*both)
        data[name] = {"calls": count, "speed_up": ratio, "interval": [low, high]} | as_data(samples)
        times = [f"{measure.median(samples[s]) / count * 1e6:.1f}" for s in ("xla", other)]
        rows.append(
            (
                name,
                times[0],
                other,
                times[1],
                f"{ratio:.2f} ({low:.2f}-{high:.2f})",
                measure.quiet(samples),
            )
        )
    print_table(
        "microseconds per call",
        ("", "xla", "other", "takes", "speed-up", "machine"),
        rows,
    )
    results["implementations"] = data
    measure.write(options.json, results)


def _count(run: Callable[[], object]) -> int:
    run()
    return max(1, round(SECONDS / timed(lambda: [run() for _ in range(5)]).seconds * 5))


def _repeated(run: Callable[[], object], count: int) -> Callable[[], Sample]:
    def all_() -> None:
        for _ in range(count):
            run()

    return lambda: timed(all_)


def _kernel(envs: int) -> tuple[str, str, Callable[[], object], Callable[[], object]]:
    a, b = jax.random.split(jax.random.key(0))
    reward = jax.random.normal(a, (128, envs))
    discount = jnp.where(jax.random.uniform(b, reward.shape) < 0.05, 0.0, 0.95)
    kernel = ops.discounted_sums
    xla = jax.jit(kernel.reference)
    native = kernel.implementations["cpp"]
    if native.absent():
        raise SystemExit(f"the kernel in C++ is absent: {native.absent()}")
    cpp = jax.jit(lambda r, d: native.call(r, d, platform="cpu"))
    return (
        f"discounted_sums, 128 x {envs}",
        "cpp",
        lambda: xla(reward, discount).block_until_ready(),
        lambda: cpp(reward, discount).block_until_ready(),
    )


def _iteration(envs: int) -> tuple[str, str, Callable[[], object], Callable[[], object]]:
    task = Task(envs)
    xla, cpp = (_driver(task, how) for how in ("xla", "cpp"))
    name = f"iteration of PPO, {envs} environments"
    return name, "cpp", lambda: xla.advance(4), lambda: cpp.advance(4)


def _driver(task: Task, how: str) -> Driver:
    runtime = task.runtime("gpu-only", implementations={"discounted_sums": how})
    (picked,) = runtime.picks.values()
    assert picked["discounted_sums"].how == how, picked
    return Driver(runtime)


if __name__ == "__main__":
    main()
