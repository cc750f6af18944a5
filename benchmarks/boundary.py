"""What a message per step costs: policy single-learner-fine, one worker, PPO on CartPole-v1.

Compares whole iterations of 128 loop steps, whose learning is the same work in all three:

- fused: the policy gpu-only, where the steps are a scan inside one program;
- by hand: the compiled programs of single-learner-fine, called by a plain Python function that is
  generated from the fragments' schedules (--show prints it);
- runtime: the same programs, called by the runtime.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import engines
import jax
import measure
import numpy as np
from engines import ROLLOUT, Driver, Running, Task
from measure import as_data, interleaved, median, print_table, timed

from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.gather import owner
from fragflow.runtime.planning.instructions import Enter, Get, Instruction, Put, Repeat, Run

AsyncWorker = Callable[[int, int, bool], tuple[list[Any], float]]
"""(first iteration, how many, whether to time the loop) -> (last state, seconds in the loop)"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", type=int, nargs="+", default=[8, 64], help="numbers of environments")
    add("--repeats", type=int, default=15, help="samples of each side")
    add("--seconds", type=float, default=0.5, help="about how long a sample takes")
    add("--json", type=Path, help="where to write the results as data")
    add("--show", action="store_true", help="print the function that stands for code by hand")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    results["boundary"] = [_measure(envs, options) for envs in options.envs]
    measure.write(options.json, results)


def _measure(envs: int, options: argparse.Namespace) -> dict[str, Any]:
    task = Task(envs)
    fused = Driver(task.runtime("gpu-only"))
    fine = Driver(task.runtime("single-learner-fine"))
    borrowed = task.runtime("single-learner-fine")
    hand, source = written_by_hand(borrowed)
    if options.show:
        print(source)
    _check_equal(task, borrowed, hand)
    began = time.perf_counter()
    fine.advance(4)
    iterations = max(2, round(4 * options.seconds / (time.perf_counter() - began)))
    samples = interleaved(
        {
            "fused": lambda: timed(lambda: fused.advance(iterations)),
            "by hand": lambda: timed(lambda: hand(0, iterations, False)),
            "runtime": lambda: timed(lambda: fine.advance(iterations)),
        },
        options.repeats,
    )
    shares = []
    for _ in range(3):
        inside: list[float] = []
        whole = timed(lambda inside=inside: inside.append(hand(0, iterations, True)[1]))
        shares.append(inside[0] / whole.seconds)
    steps = iterations * ROLLOUT
    by_hand = statistics.median(shares) * median(samples["by hand"]) / steps * 1e6

    def above(name: str, below: str) -> float:
        """Microseconds per step: the median of the differences within each round."""
        pairs = zip(samples[name], samples[below], strict=True)
        return statistics.median(a.seconds - b.seconds for a, b in pairs) / steps * 1e6

    per_step = {name: by_hand + above(name, "by hand") for name in samples}
    print_table(
        f"single-learner-fine, {envs} environments, {ROLLOUT} loop steps per iteration, "
        f"{iterations} iterations per sample",
        ("", "ms/iteration", "of these us per loop step", "fastest s", "slowest s"),
        [
            (
                name,
                f"{median(all_) / iterations * 1e3:.2f}",
                f"{per_step[name]:.1f}",
                f"{min(s.seconds for s in all_):.3f}",
                f"{max(s.seconds for s in all_):.3f}",
            )
            for name, all_ in samples.items()
        ],
    )
    print("  runtime above by hand", measure.verdict(above("runtime", "by hand"), 25, " us/step"))
    print("  runtime above fused", measure.verdict(above("runtime", "fused"), 100, " us/step"))
    print(f"  {measure.quiet(samples)}")
    for driver in (fused, fine):
        driver.runtime.close()
    borrowed.close()
    return {
        "envs": envs,
        "iterations": iterations,
        "loop_steps_per_iteration": ROLLOUT,
        "microseconds_per_step": per_step,
        "runtime_above_by_hand": above("runtime", "by hand"),
        "runtime_above_by_hand_target": 25,
        "runtime_above_fused": above("runtime", "fused"),
        "runtime_above_fused_target": 100,
        **as_data(samples),
    }


def _check_equal(task: Task, borrowed: Running, hand: AsyncWorker) -> None:
    """By hand and by the runtime, two iterations end in the same state, bit for bit."""
    other = task.runtime("single-learner-fine")
    other.run(0, 2)
    expected = [other.state()[c.inside] for c in borrowed.fdg.program.loop.carries]
    other.close()
    for ours, theirs in zip(hand(0, 2, False)[0], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def written_by_hand(runtime: Running) -> tuple[AsyncWorker, str]:
    """A function that makes the runtime's compiled calls, and its text.

    Every value is a local variable, a message is an assignment, a loop is a `for`.
    """
    workers = {worker.name: worker for worker in runtime.workers}
    writer = _Writer(workers)
    carries = runtime.fdg.program.loop.carries
    owners = [
        next(w.name for w in workers.values() if _makes(runtime, w, c.inside)) for c in carries
    ]
    state = ", ".join(writer.name(o, c.inside) for o, c in zip(owners, carries, strict=True))
    text = writer.text(state)
    scope: dict[str, Any] = {**writer.scope, "clock": time.perf_counter, "numpy": np.asarray}
    scope["wait"] = jax.block_until_ready
    exec(text, scope)
    return scope["by_hand"], text


def _makes(runtime: Running, worker: Worker, inside: str) -> bool:
    carry = next(c for c in runtime.fdg.program.loop.carries if c.inside == inside)
    holders = [w for w in runtime.workers if inside in w.state()]
    return worker in holders and owner(runtime.fdg, carry, holders) == worker.name


class _Writer:
    """Writes the text of one function from the schedules of several workers."""

    def __init__(self, workers: dict[str, Worker]):
        self.scope: dict[str, Any] = {}
        """what the function finds ready: compiled programs and first values"""
        self._workers = workers
        self._names: dict[tuple[str, str], str] = {}

    def name(self, worker: str, value: str) -> str:
        """The variable that holds a worker's value."""
        return self._names.setdefault((worker, value), f"v{len(self._names)}")

    def text(self, state: str) -> str:
        before, inside, after = self._phases()
        body: list[str] = []
        for worker in self._workers.values():
            counter = worker.part.fragment.loop.counter
            if counter is not None:
                self.scope["place"] = lambda k: jax.device_put(np.int32(k))
                body.append(f"{self.name(worker.name, counter)} = place(index)")
        body += self._lines(before) + self._renames("entry")
        body += ["if timed:", f"    wait(({state},))", "    began = clock()"]
        body += self._loop(inside)
        carried = [
            self.name(name, inside)
            for name, worker in self._workers.items()
            for inside, _ in worker.part.loops[0].step
        ]
        body += ["if timed:", f"    wait([{', '.join(carried)}])", "    seconds += clock() - began"]
        body += self._renames("exit") + self._lines(after) + self._outer_renames()
        known = self._first_values()
        return "\n".join(
            [
                "def by_hand(start, count, timed):",
                f"    global {', '.join(known)}",
                "    seconds, kept = 0.0, []",
                *(f"    {local} = {global_}" for global_, local in known.items()),
                "    for index in range(start, start + count):",
                *(f"        {line}" for line in body),
                "    for metric in kept:",
                "        numpy(metric)",
                f"    wait(({state},))",
                *(f"    {global_} = {local}" for global_, local in known.items()),
                f"    return [{state}], seconds",
            ]
        )

    def _phases(self) -> list[dict[str, Sequence[Instruction]]]:
        """What each worker does before, in and after its one loop."""
        phases: list[dict[str, Sequence[Instruction]]] = [{}, {}, {}]
        for name, worker in self._workers.items():
            code = worker.part.code
            (start,) = (i for i, c in enumerate(code) if isinstance(c, Enter))
            (end,) = (i for i, c in enumerate(code) if isinstance(c, Repeat))
            for phase, part in zip(
                phases, (code[:start], code[start + 1 : end], code[end + 1 :]), strict=True
            ):
                phase[name] = part
        return phases

    def _lines(self, codes: dict[str, Sequence[Instruction]]) -> list[str]:
        """All workers' calls in an order in which every message is sent before it is needed."""
        lines: list[str] = []
        sent: set[str] = set()
        left = {name: list(code) for name, code in codes.items()}
        while any(left.values()):
            before = sum(map(len, left.values()))
            for name, code in left.items():
                while code and not (isinstance(code[0], Get) and code[0].transfer.name not in sent):
                    match code.pop(0):
                        case Run(segment):
                            lines.append(self._call(name, segment))
                        case Put(transfer):
                            sent.add(transfer.name)
                        case Get(transfer):
                            values = [p.value for p in transfer.parcels]
                            lines += [
                                f"{self.name(name, v)} = {self.name(transfer.source, v)}"
                                for v in values
                            ]
            assert sum(map(len, left.values())) < before, "no order of these messages"
        return lines

    def _call(self, worker: str, segment: int) -> str:
        program = self._workers[worker].programs[segment]
        function = f"{worker}_{segment}"
        self.scope[function] = program.call
        outputs = "".join(f"{self.name(worker, v)}, " for v in program.outputs)
        inputs = ", ".join(self.name(worker, v) for v in program.inputs)
        return f"{outputs}= {function}({inputs})"

    def _loop(self, codes: dict[str, Sequence[Instruction]]) -> list[str]:
        first, *others = self._workers.values()
        self.scope["numbers"] = first.steps(0)
        counters = [self.name(w.name, w.part.loops[0].counter) for w in (first, *others)]
        lines = self._lines(codes) + self._renames("step")
        return [f"for {counters[0]} in numbers:"] + [
            f"    {line}" for line in [*(f"{c} = {counters[0]}" for c in counters[1:]), *lines]
        ]

    def _renames(self, which: str) -> list[str]:
        lines = []
        for name, worker in self._workers.items():
            (loop,) = worker.part.loops
            pairs = [(a, b) for a, b in getattr(loop, which) if a != b]
            lines.append(self._assign(name, pairs))
        return lines

    def _outer_renames(self) -> list[str]:
        """What goes from one iteration to the next; metrics are kept."""
        lines = []
        for name, worker in self._workers.items():
            loop = worker.part.fragment.loop
            kept = "".join(f"{self.name(name, s.element)}, " for s in loop.stacks)
            if kept:
                lines.append(f"kept += ({kept})")
            lines.append(self._assign(name, [(c.inside, c.next) for c in loop.carries]))
        return lines

    def _assign(self, worker: str, pairs: Sequence[tuple[str, str]]) -> str:
        targets = "".join(f"{self.name(worker, a)}, " for a, _ in pairs)
        return f"{targets}= " + "".join(f"{self.name(worker, b)}, " for _, b in pairs)

    def _first_values(self) -> dict[str, str]:
        """Global and local variable of everything that is there before the first iteration."""
        known = {}
        for (worker, value), local in self._names.items():
            values = self._workers[worker].values
            if value in values:
                known[f"first_{local}"] = local
                self.scope[f"first_{local}"] = values[value]
        return known


if __name__ == "__main__":
    main()
