"""A run's statement about its results: their relation to those of one undivided program."""

from collections.abc import Callable, Sequence

import jax

from fragflow.api.component import ENVIRONMENT
from fragflow.api.host import HostEnvironment
from fragflow.graph.analyses.replaceable import host_of
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG, REDUCTIONS, Fragment
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.probe.probe import is_divided
from fragflow.graph.tracing.trace import Tracer
from fragflow.runtime.observer import Observer
from fragflow.runtime.programs.devices import are_loops_apart, processor_of
from fragflow.runtime.promises.compare_bits import Difference
from fragflow.runtime.promises.run_probe import NOT_PROVEN, SWITCHED_OFF, Tried
from fragflow.runtime.promises.selftest import (
    are_near_floats,
    components_with_other_bits,
    rounding_glue,
)

MAX_ROUNDING = 0.1
"""relative; an optimiser can make a whole step of a gradient that is only a rounding error"""
REPORT = "Please report it, unless an implementation of your own computes something else"


def equality(
    fdg: FDG,
    source: Tracer,
    deterministic: bool,
    observer: Observer,
    promise: Tried,
    other_bits: Callable[[], Difference | None],
    optimisations: Optimisations = ALL_OPTIMISATIONS,
) -> str:
    """Describes the run's relation to one undivided program: the claim, as far as it was tried.

    `other_bits` compares all bits with those of the undivided program, and returns the difference.
    """
    claimed = _claimed(fdg, source, deterministic, observer)
    is_in_parts = _is_cut(fdg) or not optimisations.whole_chunks
    if claimed != "bitwise" or not is_in_parts:
        return with_figures(claimed, promise)
    if not promise.wanted or (promise.divided and promise.verdict is None):
        why = promise.text if promise.divided else SWITCHED_OFF.text
        return f"rounding: bits were not compared (probe: {why})"
    observer.phase("comparing bits", 0, 1)
    found = other_bits()
    if found is None:
        return claimed
    if found.distance is None:
        return f"different: {found}"
    if found.distance > MAX_ROUNDING:
        return f"different: {found}, more than by rounding; the probe found nothing. {REPORT}"
    return with_figures(f"rounding: {found}", promise)


def elsewhere(said: str, fdg: FDG, processors: Sequence[tuple[str, str]]) -> str:
    """Weakens `said` if `processors` has other ones than those on which bits were compared."""
    here = {processor_of(device) for device in (*jax.devices(), *jax.devices("cpu"))}
    others = [(name, model) for name, model in processors if model not in here]
    if said != "bitwise" or not others or not _is_cut(fdg):
        return said
    name, model = others[0]
    return f"rounding: {name} runs on {model}, and bits were compared on another processor"


def after_restarts(said: str, restarts: int) -> str:
    """Weakens `said` if lost workers were replaced by others, which began new episodes."""
    if not restarts or said.startswith("different"):
        return said
    return f"different: lost workers were replaced, and began new episodes: {restarts}"


def _is_cut(fdg: FDG) -> bool:
    """True if the run's program is not the undivided one."""
    return len(fdg.fragments) > 1 or is_divided(fdg)


def with_figures(claimed: str, promise: Tried) -> str:
    """Adds the findings of the probe to a claim of equality but for rounding."""
    if not claimed.startswith("rounding") or not promise.divided:
        return claimed
    found = f"{promise.verdict or promise.text}"
    return f"{claimed} (probe: {found}{'' if promise.proven else f'; {NOT_PROVEN}'})"


def _claimed(fdg: FDG, source: Tracer, deterministic: bool, observer: Observer) -> str:
    """Derives the claim from the graph, and from trying its components one by one."""
    if fdg.server is not None:
        return "different: messages are handled as they come, and what is learnt depends on timing"
    if fdg.delays:
        lag = max(fdg.delays.values())
        return (
            f"different: workers act on parameters {lag} iteration{'s' * (lag > 1)} old, in every "
            "run alike"
        )
    host = source.environment
    is_spread = any(f.replicas > 1 and host_of(f) is not None for f in fdg.fragments.values())
    if isinstance(host, HostEnvironment) and not host.draws_apart and is_spread:
        return (
            f"different: {host.name} draws random numbers for all environments of a worker at once"
        )
    groups = [f.name for f in fdg.fragments.values() if f.group]
    if groups:
        return f"rounding: replicas of {', '.join(groups)} add up gradients in another order"
    partial = [t for t in fdg.transfers if any(p.collective in REDUCTIONS for p in t.parcels)]
    if partial:
        return f"rounding: {partial[0].source} reduces in parts"
    divided = [f.name for f in fdg.fragments.values() if f.over == "agents" and f.replicas > 1]
    if divided:
        return f"rounding: {', '.join(divided)} may round differently with fewer agents"
    whole = fdg.program.extent
    for fragment, extent in _batches(fdg):
        line = rounding_glue(fragment, whole, extent)
        if line is not None:
            return (
                f"rounding: what {line} computes outside components may round differently in "
                "batches of this size"
            )
    if len(fdg.fragments) > 1 and not are_loops_apart():
        return (
            "rounding: JAX had started before, and XLA computes small loops as a whole (call "
            "ff.train before any other JAX function for equal bits)"
        )
    if deterministic:
        return "bitwise"
    different: set[str] = set()
    for fragment, extent in _batches(fdg):
        observer.phase("self-test", 0, 1)
        large, small = (source.at(e).closed.jaxpr for e in (whole, extent))
        sizes = (whole.envs, extent.envs)
        owned = set(fragment.components)
        different |= set(components_with_other_bits(large, small, sizes, owned.__contains__))
        environments = {c for c in different & owned if c.startswith(f"{ENVIRONMENT}.")}
        others = components_with_other_bits(
            large, small, sizes, environments.__contains__, are_near_floats
        )
        if others:
            return (
                f"different: {', '.join(others)} gives other numbers in batches of this size, by "
                "more than rounding: does the environment look at its neighbours?"
            )
    if different:
        return (
            f"rounding: {', '.join(sorted(different))} may round differently in batches of this "
            "size (use --deterministic for equal bits)"
        )
    return "bitwise"


def _batches(fdg: FDG) -> list[tuple[Fragment, Extent]]:
    """The fragments that see only some environments at once, with the extents that they see."""
    sizes = [(f, size) for f in fdg.fragments.values() for size in (f.num_envs, f.first)]
    whole = fdg.program.num_envs
    return [(f, Extent(size)) for f, size in sizes if size is not None and size != whole]
