"""Makes a program about which something false is claimed as small as it gets."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax

from fragflow.graph.replicas.kinds import UNIFORM, Kind, Tag
from hunt.draw import dtype_name
from hunt.judge import Verdict
from hunt.program import Program, Ref, Size, Step, renumbered, step_refs
from hunt.relations import Operand, Sizes, is_testable

Judge = Callable[[Program], Verdict]
MOST = 60
"""tries, each of which compiles a program"""


def shrunk(program: Program, verdict: Verdict, judge: Judge) -> tuple[Program, Verdict]:
    """A smaller program that is as wrong; the same one if there is none."""
    tries = 0
    changed = True
    while changed and tries < MOST:
        changed = False
        for candidate in _smaller(program, verdict):
            tries += 1
            if tries > MOST:
                break
            try:
                found = judge(candidate)
            except Exception:  # what was made smaller may not be a program any more
                continue
            if found.is_bad and bool(found.crash) == bool(verdict.crash):
                program, verdict, changed = candidate, found, True
                break
    return program, verdict


def _smaller(program: Program, verdict: Verdict) -> Iterator[Program]:
    """Steps away from the end, then from the front, then operands and arguments made plain."""
    if verdict.false is not None:
        step = _step_of(program, verdict.false[0])
        if step < len(program.steps) - 1:
            yield _kept(program, step + 1)
    elif len(program.steps) > 1:
        yield _kept(program, len(program.steps) - 1)
    yield from _without_unread_steps(program)
    yield from _without_first_steps(program, verdict)
    used = _used(program)
    if used is not None:
        yield used
    for i, operand in enumerate(program.operands):
        for kind in _plainer(operand.kind):
            operands = list(program.operands)
            operands[i] = replace(operand, kind=kind)
            yield replace(program, operands=tuple(operands))
    for i, step in enumerate(program.steps):
        for plain in _plainer_steps(step):
            yield replace(program, steps=(*program.steps[:i], plain, *program.steps[i + 1 :]))
    if program.sizes.replicas > 2:
        yield replace(program, sizes=Sizes(program.sizes.local, 2))


def _step_of(program: Program, result: int) -> int:
    for i, count in enumerate(program.counts):
        if result < count:
            return i
        result -= count
    raise IndexError(result)


def _kept(program: Program, steps: int) -> Program:
    return replace(program, steps=program.steps[:steps], counts=program.counts[:steps])


def _without_unread_steps(program: Program) -> Iterator[Program]:
    """One step away whose results no other reads."""
    read = {i for step in program.steps for i in step_refs(step)}
    first = len(program.operands)
    for k, count in enumerate(program.counts):
        made = range(first, first + count)
        if len(program.steps) > 1 and read.isdisjoint(made):
            end = first + count
            steps = [
                renumbered(step, lambda i, end=end, count=count: i - count if i >= end else i)
                for step in (*program.steps[:k], *program.steps[k + 1 :])
            ]
            counts = (*program.counts[:k], *program.counts[k + 1 :])
            yield replace(program, steps=tuple(steps), counts=counts)
        first += count


def _without_first_steps(program: Program, verdict: Verdict) -> Iterator[Program]:
    """The first step away: what it made becomes operands of the kinds that were claimed of it."""
    if len(program.steps) < 2 or verdict.crash:
        return
    count = program.counts[0]
    claims = verdict.claims[:count]
    avals = _avals(program)
    if avals is None or not all(map(is_testable, claims)):
        return
    made = tuple(
        Operand(replace(k, line="", reason=""), shape, dtype)
        for k, (shape, dtype) in zip(claims, avals[:count], strict=True)
    )
    yield Program(program.sizes, (*program.operands, *made), program.steps[1:], program.counts[1:])


def _avals(program: Program) -> list[tuple[tuple[int, ...], str]] | None:
    found = jax.eval_shape(lambda *a: program.run(a, program.sizes.local), *program.avals(False))
    return [(tuple(x.shape), dtype_name(x.dtype)) for x in found]


def _used(program: Program) -> Program | None:
    """Without operands, and results at the end, that nothing reads."""
    read = {i for step in program.steps for i in step_refs(step)}
    kept = [i for i in range(len(program.operands)) if i in read]
    if len(kept) == len(program.operands):
        return None
    total = len(program.operands) + sum(program.counts)
    rest = range(len(program.operands), total)
    number = {old: new for new, old in enumerate([*kept, *rest])}
    return replace(
        program,
        operands=tuple(program.operands[i] for i in kept),
        steps=tuple(renumbered(step, number.__getitem__) for step in program.steps),
    )


def _plainer(kind: Kind) -> Iterator[Kind]:
    if kind.tag is Tag.PARTIAL:
        yield UNIFORM
        if kind.degree > 1:
            yield replace(kind, degree=1)
    if kind.tag is Tag.UNIFORM and kind != UNIFORM:
        yield UNIFORM
    if kind.tag is Tag.VARYING:
        if kind.degree or kind.zero or kind.flexible:
            yield replace(kind, degree=0, zero=False, flexible=False)
        if kind.outer > 1:
            yield replace(kind, outer=1, inner=kind.outer * kind.inner)


def _plainer_steps(step: Step) -> Iterator[Step]:
    for i in range(len(step.kwargs)):
        yield replace(step, kwargs=step.kwargs[:i] + step.kwargs[i + 1 :])
    for i, argument in enumerate(step.args):
        if isinstance(argument, Size) and argument.expression != "n":
            yield replace(step, args=(*step.args[:i], Size("n"), *step.args[i + 1 :]))
        if isinstance(argument, Ref) and argument.index > 0:
            yield replace(step, args=(*step.args[:i], Ref(0), *step.args[i + 1 :]))
