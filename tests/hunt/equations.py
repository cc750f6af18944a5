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
from typing import Any

import jax
import numpy as np

from hunt.catalogue import chances, functions
from hunt.draw import Draw
from hunt.judge import Uncomputable, Verdict, double_precision, explained, judge
from hunt.program import Program
from hunt.shrink import shrunk

REFUSED_TRIED = 0.15
"""of programs of which nothing is claimed, how many are computed to see whether something holds"""
MOST_STEPS, ATTEMPTS = 3, 12


def drawn(seed: int, index: int, last: Sequence[str] = ()) -> Program | None:
    """A program; None if no function took what was drawn for it."""
    rng = np.random.default_rng([seed, index])
    draw = Draw(rng)
    names, odds = chances()
    wanted = int(rng.integers(1, MOST_STEPS + 1))
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
                found.bad[f"{seed}:{index}"] = (
                    small(program, verdict, seed, index) if shrink else explained(program, verdict)
                )
                say(f"{command(f'{seed}:{index}', last)}\n{found.bad[f'{seed}:{index}']}\n")
    return found


def small(program: Program, verdict: Verdict, seed: int, index: int) -> str:
    program, verdict = shrunk(program, verdict, lambda p: judge(p, [seed, index]))
    return explained(program, verdict)


def replay(seed: int, index: int, last: Sequence[str] = ()) -> str:
    with double_precision():
        program = drawn(seed, index, last)
        if program is None:
            return "nothing was drawn"
        verdict = judge(program, [seed, index])
        if not verdict.is_bad:
            return f"{program}\nnothing false is claimed"
        return f"{program}\n\n{small(program, verdict, seed, index)}"


def command(number: str, last: Sequence[str] = ()) -> str:
    ends = f" --function {last[0]}" if last else ""
    return f"python -m hunt.equations --replay {number}{ends}"


def report(found: Found, seconds: float) -> str:
    lines = [
        f"{found.drawn} draws, {found.drawn / max(seconds, 1e-9):.0f} a second; {found.failed} had"
        f" no function; {found.claims} claims tried, {found.refused} results refused,"
        f" {len(found.bad)} false"
    ]
    if found.held:
        lines.append("\nrefused although a relation holds, most frequent first:")
        lines += [f"{count:6} {name}" for name, count in found.held.most_common(25)]
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--function", action="append", default=[], help="the last function")
    parser.add_argument("--replay", metavar="SEED:INDEX")
    parser.add_argument("--json", help="write what was found to this file")
    options = parser.parse_args()
    if options.replay:
        seed, index = map(int, options.replay.split(":"))
        print(replay(seed, index, options.function))
        return 0
    jax.config.update("jax_disable_most_optimizations", True)  # most programs run once
    begin = time.process_time()
    indices = iter(range(options.start, options.start + options.count))
    found = hunt(
        options.seed,
        indices,
        seconds=options.seconds,
        last=options.function,
        say=lambda text: print(text, flush=True),
    )
    print(report(found, time.process_time() - begin))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(as_json(found), file, indent=1)
    return 1 if found.bad else 0


if __name__ == "__main__":
    sys.exit(main())
