"""Picks each fragment's implementation of every kernel that has several."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fragflow._jax import ClosedJaxpr, dead_code_removed, kernels_in
from fragflow.api.kernel import KERNELS, REFERENCE, Implementation, reference_program
from fragflow.errors import ConfigError, did_you_mean
from fragflow.graph.ir import FDG, Fragment, Op, walk
from fragflow.graph.probe.relation_to_whole import distance
from fragflow.runtime.planning.plan import Plan
from fragflow.runtime.programs.kernels_in_program import Computed, marked


class Way(NamedTuple):
    """The implementation that computes a kernel, and a note about it."""

    how: str
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.how} ({self.note})" if self.note else self.how


Picks = Mapping[str, Mapping[str, Way]]
"""by fragment, for each kernel"""


def pick(
    plan: Plan, asked: Mapping[str, str] | None = None, is_deterministic: bool = False
) -> Picks:
    """Picks each fragment's implementations: those asked for, else its platform's default.

    With `is_deterministic` the default is XLA throughout.
    """
    asked = asked or {}
    check_names(plan, asked)
    picks: dict[str, dict[str, Way]] = {}
    for name, part in plan.parts.items():
        fragment = part.fragment
        calls = _calls(fragment)
        picks[name] = {
            kernel: _way(kernel, programs, fragment, asked.get(kernel), is_deterministic)
            for kernel, programs in calls.items()
        }
        for kernel, way in picks[name].items():
            if way.how != REFERENCE:
                for program in _fitting(kernel, way.how, calls[kernel]):
                    _compare(kernel, way.how, program.in_avals, fragment.device)
    for name, how in asked.items():
        ways = [chosen[name] for chosen in picks.values() if name in chosen]
        if how not in {way.how for way in ways}:
            raise ConfigError(f"implementation {name}={how}: {ways[0].note}")
    return picks


def check_names(plan: Plan, asked: Mapping[str, str]) -> None:
    """Refuses kernels that no fragment calls, and implementations that they do not have."""
    known = {kernel for part in plan.parts.values() for kernel in _calls(part.fragment)}
    for name, how in asked.items():
        if name not in known:
            raise ConfigError(
                f"implementation {name}={how}: nothing called {name!r} is in this graph. "
                f"There are: {', '.join(sorted(known)) or 'none'}.{did_you_mean(name, known)}"
            )
        ways = (REFERENCE, *KERNELS[name].implementations)
        if how not in ways:
            raise ConfigError(f"implementation {name}={how}: expected one of {', '.join(ways)}")


def kernel_programs(
    picks: Mapping[str, Way], platform: str
) -> Callable[[str, ClosedJaxpr], ClosedJaxpr | None]:
    """Makes a function that returns the program picked for a kernel; None: the kernel's own."""

    def other(name: str, closed: ClosedJaxpr) -> ClosedJaxpr | None:
        how = picks[name].how if name in picks else REFERENCE
        if how == REFERENCE:
            return None
        chosen = KERNELS[name].implementations[how]
        if _misfit(name, chosen, closed):
            return None
        call = marked(lambda *args: chosen.call(*args, platform=platform), how)
        return jax.make_jaxpr(call)(*closed.in_avals)

    return other


def as_compiled(picks: Picks, computed: Mapping[str, Computed]) -> Picks:
    """Returns the picks that are in the compiled programs, with the reference for all others."""

    def checked(fragment: str, name: str, way: Way) -> Way:
        if way.how == REFERENCE or (name, way.how) in computed.get(fragment, frozenset()):
            return way
        return Way(REFERENCE, f"{way.how} is not in the compiled program")

    return {
        fragment: {name: checked(fragment, name, way) for name, way in chosen.items()}
        for fragment, chosen in picks.items()
    }


def in_words(picks: Picks) -> dict[str, str]:
    """Describes how each kernel is computed; for each fragment where they differ."""
    ways: dict[str, dict[str, str]] = {}
    for fragment, chosen in picks.items():
        for name, way in chosen.items():
            ways.setdefault(name, {})[fragment] = way.text
    return {
        name: next(iter(by.values()))
        if len(set(by.values())) == 1
        else ", ".join(f"{text} in {fragment}" for fragment, text in by.items())
        for name, by in ways.items()
    }


def inexact(fdg: FDG, picks: Picks) -> list[str]:
    """The implementations whose results differ from XLA's by rounding."""
    found = set()
    for fragment, chosen in picks.items():
        for name, way in chosen.items():
            known = KERNELS[name].implementations
            here = known[way.how].picked_on if way.how in known else ()
            if way.how != REFERENCE and fdg.fragments[fragment].device not in here:
                found.add(f"{name}={way.how}")
    return sorted(found)


def _calls(fragment: Fragment) -> dict[str, list[ClosedJaxpr]]:
    """The kernels that a fragment calls, and the program of every call."""
    found: dict[str, list[ClosedJaxpr]] = {}
    for node in walk(fragment.loop.body):
        if isinstance(node, Op):
            for name, closed in kernels_in(node.eqns[fragment.extent]):
                if name in KERNELS:
                    found.setdefault(name, []).append(closed)
    return found


def _way(
    name: str,
    programs: Sequence[ClosedJaxpr],
    fragment: Fragment,
    asked: str | None,
    is_deterministic: bool,
) -> Way:
    implementations = KERNELS[name].implementations
    if asked is None:
        return Way(REFERENCE) if is_deterministic else _default(name, programs, fragment.device)
    if asked == REFERENCE:
        return Way(asked)
    return _tried(name, implementations[asked], programs)


def _default(name: str, programs: Sequence[ClosedJaxpr], platform: str) -> Way:
    ways = [
        _tried(name, implementation, programs)
        for implementation in KERNELS[name].implementations.values()
        if platform in implementation.picked_on
    ]
    usable = [way for way in ways if way.how != REFERENCE]
    notes = "; ".join(way.note for way in ways)
    return usable[0] if usable else Way(REFERENCE, notes)


def _tried(name: str, implementation: Implementation, programs: Sequence[ClosedJaxpr]) -> Way:
    """The way of this implementation; the reference, with the reason, if it cannot be used."""
    how = implementation.name
    reason = implementation.absent()
    if reason is not None:
        return Way(REFERENCE, f"{how} is absent: {reason}")
    misfits = [why for p in programs if (why := _misfit(name, implementation, p))]
    if len(misfits) == len(programs):
        return Way(REFERENCE, f"{how} did not fit: {misfits[0]}")
    if misfits:
        fitting = len(programs) - len(misfits)
        return Way(how, f"in {fitting} of {len(programs)} calls; it did not fit: {misfits[0]}")
    return Way(how)


def _fitting(name: str, how: str, programs: Sequence[ClosedJaxpr]) -> list[ClosedJaxpr]:
    implementation = KERNELS[name].implementations[how]
    return [p for p in programs if not _misfit(name, implementation, p)]


def _misfit(name: str, implementation: Implementation, closed: ClosedJaxpr) -> str:
    """The reason why an implementation cannot replace a call of its kernel; empty if it can."""
    avals = closed.in_avals
    other = "the call was mapped, differentiated or cut down, so that it is another function"
    try:
        reference = reference_program(name, avals)
    except TypeError:  # an argument that nothing reads was removed
        return other
    if _text(closed) != _text(reference):
        return other
    if not implementation.fits(avals):
        return f"it cannot take {', '.join(a.str_short() for a in avals)}"
    return ""


def _text(closed: ClosedJaxpr) -> str:
    """A program as text, its variables numbered in order, without dead code.

    Tracing an algorithm removes dead code too.
    """
    return _ADDRESS.sub("", str(dead_code_removed(closed)))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


TOLERANCE = 1e-3
"""relative to the largest number; sums in another order differ by far less"""


def _compare(name: str, how: str, avals: Sequence[Any], platform: str) -> None:
    """Refuses a user's implementation that differs from the reference on random numbers.

    The replica check reads the reference alone. Our own implementations are compared by tests.
    Nothing is compared without such a device here, or if an argument is not of numbers.
    """
    kernel = KERNELS[name]
    call = kernel.implementations[how].call
    is_ours = kernel.reference.__module__.startswith("fragflow.")
    if is_ours or platform not in {d.platform for d in jax.local_devices()}:
        return
    if not all(a.dtype.kind in "fiub" for a in avals):
        return
    rng = np.random.default_rng(0)
    args = [
        rng.normal(size=a.shape).astype(a.dtype)
        if a.dtype.kind == "f"
        else rng.integers(0, 2, a.shape).astype(a.dtype)
        for a in avals
    ]
    expected = jax.tree.leaves(jax.jit(kernel.reference)(*args))
    found = jax.tree.leaves(jax.jit(lambda *x: call(*x, platform=platform))(*args))
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=False)]
    if len(expected) == len(found) and all(a.shape == b.shape for a, b in pairs):
        worst = max((distance(a, b) for a, b in pairs), default=0.0)
        if worst <= TOLERANCE:
            return
        what = f"differs by {worst:.1g} of the largest number"
    else:
        what = "has results of other shapes than those"
    shapes = ", ".join(a.str_short() for a in avals)
    raise ConfigError(
        f"implementation {name}={how} {what} from the kernel's reference, for random {shapes}: it "
        f"must compute what the reference does (--implementation {name}={REFERENCE} leaves it out)"
    )
