"""When another implementation of a component pays.

Compares, in one process and alternating:

- the recursion of advantage estimates and V-trace (discounted_sums): XLA's loop, and the kernel in
  C++;
- an actor that a worker calls at every step: one program of XLA, and ONNX Runtime between two;
- whole iterations of PPO on CartPole-v1, with either kernel.
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
from measure import Sample, as_data, interleaved, median_of_ratios, print_table, timed

import fragflow.api as ff
from fragflow import ops
from fragflow.runtime import onnx_engine
from fragflow.runtime.compiled import FOR_SMALL_PROGRAMS

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
        *(_actor(*case) for case in ACTORS),
    ]
    rows, data = [], {}
    for name, other, xla, alternative in cases:
        count = _count(xla)
        samples = interleaved(
            {"xla": _repeated(xla, count), other: _repeated(alternative, count)}, options.repeats
        )
        ratio = median_of_ratios(samples["xla"], samples[other])
        data[name] = {"calls": count, "speed_up": ratio, **as_data(samples)}
        times = [f"{measure.median(samples[s]) / count * 1e6:.1f}" for s in ("xla", other)]
        rows.append((name, times[0], other, times[1], f"{ratio:.2f}", measure.quiet(samples)))
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
    xla = Driver(task.runtime("gpu-only", implementations={"discounted_sums": "xla"}))
    cpp = Driver(task.runtime("gpu-only", implementations={"discounted_sums": "cpp"}))
    name = f"iteration of PPO, {envs} environments"
    return name, "cpp", lambda: xla.advance(4), lambda: cpp.advance(4)


ACTORS = (
    ("two layers of 64", (64, 64), (4,), 16),
    ("two layers of 64", (64, 64), (17,), 64),
    ("two layers of 256", (256, 256), (17,), 64),
    ("two layers of 1024", (1024, 1024), (17,), 64),
    ("Nature network", (512,), (4, 84, 84), 8),
)


def _actor(
    name: str, hidden: tuple[int, ...], shape: tuple[int, ...], envs: int
) -> tuple[str, str, Callable[[], object], Callable[[], object]]:
    network = ops.MLPActorCritic(hidden)
    is_image = len(shape) == 3
    space = ff.Box(shape=shape, dtype="uint8" if is_image else "float32")
    actor = network.init(jax.random.key(0), space, ff.Discrete(n=6))["actor"]
    obs = jnp.ones((envs, *shape), space.dtype)
    raw = jax.random.key_data(jax.random.split(jax.random.key(1), envs))

    @ff.component("actor")
    def act(actor: Any, obs: jax.Array, raw: jax.Array) -> tuple[jax.Array, jax.Array]:
        distribution = network.policy(actor, obs)
        action = distribution.sample(jax.random.wrap_key_data(raw))
        return action, distribution.log_prob(action)

    leaves, structure = jax.tree.flatten((actor, obs, raw))

    def flat(*leaves: Any) -> Any:
        return act(*jax.tree.unflatten(structure, leaves))

    options = dict(FOR_SMALL_PROGRAMS)
    xla = jax.jit(flat).lower(*leaves).compile(compiler_options=options)
    closed = jax.make_jaxpr(flat)(*leaves)
    onnx = onnx_engine.through_onnx(closed, "actor", jax.devices()[0], options)
    return (
        f"actor, {name}, {envs} environments",
        "onnx",
        lambda: jax.block_until_ready(xla(*leaves)),
        lambda: jax.block_until_ready(onnx(*leaves)),
    )


if __name__ == "__main__":
    main()
