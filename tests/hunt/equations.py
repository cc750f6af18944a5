"""The hunt for false claims, equation by equation: random functions of operands of every kind.

python -m hunt.equations --seconds 60               draws, and says what was found
python -m hunt.equations --replay SEED:INDEX        one draw again, made small
python -m hunt.equations --function jax.numpy.sort  draws that end with one function

Run it in tests/, or with that folder on PYTHONPATH.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hunt.catalogue import chances, functions
from hunt.draw import Draw
from hunt.judge import Uncomputable, Verdict, double_precision, explained, judge
from hunt.makers import makers
from hunt.program import Program
from hunt.shrink import shrunk

REFUSED_TRIED = 0.15
"""of programs of which nothing is claimed, how many are computed to see whether something holds"""
MAX_STEPS, ATTEMPTS = 3, 12
PORTION = 500
"""draws after which counts are kept"""
WITHOUT_OPERANDS = ("empty", "iota", "platform_index")
"""primitives that are not counted, since what is counted are kinds of operands"""
DIRECTED = 10**8
"""where indices of draws of one primitive begin"""


def drawn(seed: int, index: int, last: Sequence[str] = ()) -> Program | None:
    """A program; None if no function took what was drawn for it."""
    rng = np.random.default_rng([seed, index])
    draw = Draw(rng)
    names, odds = chances()
    wanted = int(rng.integers(1, MAX_STEPS + 1))
    made = 0
    for attempt in range(ATTEMPTS):
        is_last = made == wanted - 1
        if last and is_last:
            name = last[(index + attempt) % len(last)]
        else:
            name = names[int(rng.choice(len(names), p=odds))]
        made += draw.attempt(name, functions()[name])
        if made == wanted:
            return draw.program()
    return draw.program() if made and not last else None


@dataclass(slots=True, kw_only=True)
class Found:
    """What a hunt has found so far."""

    drawn: int = 0
    failed: int = 0
    """draws for which no function took its arguments"""
    claims: int = 0
    refused: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    """by the replay command's number, the program made small"""
    held: Counter[str] = field(default_factory=Counter)
    """'function: relation' that was refused although it holds"""
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    def add(self, program: Program, verdict: Verdict) -> None:
        self.claims += verdict.tried
        self.refused += len(verdict.claims) - verdict.tried
        self.seen += verdict.seen
        self.functions.update(step.function for step in program.steps)
        for result, relation in verdict.held[:1]:
            step = program.steps[_owner(program, result)]
            self.held[f"{step.function}: {relation}"] += 1


def _owner(program: Program, result: int) -> int:
    ends = np.cumsum(program.counts)
    return int(np.searchsorted(ends, result, side="right"))


def hunt(
    seed: int,
    indices: Iterator[int],
    *,
    seconds: float = float("inf"),
    last: Sequence[str] = (),
    most_bad: int = 10**9,
    found: Found | None = None,
    shrink: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Found:
    """Draws and judges, until the indices or the seconds end; says what is false at once."""
    found = found or Found()
    end = time.process_time() + seconds
    with double_precision():
        for index in indices:
            if time.process_time() > end or len(found.bad) >= most_bad:
                break
            found.drawn += 1
            program = drawn(seed, index, last)
            if program is None:
                found.failed += 1
                continue
            luck = np.random.default_rng([seed, index, 2]).random()
            try:
                verdict = judge(program, [seed, index], try_refused=luck < REFUSED_TRIED)
            except Uncomputable:
                found.failed += 1
                continue
            found.add(program, verdict)
            if verdict.is_bad:
                number = " --function ".join([f"{seed}:{index}", *last])
                found.bad[number] = (
                    small(program, verdict, [seed, index])
                    if shrink
                    else explained(program, verdict)
                )
                say(f"{command(number)}\n{found.bad[number]}\n")
    return found


def small(program: Program, verdict: Verdict, seed: Sequence[int]) -> str:
    """What is wrong, of the smallest program that is."""
    return explained(*shrunk(program, verdict, lambda p: judge(p, seed)))


def replay(seed: int, index: int, last: Sequence[str] = ()) -> str:
    with double_precision():
        program = drawn(seed, index, last)
        if program is None:
            return "nothing was drawn"
        verdict = judge(program, [seed, index])
        if not verdict.is_bad:
            return f"{program}\nnothing false is claimed"
        return f"{program}\n\n{small(program, verdict, [seed, index])}"


def command(number: str) -> str:
    return f"python -m hunt.equations --replay {number}"


def report(found: Found, seconds: float) -> str:
    lines = []
    if found.held:
        lines.append("refused although a relation holds, most frequent first:")
        lines += [f"{count:6} {name}" for name, count in found.held.most_common(25)]
    primitives = len({primitive for primitive, _ in found.seen})
    lines.append(
        f"{found.drawn} draws ({found.failed} do not run), {found.claims} claims of {primitives} "
        f"primitives tried, {found.refused} results refused, {len(found.bad)} false; "
        f"{seconds:.0f} s"
    )
    return "\n".join(lines)


def as_json(found: Found) -> dict[str, Any]:
    table: dict[str, dict[str, int]] = {}
    for (primitive, kind), count in sorted(found.seen.items()):
        table.setdefault(primitive, {})[kind] = count
    return {
        "drawn": found.drawn,
        "failed": found.failed,
        "claims": found.claims,
        "refused": found.refused,
        "bad": found.bad,
        "held": dict(found.held.most_common()),
        "functions": dict(found.functions.most_common()),
        "primitives": table,
    }


def from_json(kept: dict[str, Any]) -> Found:
    seen = {(p, k): n for p, row in kept["primitives"].items() for k, n in row.items()}
    return Found(
        drawn=kept["drawn"],
        failed=kept["failed"],
        claims=kept["claims"],
        refused=kept["refused"],
        bad=dict(kept["bad"]),
        held=Counter(kept["held"]),
        functions=Counter(kept["functions"]),
        seen=Counter(seen),
    )


def enough_of_each(found: Found, least: int, seed: int, keep: Callable[[], None]) -> list[str]:
    """Further draws that end with functions which make what was met too seldom; what still is."""

    def seldom() -> list[str]:
        met = Counter[str]()
        for (primitive, _), count in found.seen.items():
            met[primitive] += count
        return [p for p in sorted(makers()) if met[p] < least and p not in WITHOUT_OPERANDS]

    for primitive in seldom():
        names = makers()[primitive]
        first = DIRECTED + 1000 * sorted(makers()).index(primitive)
        for name in names:
            hunt(seed, iter(range(first, first + 10 * least)), last=[name], found=found)
            if primitive not in seldom():
                break
        keep()
    return seldom()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**8)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this process' time")
    parser.add_argument("--function", action="append", default=[], help="the last function")
    parser.add_argument("--replay", metavar="SEED:INDEX")
    parser.add_argument("--progress", type=Path, help="a file to go on from, and to keep counts in")
    parser.add_argument("--enough", type=int, default=0, help="equations of every primitive")
    options = parser.parse_args()
    if options.replay:
        seed, index = map(int, options.replay.split(":"))
        print(replay(seed, index, options.function))
        return 0
    jax.config.update("jax_disable_most_optimizations", True)  # most programs run once
    file = options.progress
    found = from_json(json.loads(file.read_text())) if file and file.exists() else Found()

    def keep() -> None:
        if file:
            file.with_suffix(".new").write_text(json.dumps(as_json(found), indent=1))
            file.with_suffix(".new").replace(file)

    begin = time.process_time()
    first = found.drawn
    while first < options.count:
        last = min(first + PORTION, options.count)
        indices = iter(range(options.start + first, options.start + last))
        left = options.seconds - (time.process_time() - begin)
        hunt(
            options.seed,
            indices,
            seconds=left,
            last=options.function,
            found=found,
            say=lambda text: print(text, flush=True),
        )
        keep()
        if found.drawn < last:
            break
        first = last
        jax.clear_caches()  # programs take memory maps, which are limited
    seldom = enough_of_each(found, options.enough, options.seed, keep) if options.enough else []
    if seldom:
        print(f"fewer than {options.enough} equations of: {', '.join(seldom)}")
    print(report(found, time.process_time() - begin))
    return 1 if found.bad or seldom else 0


if __name__ == "__main__":
    sys.exit(main())
