"""Picks how each fragment computes what can be computed in several ways."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragflow._jax import ClosedJaxpr, kernels_in
from fragflow.api.kernel import KERNELS, REFERENCE, Implementation, reference_program
from fragflow.errors import ConfigError, did_you_mean
from fragflow.graph.ir import FDG, Fragment, Op, walk
from fragflow.graph.relation import distance
from fragflow.runtime import onnx_engine
from fragflow.runtime.compiled import Engine
from fragflow.runtime.plan import Part, Plan
from fragflow.runtime.segments import Segment

ACTOR, ONNX = "actor", "onnx"
"""the component that an inference engine may run, and the engine"""

Picks = Mapping[str, Mapping[str, str]]
"""by fragment, for each kernel or component: the name of its implementation"""


def pick(
    plan: Plan, asked: Mapping[str, str] | None = None, is_deterministic: bool = False
) -> Picks:
    """What each fragment uses: what was asked for, else the default of where it runs.

    With `is_deterministic` the default is XLA throughout.
    """
    asked = asked or {}
    picks: dict[str, dict[str, str]] = {}
    for name, part in plan.parts.items():
        fragment = part.fragment
        kernels = _kernels(fragment)
        picks[name] = {
            kernel: _kernel(kernel, avals, fragment, asked.get(kernel), is_deterministic)
            for kernel, avals in kernels.items()
        }
        for kernel, how in picks[name].items():
            if how != REFERENCE:
                _compare(kernel, how, kernels[kernel], fragment.device)
        if ACTOR in asked and ACTOR in fragment.components:
            picks[name][ACTOR] = _actor(part, asked[ACTOR], is_deterministic)
    known = {kernel for chosen in picks.values() for kernel in chosen}
    if any(ACTOR in part.fragment.components for part in plan.parts.values()):
        known.add(ACTOR)
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"implementation {name}={asked[name]}: nothing called {name!r} is in this graph. "
                f"There are: {', '.join(sorted(known)) or 'none'}.{did_you_mean(name, known)}"
            )
    return picks


def kernel_programs(
    picks: Mapping[str, str], platform: str
) -> Callable[[str, ClosedJaxpr], ClosedJaxpr | None]:
    """A function that gives the picked program in the place of a kernel's own."""

    def other(name: str, closed: ClosedJaxpr) -> ClosedJaxpr | None:
        if picks.get(name, REFERENCE) == REFERENCE:
            return None
        chosen = KERNELS[name].implementations[picks[name]]
        avals = closed.in_avals
        # Mapped over a further axis, or differentiated, it is another function by now.
        if str(closed) != str(reference_program(name, avals)) or not chosen.fits(avals):
            return None
        return jax.make_jaxpr(lambda *args: chosen.call(*args, platform=platform))(*avals)

    return other


def engine_for(picks: Mapping[str, str], segment: Segment, fragment: Fragment) -> Engine | None:
    """What runs a part of a segment outside XLA, if that was picked."""
    if picks.get(ACTOR) != ONNX or not _has_actor(segment.nodes):
        return None

    def engine(closed: ClosedJaxpr, device: Any, compiler_options: dict[str, Any]) -> Any:
        sharers = fragment.replicas
        return onnx_engine.through_onnx(closed, ACTOR, device, compiler_options, sharers)

    return engine


def inexact(fdg: FDG, picks: Picks) -> list[str]:
    """The implementations whose results differ from XLA's by rounding."""
    found = set()
    for fragment, chosen in picks.items():
        for name, implementation in chosen.items():
            known = KERNELS[name].implementations if name in KERNELS else {}
            here = known[implementation].picked_on if implementation in known else ()
            if implementation != REFERENCE and fdg.fragments[fragment].device not in here:
                found.add(f"{name}={implementation}")
    return sorted(found)


def explained(chosen: Mapping[str, str]) -> dict[str, str]:
    """What was picked, in words: with why it is not what is usually picked, if that is absent."""
    return {name: how + _why_not_another(name, how) for name, how in chosen.items()}


def _why_not_another(name: str, how: str) -> str:
    others = KERNELS[name].implementations.values() if name in KERNELS else ()
    usual = [other for other in others if other.picked_on]
    reasons = [f"{u.name} is absent: {reason}" for u in usual if (reason := u.absent())]
    return f" ({'; '.join(reasons)})" if how == REFERENCE and reasons else ""


def _kernels(fragment: Fragment) -> dict[str, Sequence[Any]]:
    """The kernels that a fragment calls, and the types of their arguments."""
    found: dict[str, Sequence[Any]] = {}
    for node in walk(fragment.loop.body):
        if isinstance(node, Op):
            for name, closed in kernels_in(node.eqns[fragment.extent]):
                if name in KERNELS:
                    found.setdefault(name, closed.in_avals)
    return found


def _kernel(
    name: str,
    avals: Sequence[Any],
    fragment: Fragment,
    asked: str | None,
    is_deterministic: bool,
) -> str:
    implementations = KERNELS[name].implementations
    if asked is None:
        return REFERENCE if is_deterministic else _default(implementations, avals, fragment.device)
    if asked == REFERENCE:
        return asked
    if asked not in implementations:
        raise ConfigError(
            f"implementation {name}={asked}: expected one of "
            f"{', '.join((REFERENCE, *implementations))}"
        )
    chosen = implementations[asked]
    reason = chosen.absent() or ("" if chosen.fits(avals) else "it cannot take these arrays")
    if reason:
        raise ConfigError(f"implementation {name}={asked}: {reason}")
    return asked


def _default(
    implementations: Mapping[str, Implementation], avals: Sequence[Any], platform: str
) -> str:
    for name, implementation in implementations.items():
        suits = platform in implementation.picked_on and implementation.fits(avals)
        if suits and implementation.absent() is None:
            return name
    return REFERENCE


TOLERANCE = 1e-3
"""relative to the largest number: another order of sums is far below"""


def _compare(name: str, how: str, avals: Sequence[Any], platform: str) -> None:
    """Refuses a user's implementation that is not the reference, on random numbers.

    The replica check reads the reference alone. Ours are compared by tests; where there is no such
    device here, or arguments are not numbers, there is nothing to compare.
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


def _actor(part: Part, asked: str, is_deterministic: bool) -> str:
    fragment = part.fragment
    if asked == REFERENCE:
        return asked
    if asked != ONNX:
        raise ConfigError(f"implementation {ACTOR}={asked}: expected {REFERENCE} or {ONNX}")
    reason = onnx_engine.absent()
    if reason is None and is_deterministic:
        reason = "its results differ from XLA's by rounding: leave out --deterministic"
    if reason is None and fragment.device != "cpu":
        reason = f"it runs on CPUs, and fragment {fragment.name!r} on {fragment.device}"
    if reason is None and (
        part.fused or fragment.group or not any(_has_actor(s.nodes) for s in part.segments)
    ):
        reason = (
            f"in fragment {fragment.name!r} the actor is inside a larger XLA program. A worker "
            "calls it by itself where environments are on the host, or on other workers "
            "(--policy single-learner-fine)"
        )
    if reason is not None:
        raise ConfigError(f"implementation {ACTOR}={asked}: {reason}")
    return asked


def _has_actor(nodes: Sequence[Any]) -> bool:
    """Whether the actor is called in these nodes themselves, not in a loop of theirs."""
    return any(isinstance(node, Op) and ACTOR in node.components for node in nodes)
