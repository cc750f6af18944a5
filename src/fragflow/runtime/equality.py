"""What a run says about its results: how they relate to those of one undivided program."""

from fragflow.api.host import HostEnvironment
from fragflow.graph.cut import Traced
from fragflow.graph.ir import FDG
from fragflow.runtime.observer import Observer
from fragflow.runtime.selftest import components_with_other_bits, rounding_glue


def equality(fdg: FDG, source: Traced, deterministic: bool, observer: Observer) -> str:
    """How the run relates to one undivided program."""
    if fdg.server is not None:
        return "different: messages are handled as they come, and what is learnt depends on timing"
    if fdg.delays:
        lag = max(fdg.delays.values())
        return (
            f"different: workers act on parameters {lag} iteration{'s' * (lag > 1)} old, in every "
            "run alike"
        )
    host = source.environment
    if isinstance(host, HostEnvironment) and not host.draws_apart:
        return (
            f"different: {host.name} draws random numbers for all environments of a worker at once"
        )
    groups = [f.name for f in fdg.fragments.values() if f.group]
    if groups:
        return f"rounding: replicas of {', '.join(groups)} add up gradients in another order"
    partial = [
        t for t in fdg.transfers if any(p.collective.startswith("reduce") for p in t.parcels)
    ]
    if partial:
        return f"rounding: {partial[0].source} reduces in parts"
    for fragment in fdg.fragments.values():
        line = rounding_glue(fragment, fdg.program.num_envs)
        if line is not None:
            return (
                f"rounding: what {line} computes outside components may round differently in "
                "batches of this size"
            )
    if deterministic:
        return "bitwise"
    different: set[str] = set()
    for fragment in fdg.fragments.values():
        if fragment.replicas > 1:
            observer.phase("self-test", 0, 1)
            whole, local = source.at(fdg.program.num_envs), source.at(fragment.num_envs)
            owned = set(fragment.components)
            different |= set(
                components_with_other_bits(
                    whole.closed.jaxpr,
                    local.closed.jaxpr,
                    (fdg.program.num_envs, fragment.num_envs),
                    owned.__contains__,
                )
            )
    if different:
        return (
            f"rounding: {', '.join(sorted(different))} may round differently in batches of this "
            "size (use --deterministic for equal bits)"
        )
    return "bitwise"
