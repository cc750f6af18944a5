"""Compares a run's bits with those of the undivided program: runs both, as they are."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax_process import setting
from fragflow.api.host import Host, HostEnvironment
from fragflow.graph.analyses.replaceable import host_of
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.optimisations import ALL_OPTIMISATIONS, Optimisations
from fragflow.graph.probe.double_precision import compiled, in_double
from fragflow.graph.probe.relation_to_whole import distance
from fragflow.graph.probe.stand_in_environment import host_answer
from fragflow.graph.tracing.trace import Tracer, components_in
from fragflow.policies.policy import Deployment, Place, Policy
from fragflow.runtime.drivers.thread_workers import ThreadWorkers
from fragflow.runtime.lockstep import LockstepRuntime
from fragflow.runtime.planning.plan import make_plan
from fragflow.runtime.programs.devices import accelerator, processor_of, xla_flags
from fragflow.runtime.programs.prepare_workers import Assembly, devices_for
from fragflow.runtime.promises.probe_cache import recall, remember
from fragflow.runtime.promises.run_probe import key_of


@dataclass(frozen=True, slots=True)
class Difference:
    """The first leaf that differs, and the largest difference of any leaf."""

    label: str
    distance: float | None
    """of floats, relative to the largest number of a leaf; None if no float differs"""

    def __str__(self) -> str:
        if self.distance is None:
            return f"{self.label} differs from the undivided program's, and no float does"
        return (
            f"{self.label} has other digits than in the undivided program "
            f"(differences up to {self.distance:.0e})"
        )


def other_bits(
    fdg: FDG,
    source: Tracer,
    state: Mapping[str, Any],
    sources: Mapping[str, np.ndarray],
    *,
    is_deterministic: bool,
    implementations: Mapping[str, str] | None,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
) -> Difference | None:
    """Finds the first leaf of state or metrics whose bits are not those of the undivided program.

    Programs, sizes and precision are those of the run; the undivided program is optimised. A
    stand-in plays environments on the host, all together: the self-test compares rollouts out of
    order, component by component.
    """
    iterations = _iterations(int(sources["total_iterations"]))
    how = f"{is_deterministic} {sorted((implementations or {}).items())} {iterations}"
    # Bits that are the same for some numbers may be others for others.
    how += f" {optimisations} {_digest([*state.values(), sources['run_key']])}"
    key = key_of(fdg, "bits", how, *bits_depend_on(fdg))
    if key is not None and (recall(key) or {}).get("same") is True:
        return None
    parts = replace(
        fdg, fragments={name: replace(f, first=None) for name, f in fdg.fragments.items()}
    )
    whole = _undivided(source, is_deterministic)
    how_run = (state, sources, is_deterministic, implementations)
    with _running(parts, *how_run, optimisations) as a, _running(whole, *how_run) as b:
        for iteration in iterations:
            found = _difference(a, b, fdg, iteration)
            if found is not None:
                return found
    if key is not None:
        remember(key, {"same": True})
    return None


def _digest(arrays: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for array in map(np.asarray, arrays):
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _iterations(total: int) -> tuple[int, ...]:
    """The first ones, and the last: by then, all that waits for a number of steps has happened."""
    return (0, 1, max(2, total - 1))


def _undivided(source: Tracer, is_deterministic: bool) -> FDG:
    """Makes the graph of one fragment that holds every component."""
    everything = tuple(sorted(components_in(source.at(source.extent))))
    on_host = isinstance(source.environment, Host | HostEnvironment)
    device = "cpu" if on_host else "accelerator"
    place = Place(name="undivided", components=everything, device=device)
    policy = Policy(name="undivided", places=(place,))
    deployment = Deployment(accelerator=accelerator())
    return cut(source, policy, deployment, deterministic=is_deterministic)


@contextlib.contextmanager
def _running(
    fdg: FDG,
    state: Mapping[str, Any],
    sources: Mapping[str, np.ndarray],
    is_deterministic: bool,
    implementations: Mapping[str, str] | None,
    optimisations: Optimisations = ALL_OPTIMISATIONS,
) -> Iterator[LockstepRuntime]:
    workers = ThreadWorkers(fdg, pools=_stand_ins(fdg))
    assembly = Assembly(
        fdg,
        make_plan(fdg, optimisations),
        state,
        sources,
        row_kinds=fdg.row_kinds if is_deterministic else None,
        implementations=implementations,
    )
    workers.start(assembly)
    runtime = LockstepRuntime(fdg, workers)
    try:
        yield runtime
    finally:
        runtime.close()


def _difference(
    a: LockstepRuntime, b: LockstepRuntime, fdg: FDG, iteration: int
) -> Difference | None:
    (made,), (others,) = a.run(iteration, 1), b.run(iteration, 1)
    state, other = a.state(), b.state()
    labels = fdg.program.labels
    pairs = [(f"the state's {labels[name]}", x, other[name]) for name, x in state.items()]
    pairs += [(f"the metric {name}", x, others.metrics[name]) for name, x in made.metrics.items()]
    pairs += [(f"the metric {stat}", x, others.episodes[stat]) for stat, x in made.episodes.items()]
    arrays = [(label, np.asarray(x), np.asarray(y)) for label, x, y in pairs]
    different = [(label, x, y) for label, x, y in arrays if x.tobytes() != y.tobytes()]
    if not different:
        return None
    # Integers are not measured: the last digit of a float can change an action.
    floats = [
        distance(_wide(y), _wide(x))
        for _, x, y in different
        if jnp.issubdtype(x.dtype, jnp.inexact)
    ]
    return Difference(different[0][0], max(floats, default=None))


def _wide(array: np.ndarray) -> np.ndarray:
    """Converts an array to a type of NumPy's own, which bfloat16 is not."""
    is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
    return array.astype(np.complex128 if is_complex else np.float64)


def _stand_ins(fdg: FDG) -> dict[str, list["_StandIn"]]:
    """Makes stand-ins for the environments on the host, by fragment and replica."""
    found: dict[str, list[_StandIn]] = {}
    for name, fragment in fdg.fragments.items():
        host = host_of(fragment)
        if host is not None:
            count = 1 if fragment.group else fragment.replicas
            ids = np.split(np.arange(fdg.program.num_envs, dtype=np.int32), count)
            found[name] = [_StandIn(host, some) for some in ids]
    return found


class _StandIn:
    """Stands in for a pool of environments."""

    def __init__(self, host: Host, ids: np.ndarray):
        self.ids, self._host = ids, host
        space = host.environment.observation

        def answer(method: str, *args: Any) -> list[Any]:
            types = [
                jax.ShapeDtypeStruct((len(ids), *t.shape), t.dtype)
                for t in host.result_types(method)
            ]
            drawn = host_answer(method, args, ids, types, space)
            return [x.astype(t.dtype) for x, t in zip(drawn, types, strict=True)]

        self._answers = {
            method: compiled(lambda *args, method=method: answer(method, *args))
            for method in ("reset", "step")
        }

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]:
        with in_double():
            return [np.asarray(x) for x in self._answers[method](*map(np.asarray, args))]

    def stuck(self, seconds: float) -> None:
        del seconds

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        yield

    def close(self) -> None: ...


def bits_depend_on(fdg: FDG) -> list[str]:
    """Processors and compiler settings, on which bits depend as well as on the programs."""
    whole = processor_of(jax.devices()[0])
    parts = [
        f"{name} {sorted(set(map(processor_of, devices_for(fragment))))}"
        for name, fragment in sorted(fdg.fragments.items())
    ]
    how = f"{xla_flags()} {setting('jax_disable_most_optimizations')}"
    return [whole, *parts, how]
