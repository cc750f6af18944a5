"""What fragflow adds to the compilation of a large algorithm: beside a plain `jax.jit` of its loop.

    python benchmarks/compiling.py --json benchmarks/results/compiling.json

The world model of `tests/equivalence/own` on CartPole-v1 under `gpu-only` with one worker. Every
sample is a process of its own, without a cache of compiled programs: from the algorithm to a
compiled loop of iterations. What JAX says of its own stages (tracing, lowering, XLA) is kept apart;
the rest is Python of fragflow's, cutting above all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import measure

TARGET = 1.3
ENVS = 64
SIDES = ("plain jit", "gpu-only")
STAGES = {
    "jaxpr_trace_duration": "tracing",
    "jaxpr_to_mlir_module_duration": "lowering",
    "backend_compile_duration": "XLA",
}
"""how JAX calls what it does, and we"""


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
    said: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    runs = {name: (lambda name=name: _sample(name, said[name])) for name in SIDES}
    samples = measure.interleaved(runs, options.rounds)
    measure.print_seconds(f"the world model, gpu-only, {ENVS} environments", samples)
    stages = {name: _medians(said[name][1:]) for name in SIDES}
    measure.print_table(
        "of which, in seconds",
        ("", *stages[SIDES[0]]),
        [(name, *(f"{x:.2f}" for x in row.values())) for name, row in stages.items()],
    )
    ratios: dict[str, Any] = {}
    for clock, of in (("time", measure.seconds_of), ("CPU time", measure.cpu_seconds_of)):
        ratio, low, high = measure.ratio_of_medians(of(samples[SIDES[1]]), of(samples[SIDES[0]]))
        ratios[clock] = {"ratio": ratio, "interval": [low, high]}
        verdict = measure.verdict(ratio, TARGET, "x")
        print(f"  {SIDES[1]} / {SIDES[0]}, {clock}: {verdict}, 95 % within {low:.2f} to {high:.2f}")
    print(f"  {measure.quiet(samples)}")
    data = {"machine": measure.machine(), "target": TARGET, "stages": stages, "ratios": ratios}
    measure.write(options.json, data | {"samples": measure.as_data(samples)})


def _medians(said: list[dict[str, float]]) -> dict[str, float]:
    names = (*STAGES.values(), "the rest")
    return {name: statistics.median(s[name] for s in said) for name in names}


def _sample(name: str, said: list[dict[str, float]]) -> measure.Sample:
    """One process; what counts is the time that it says itself, without imports."""
    variables = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}

    def work() -> None:
        command = [sys.executable, __file__, "--worker", name]
        done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
        said.append(json.loads(done.stdout.splitlines()[-1]))

    whole = measure.timed(work)
    return measure.Sample(
        seconds=said[-1]["seconds"],
        load_before=whole.load_before,
        load_after=whole.load_after,
        others=whole.others,
        cpu_seconds=said[-1]["cpu_seconds"],
    )


def _timed(name: str) -> dict[str, float]:
    from fragflow.runtime.programs.devices import keep_loops_apart

    keep_loops_apart()  # as every run has it: before JAX starts
    sys.path.append(str(measure.HERE.parent / "tests"))
    import jax
    from engines import Task

    from equivalence.own.world_model import Dreamer

    algorithm = Dreamer(rollout_length=16, remembered=4, horizon=15, hidden=64, codes=16)
    task = Task(ENVS, algorithm)
    train, arguments = task.by_hand()
    spent: defaultdict[str, float] = defaultdict(float)

    def listen(event: str, seconds: float, **_: Any) -> None:
        stage = STAGES.get(event.rpartition("/")[2])
        if stage is not None:
            spent[stage] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)
    began, cpu = time.perf_counter(), time.process_time()
    if name == "plain jit":
        jax.jit(train).lower(*arguments).compile()
    else:
        task.runtime("gpu-only")
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    known = {stage: round(spent[stage], 3) for stage in STAGES.values()}
    rest = round(seconds - sum(known.values()), 3)
    return {"seconds": seconds, "cpu_seconds": cpu, **known, "the rest": rest}


if __name__ == "__main__":
    main()
