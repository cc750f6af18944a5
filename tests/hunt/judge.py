"""Asks the analysis what it holds of a drawn program's results, and numbers whether that is so."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from fragflow._jax import Eqn
from fragflow.errors import FragflowError
from fragflow.graph.fragment_extent import environments_axis
from fragflow.graph.replicas.interpret import Context, analyse
from fragflow.graph.replicas.kinds import Kind, Tag, mixed
from hunt.lockstep import Lockstep
from hunt.program import Program, equations_in, float_bytes, narrowest_float
from hunt.relations import broken, describe, holding, is_testable, size_of, tolerance_of, values

INPUTS = 3
"""at how many random inputs a claim is tried"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found of one program."""

    claims: tuple[Kind, ...]
    """of all results of all steps"""
    false: tuple[int, str] | None = None
    """the first result that is not what is claimed of it, and why"""
    held: tuple[tuple[int, str], ...] = ()
    """results that were refused although they have a relation"""
    crash: str = ""
    tried: int = 0
    """how many claims were tried with numbers"""
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(primitive, kinds of its operands), how often the analysis was asked of it"""

    @property
    def is_bad(self) -> bool:
        return self.false is not None or bool(self.crash)


class Uncomputable(Exception):
    """A program that is traced, but does not run: JAX has not looked at all of its arguments."""


@contextmanager
def double_precision() -> Iterator[None]:
    """Numbers are doubles here, and nothing is said about what is deprecated."""
    with warnings.catch_warnings(), jax.enable_x64(True), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


class Watching(Context):
    """A context that counts what it is asked of."""

    seen: ClassVar[Counter[tuple[str, str]]] = Counter()

    def apply(self, a: Eqn, b: Eqn, kinds: Sequence[Kind]) -> list[Kind]:
        if kinds:
            Watching.seen[a.primitive.name, _tags(kinds)] += 1
        return super().apply(a, b, kinds)


def _tags(kinds: Sequence[Kind]) -> str:
    """The one kind among an equation's operands that says most."""
    tags = {k.tag for k in kinds}
    for tag in (Tag.MIXED, Tag.PARTIAL, Tag.VARYING):
        if tag in tags:
            return tag.value
    return "count" if any(k.degree for k in kinds) else "uniform"


def traces(program: Program) -> tuple[Any, Any]:
    """The whole program and a replica's."""
    sizes = program.sizes

    def at(n: int, whole: bool) -> Any:
        return jax.make_jaxpr(lambda *args: program.run(args, n))(*program.avals(whole))

    return at(sizes.whole, True), at(sizes.local, False)


def judge(program: Program, seed: Sequence[int], *, try_refused: bool = False) -> Verdict:
    """The analysis' claims, tried at random inputs; and perhaps what it refuses, too."""
    whole, local = traces(program)
    sizes = program.sizes
    context = Watching(axis=environments_axis(sizes.whole, sizes.local))
    Watching.seen = Counter()
    crash = ""
    try:
        claims = tuple(analyse(whole, local, [o.kind for o in program.operands], context))
    except FragflowError as error:
        claims = (mixed(str(error), ""),) * len(whole.jaxpr.outvars)
    except Exception as error:
        crash = f"{type(error).__name__}: {error}"
        claims = (mixed(crash, ""),) * len(whole.jaxpr.outvars)
    seen = Watching.seen
    tried = [i for i, k in enumerate(claims) if is_testable(k)]
    if "rng_uniform" in primitives_of(program):
        raise Uncomputable("XLA itself ends where rng_uniform is of some types")
    if crash or not (tried or try_refused):
        return Verdict(claims=claims, crash=crash, seen=seen)

    try:
        wrong, held = _tried(program, whole, local, claims, seed)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Uncomputable(str(error)) from error
    return Verdict(
        claims=claims,
        false=wrong[0] if wrong else None,
        held=tuple(held) if try_refused else (),
        tried=len(tried),
        seen=seen,
    )


def _tried(
    program: Program, whole: Any, local: Any, claims: Sequence[Kind], seed: Sequence[int]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    sizes, rng = program.sizes, np.random.default_rng([*seed, 1])
    rounding = _tolerances(program, whole, local)
    wrong: dict[int, str] = {}
    held: dict[int, str] | None = None
    for _ in range(INPUTS):
        drawn = [values(o, sizes, rng) for o in program.operands]
        given = [w for w, _ in drawn], [list(p) for p in zip(*(ps for _, ps in drawn), strict=True)]
        if not drawn:
            given = [], [[] for _ in range(sizes.replicas)]
        w, ls = Lockstep().run(whole, given[:1])[0], Lockstep().run(local, given[1])
        here: dict[int, str] = {}
        size = size_of([*given[0], *w])  # one result may be made from another
        for i, kind in enumerate(claims):
            parts = [part[i] for part in ls]
            tolerance = rounding[kind.tag is Tag.PARTIAL]
            if is_testable(kind):
                why = broken(kind, w[i], parts, sizes, tolerance, size)
                if why:
                    wrong.setdefault(i, why)
            else:
                relation = holding(w[i], parts, sizes, tolerance)
                if relation:
                    here[i] = relation
        held = here if held is None else {i: r for i, r in held.items() if here.get(i) == r}
    return sorted(wrong.items()), sorted((held or {}).items())


def _tolerances(program: Program, whole: Any, local: Any) -> dict[bool, float]:
    """By whether a value is partial: sums of parts are rounded as their rows are, no further."""
    narrowest = narrowest_float(whole)
    is_narrow = any(o.dtype in ("bfloat16", "float16") for o in program.operands)
    for a, b in zip(equations_in(whole.jaxpr), equations_in(local.jaxpr), strict=False):
        is_narrow |= any(
            v.aval.shape != other.aval.shape and float_bytes(v.aval) < 4
            for v, other in zip(a.outvars, b.outvars, strict=False)
        )
    bound = narrowest if is_narrow else max(narrowest, 4)
    return {False: tolerance_of(narrowest), True: tolerance_of(bound)}


def primitives_of(program: Program) -> set[str]:
    return {eqn.primitive.name for eqn in equations_in(traces(program)[0].jaxpr)}


def explained(program: Program, verdict: Verdict) -> str:
    """The program, and what is wrong with a claim about it."""
    if verdict.crash:
        return f"{program}\nthe analysis fails: {verdict.crash}"
    assert verdict.false is not None
    index, why = verdict.false
    name = f"v{len(program.operands) + index}"
    return f"{program}\nclaimed: {name} is {describe(verdict.claims[index])}\nbut {why}"
