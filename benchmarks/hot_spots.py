"""Where an iteration's time goes, component by component: what a kernel by hand could save at most.

    python benchmarks/hot_spots.py --json benchmarks/results/hot_spots.json

Each component is compiled by itself and called as often as an iteration calls it, on random
numbers of its types; beside it, alternating, the whole iteration as one program. A kernel that took
no time at all would save a component's share, no more.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import jax
import jax.numpy as jnp
import measure
import numpy as np
from engines import Driver, Task
from jax import lax

from fragflow._jax import bind, component_of, inner_jaxprs, is_key, raw_key, wrapped_key
from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.ppo import PPO
from fragflow.graph.tracing.trace import iteration_function
from fragflow.runtime.programs.compile import FOR_SMALL_PROGRAMS

TASKS = {
    "PPO, CartPole-v1, 16 environments": lambda: Task(16, PPO()),
    "PPO, CartPole-v1, 256 environments": lambda: Task(256, PPO()),
    "PPO, Pendulum-v1, 16 environments": lambda: Task(16, PPO(), "Pendulum-v1"),
    "DQN with priorities, CartPole-v1, 16 environments": lambda: Task(16, DQN(prioritised=True)),
}
WARM_UP = 40
"""iterations after which an algorithm with a buffer learns"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="samples of each")
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    for name, make in TASKS.items():
        task = make()
        driver = Driver(task.runtime("gpu-only"))
        driver.advance(WARM_UP)
        found = components(task)
        runs: dict[str, Callable[[], object]] = {"iteration": lambda d=driver: d.advance(4)}
        for component, parts in found.items():
            runs[component] = _together([_repeated(eqn, 4 * calls) for eqn, calls in parts])
        for run in runs.values():
            run()
        timed = {key: (lambda run=run: measure.timed(run)) for key, run in runs.items()}
        samples = measure.interleaved(timed, options.rounds)
        whole = measure.median(samples["iteration"])
        rows, shares = [], {}
        for component, parts in found.items():
            calls = sum(n for _, n in parts)
            share = measure.median(samples[component]) / whole
            shares[component] = {"calls": calls, "share": share}
            each = measure.median(samples[component]) / 4 / calls * 1e6
            rows.append((component, str(calls), f"{each:.1f}", f"{share:.0%}"))
        rows.sort(key=lambda row: -shares[row[0]]["share"])
        print_title = f"{name}: {whole / 4 * 1e3:.1f} ms an iteration, {measure.quiet(samples)}"
        measure.print_table(print_title, ("component", "calls", "µs each", "share"), rows)
        results[name] = {"shares": shares, **measure.as_data(samples)}
    measure.write(options.json, results)


def components(task: Task) -> dict[str, list[tuple[Any, int]]]:
    """The calls of components in an iteration, and how often each is made."""
    iteration = iteration_function(task.algorithm, task.environment, task.num_envs)
    closed = jax.make_jaxpr(iteration)(task.state, np.int32(0), *task.sources.values())
    found: dict[str, list[tuple[Any, int]]] = {}
    for eqn, calls in _calls(closed.jaxpr, 1):
        found.setdefault(component_of(eqn) or "", []).append((eqn, calls))
    return found


def _calls(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    for eqn in jaxpr.eqns:
        if component_of(eqn):
            yield eqn, times
            continue
        length = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in inner_jaxprs(eqn):
            yield from _calls(inner, times * length)


def _together(runs: list[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [run() for run in runs]


def _repeated(eqn: Any, count: int) -> Callable[[], object]:
    """A program that makes a call again and again, each after the one before."""
    rng = np.random.default_rng(0)
    avals = [v.aval for v in eqn.invars]
    given = [_numbers(aval, rng) for aval in avals]

    def all_(*plain: Any) -> Any:
        args = [
            wrapped_key(x, aval) if is_key(aval) else x
            for x, aval in zip(plain, avals, strict=True)
        ]

        def once(_: Any, latest: Any) -> Any:
            return bind(eqn, _after(latest, plain, avals))

        return lax.fori_loop(0, count, once, bind(eqn, args))

    program = jax.jit(all_).lower(*given).compile(compiler_options=dict(FOR_SMALL_PROGRAMS))
    return lambda: jax.block_until_ready(program(*given))


def _after(latest: Any, plain: Any, avals: Any) -> list[Any]:
    """Arguments that cannot be known before a call's results, and are what they were."""
    made = next(x for x in latest if not is_key(x))
    nothing = 0.0 * made.ravel()[0].astype(
        jnp.float32
    )  # which might be no number, for all XLA knows
    first = next(k for k, x in enumerate(plain) if x.dtype != bool)
    now = [x + nothing.astype(x.dtype) if k == first else x for k, x in enumerate(plain)]
    return [wrapped_key(x, aval) if is_key(aval) else x for x, aval in zip(now, avals, strict=True)]


def _numbers(aval: Any, rng: np.random.Generator) -> Any:
    if is_key(aval):
        keys = jax.random.split(jax.random.key(1), math.prod(aval.shape)).reshape(aval.shape)
        return raw_key(keys)
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return jnp.asarray(rng.uniform(0.1, 1.0, aval.shape), aval.dtype)
    return jnp.zeros(aval.shape, aval.dtype)


if __name__ == "__main__":
    main()
