"""Tries fragflow's promise before a run: that replicas compute what one undivided program does.

Results are remembered by the program, its cut, the versions, and the code of the probe.
"""

import hashlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fragflow import _all_reduce
from fragflow._jax import calls_back
from fragflow.api.environment import Environment
from fragflow.api.host import Host, HostEnvironment
from fragflow.errors import ReplicaError
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import FDG
from fragflow.graph.probe import (
    double_precision,
    first_difference,
    play_graph,
    relation_to_whole,
    row_independence,
    stand_in_environment,
)
from fragflow.graph.probe import probe as probe_module
from fragflow.graph.probe.graph_hash import fingerprint, of_programs
from fragflow.graph.probe.probe import Verdict, is_divided, is_large, of_environments, probe
from fragflow.graph.tracing.trace import Tracer
from fragflow.runtime.observer import Observer
from fragflow.runtime.promises.probe_cache import recall, remember
from fragflow.runtime.promises.selftest import operation_that_differs

PACKAGES = ("fragflow", "jax", "jaxlib", "numpy")
HOW = (
    _all_reduce,
    first_difference,
    double_precision,
    row_independence,
    play_graph,
    probe_module,
    relation_to_whole,
    stand_in_environment,
)
"""modules of the probe: results of other versions of them do not count"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of trying a graph."""

    text: str
    """for people: the result, or the reason why nothing was tried"""
    verdict: Verdict | None = None
    """None if nothing was tried"""
    divided: bool = True
    """False if nothing is replicated, so that nothing is to be tried"""
    wanted: bool = True
    """False if the probe is switched off"""
    proven: bool = True
    """True if the replica check has read the very programs that were tried"""
    seconds: float = 0.0


NOT_PROVEN = "tried, not proven"
SWITCHED_OFF_WORDS = "is switched off (--no-probe)"
NOT_DIVIDED = Tried(text="not divided", divided=False)
SWITCHED_OFF = Tried(text="switched off", wanted=False)


def tried(
    graph: Callable[[], tuple[FDG, Tracer]],
    first: Sequence[Any],
    observer: Observer,
    *,
    is_deterministic: bool,
    is_wanted: bool,
) -> Tried:
    """Tries a graph, unless it was tried before; ReplicaError if it breaks the promise.

    `graph` returns the lockstep graph of the run, and its source; `first` is its first state.
    """
    fdg, source = graph()
    _try_turns(fdg)
    if not is_divided(fdg):
        return replace(NOT_DIVIDED, wanted=is_wanted)
    if not is_wanted:
        refuse_unproven(fdg, SWITCHED_OFF_WORDS)
        return SWITCHED_OFF
    began = time.perf_counter()
    key = key_of(fdg, "probe")
    known = _verdict(recall(key)) if key is not None else None
    if known is not None:
        text = f"{known}, remembered{_played(source)}{_unproven(fdg)}"
        return Tried(text=text, verdict=known, proven=not fdg.unproven)
    observer.phase("probing", 0, 1)
    untried = _try_environment(source)
    try:
        verdict = probe(fdg, source, first=first, open_all=is_deterministic)
    except ReplicaError:
        raise
    except Exception as error:  # the probe's own mistakes need not end a run
        words = _words(error)
        refuse_unproven(fdg, f"fails ({words})")
        return Tried(text=f"could not be tried ({words})", seconds=time.perf_counter() - began)
    seconds = time.perf_counter() - began
    if key is not None and not untried:
        facts = {"states": verdict.states, "leaves": verdict.leaves, "worst": verdict.worst}
        remember(key, facts)
    text = f"{verdict}, {seconds:.1f} s{_played(source, untried)}{_unproven(fdg)}"
    return Tried(text=text, verdict=verdict, seconds=seconds, proven=not fdg.unproven)


def _try_environment(source: Tracer) -> str:
    """Tries that environments do not look at their neighbours, where the probe cannot see it.

    Results are remembered by the environment's programs. Returns the reason if it cannot be tried.
    """
    environment = _tried_apart(source)
    if environment is None:
        return ""
    try:
        programs = row_independence.batches(environment)
        digest = of_programs(p for batch in programs for p in (batch.reset, batch.step))
        key = None if digest is None else _key(digest, "environment")
        if key is not None and (recall(key) or {}).get("apart") is True:
            return ""
        row_independence.try_apart(environment, programs)
    except ReplicaError:
        raise
    except Exception as error:  # as below
        return _words(error)
    if key is not None:
        remember(key, {"apart": True})
    return ""


def _tried_apart(source: Tracer) -> Environment | None:
    """The environment, if the probe cannot see into it: a stand-in plays it, or it calls Python."""
    environment = source.environment
    if isinstance(environment, Host | HostEnvironment):
        return None
    is_hidden = is_large(source) or any(map(calls_back, of_environments(source)))
    return environment if is_hidden else None


def _played(source: Tracer, untried: str = "") -> str:
    """Describes how environments were played and tried, if apart from the probe."""
    if _tried_apart(source) is None:
        return ""
    who = "by a stand-in, and " if is_large(source) else ""
    result = f"could not be tried apart ({untried})" if untried else "tried apart"
    return f"; environments {who}{result}"


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _unproven(fdg: FDG) -> str:
    if not fdg.unproven:
        return ""
    return f"; {NOT_PROVEN}: one {_holding(fdg)} each in {', '.join(fdg.unproven)}"


def _try_turns(fdg: FDG) -> None:
    """Tries work on one environment at a time, which the replica check has not compared."""
    for fragment in fdg.fragments.values():
        line = operation_that_differs(fragment, Extent(1)) if fragment.first == 1 else None
        if line is not None:
            raise ReplicaError(
                f"one environment at a time, fragment {fragment.name!r} computes something else "
                f"than for all of them together (at {line}): set first to at least 2, or make it "
                "treat each environment by itself"
            )


def refuse_unproven(fdg: FDG, why: str) -> None:
    """Refuses replicas of one environment each, which can only be tried, where they are not."""
    if fdg.unproven:
        raise ReplicaError(
            f"replicas of {', '.join(fdg.unproven)} hold one {_holding(fdg)} each, for which JAX "
            "makes another program than for several: that it computes what the undivided one does "
            f"can only be tried, and the probe {why}. Give every replica at least two of them"
        )


def _holding(fdg: FDG) -> str:
    return "agent" if fdg.fragments[fdg.unproven[0]].over == "agents" else "environment"


def key_of(fdg: FDG, *what: str) -> str | None:
    """The key under which results of `fdg` are remembered; None if they cannot be."""
    graph = fingerprint(fdg)
    return None if graph is None else _key(graph, *what)


def _key(*what: str) -> str:
    words = [*what, platform.python_version(), *_versions(), _how()]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _versions() -> list[str]:
    return [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]


@cache
def _how() -> str:
    files = [Path(module.__file__ or "").read_bytes() for module in HOW]
    return hashlib.sha256(b"".join(files)).hexdigest()


def _verdict(known: Any) -> Verdict | None:
    """The remembered verdict, if it is a valid one."""
    if known is None:
        return None
    states, leaves, worst = (known.get(name) for name in ("states", "leaves", "worst"))
    is_whole = isinstance(states, int) and isinstance(leaves, int) and isinstance(worst, float)
    if not is_whole or not 0 <= worst <= relation_to_whole.TOLERANCE:
        return None
    return Verdict(states=states, leaves=leaves, worst=worst)
