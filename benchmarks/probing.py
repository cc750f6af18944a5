"""What the probe costs: beside the compilation of the same iteration by a plain `jax.jit`.

    python benchmarks/probing.py --json benchmarks/results/probing.json

PPO on CartPole-v1 under `single-learner-coarse` with two workers, 16 environments. Every sample is
a process of its own, without a cache of compiled programs: from the algorithm to a compiled
iteration; the probe, of a graph that has been cut; the comparison of bits that follows it; and the
probe again, when it is remembered.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

TARGET = 1.5
ENVS, WORKERS, POLICY = 16, 2, "single-learner-coarse"
SIDES = ("plain jit", "probe", "bits", "remembered")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12, help="samples of each")
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_timed(options.worker)))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: (lambda name=name: _sample(name, folder)) for name in SIDES}
        samples = measure.interleaved(runs, options.rounds)
    seconds = {name: measure.seconds_of(all_) for name, all_ in samples.items()}
    measure.print_seconds(
        f"PPO, {POLICY}, {WORKERS} workers, {ENVS} environments, {options.rounds} rounds", samples
    )
    ratios: dict[str, Any] = {}
    for name in SIDES[1:]:
        ratio, low, high = measure.ratio_of_medians(seconds[name], seconds[SIDES[0]])
        ratios[name] = {"ratio": ratio, "interval": [low, high]}
        said = measure.verdict(ratio, TARGET, "x") if name == "probe" else f"{ratio:.2f}x"
        print(f"  {name} / {SIDES[0]}: {said}, 95 % within {low:.2f} to {high:.2f}")
    print(f"  {measure.quiet(samples)}")
    data = {"machine": measure.machine(), "target": TARGET, "ratios": ratios}
    measure.write(options.json, data | {"samples": measure.as_data(samples)})


def _sample(name: str, folder: str) -> measure.Sample:
    """One process; what counts is the time that it says itself, without imports."""
    variables = os.environ | {
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XDG_CACHE_HOME": tempfile.mkdtemp(dir=folder),
    }
    said: dict[str, float] = {}

    def work() -> None:
        command = [sys.executable, __file__, "--worker", name]
        done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
        said.update(json.loads(done.stdout.splitlines()[-1]))

    whole = measure.timed(work)
    return measure.Sample(
        seconds=said["seconds"],
        load_before=whole.load_before,
        load_after=whole.load_after,
        others=whole.others,
        cpu_seconds=said["cpu_seconds"],
    )


def _timed(name: str) -> dict[str, float]:
    from fragflow.policies.named import named_policy
    from fragflow.policies.policy import Deployment
    from fragflow.runtime.programs.devices import prepare_devices

    deployment = Deployment(workers=WORKERS)
    prepare_devices(named_policy(POLICY), deployment)
    work = _work(name, deployment)
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


def _work(name: str, deployment: Any) -> Callable[[], object]:
    import jax
    from engines import Task

    from fragflow.graph.cut import cut
    from fragflow.graph.tracing.trace import iteration_function, tracer
    from fragflow.policies.named import named_policy
    from fragflow.runtime.observer import Silent
    from fragflow.runtime.promises.compare_bits import other_bits
    from fragflow.runtime.promises.run_probe import tried

    task = Task(ENVS)
    if name == "plain jit":
        step = iteration_function(task.algorithm, task.environment, ENVS)
        arguments = (task.state, jax.numpy.int32(0), *task.sources.values())
        return lambda: jax.jit(step).lower(*arguments).compile()
    source = tracer(task.algorithm, task.environment, ENVS)
    fdg = cut(source, named_policy(POLICY), deployment)
    first = jax.tree.leaves(task.state)

    def probe() -> object:
        return tried(lambda: (fdg, source), first, Silent(), is_deterministic=False, is_wanted=True)

    if name == "bits":
        names = [carry.inside for carry in fdg.program.loop.carries]
        state = dict(zip(names, first, strict=True))
        return lambda: other_bits(
            fdg, source, state, task.sources, is_deterministic=False, implementations=None
        )
    if name == "remembered":
        probe()
    return probe


if __name__ == "__main__":
    main()
