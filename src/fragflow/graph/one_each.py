"""Replicas that hold one environment: another program stands for theirs in the replica check.

JAX broadcasts an axis of length one where it would follow a longer one, so that the program for one
environment has other equations than that for two, which is compared with the whole. If they differ
by more than broadcasts and reshapes, it is refused; else it is tried by the probe.
"""

from collections.abc import Iterator
from itertools import zip_longest

from fragflow._jax import Eqn, Jaxpr, component_of, inner_jaxprs, source_line
from fragflow.errors import ReplicaError
from fragflow.graph.extent import Axis
from fragflow.graph.traced import Traced

WRITTEN_OTHERWISE = ("broadcast_in_dim", "reshape")
"""what JAX itself adds or leaves out for one row: its gradients and indices do"""


def check_stands_for(source: Traced, axis: Axis) -> None:
    """Refuses a program that is not the one it is compared by, broadcasts and reshapes apart."""
    runs, compared = (source.at(extent).closed.jaxpr for extent in (axis.replica, axis.extents[1]))
    line = ""
    for one, two in zip_longest(_equations(runs), _equations(compared)):
        found = one or two
        line = (source_line(found) if found is not None else "") or line
        names = ["nothing" if e is None else e.primitive.name for e in (one, two)]
        if names[0] != names[1]:
            what = "agent" if axis.over == "agents" else "environment"
            raise ReplicaError(
                f"with one {what} for each replica, the program is another one than with two (at "
                f"{line}: it is {names[0]} with one, {names[1]} with two), and only that with two "
                f"can be shown to compute what the undivided one does: give every replica two "
                f"{what}s, or write it so that it does not depend on their number"
            )


def _equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """All that is computed, in order; environments are not read."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in WRITTEN_OTHERWISE:
            continue
        yield eqn
        if not (component_of(eqn) or "").startswith("environment."):
            for inner in inner_jaxprs(eqn):
                yield from _equations(inner)
