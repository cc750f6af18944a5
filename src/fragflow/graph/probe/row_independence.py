"""Tries whether an environment looks at its neighbours: the same rows, together and in parts.

A step that `Environments` vmaps is done for each environment, so nothing reads its inside, and the
probe lets a stand-in play large ones. A batching rule of the user's, a callback that is given
all rows or a foreign function may look at other rows all the same. So the real environment is tried
by itself, once: a few rows at once, and some of them among other neighbours, in double precision.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import ClosedJaxpr, is_key, loops, raw_key
from fragflow._jax_typed import eval_shape, make_jaxpr, wrap_key_data
from fragflow.api.environment import Environment
from fragflow.api.environment_batch import Environments
from fragflow.api.spaces import Box, Discrete, Space, space_types
from fragflow.error_owner import defined_at
from fragflow.errors import ReplicaError
from fragflow.graph.probe.double_precision import DoubleContext, compiled, evaluate, in_double, wide
from fragflow.graph.probe.probe import jittered
from fragflow.graph.probe.relation_to_whole import TOLERANCE, distance
from fragflow.graph.tracing.trace import leaf_labels

ROWS = 6
PARTS = ((0, 2, 4), (5, 3, 1))
"""rows that are together in a part: each has other neighbours than in the whole"""
STEPS = 4
"""steps from the first state, with actions drawn at random"""
MOVED = (0.1, 1.0)
"""amounts by which the numbers of further states are moved, relative to themselves"""


class Batch(NamedTuple):
    """The programs of some rows of an environment."""

    reset: ClosedJaxpr
    """(raw key, indices) -> state, timestep"""
    step: ClosedJaxpr
    """(state, action) -> state, timestep"""
    labels: Mapping[str, tuple[str, ...]]
    """names of the leaves that each returns"""


def batches(environment: Environment) -> tuple[Batch, Batch]:
    """The programs to try: for all rows together, and for a part of them."""
    return _batch(environment, ROWS), _batch(environment, len(PARTS[0]))


def _batch(environment: Environment, rows: int) -> Batch:
    def reset(key: jax.Array, ids: jax.Array) -> Any:
        return Environments(environment, ids, ROWS).reset(wrap_key_data(key))

    def step(state: Any, action: jax.Array) -> Any:
        return Environments(environment, jnp.arange(rows), ROWS).step(state, action)

    key = jax.ShapeDtypeStruct((2,), np.uint32)
    ids = jax.ShapeDtypeStruct((rows,), np.int32)
    first, begun = make_jaxpr(reset, return_shape=True)(key, ids)
    one = space_types(environment.action)
    action = jax.ShapeDtypeStruct((rows, *_agents(environment), *one.shape), one.dtype)
    further, made = make_jaxpr(step, return_shape=True)(begun[0], action)
    return Batch(first, further, {"reset": _labels(begun), "step": _labels(made)})


def _labels(answer: Any) -> tuple[str, ...]:
    return leaf_labels(dict(zip(("state", "timestep"), answer, strict=True)))


def _agents(environment: Environment) -> tuple[int, ...]:
    agents = getattr(environment, "num_agents", None)
    return () if agents is None else (agents,)


def try_apart(environment: Environment, tried: tuple[Batch, Batch]) -> None:
    """Raises a ReplicaError if a row's answers depend on the rows beside it."""
    with in_double():
        resets, steps = _compiled([b.reset for b in tried]), _compiled([b.step for b in tried])
        key = np.asarray(jax.random.key_data(jax.random.key(0)))
        ids = np.arange(ROWS, dtype=np.int32)
        answers = resets[0](key, ids)
        for part in PARTS:
            _compare(environment, "reset", tried[0], answers, resets[1](key, ids[[*part]]), part)
        count = len(tried[0].step.jaxpr.invars) - 1
        rng = np.random.default_rng(0)
        might_not_end = any(loops(eqn) for eqn in tried[0].step.jaxpr.eqns)
        for scale in (*[0.0] * STEPS, *(() if might_not_end else MOVED)):
            state = [_moved(x, rng, scale) for x in answers[:count]]
            action = _actions(environment, rng)
            answers = steps[0](*state, action)
            for part in PARTS:
                rows = [x[np.asarray(part)] for x in (*state, action)]
                _compare(environment, "step", tried[0], answers, steps[1](*rows), part)


def _compiled(programs: Sequence[ClosedJaxpr]) -> list[Callable[..., list[Any]]]:
    """Functions in double precision, compiled side by side."""

    def finish(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
        types = [v.aval for v in closed.jaxpr.invars]
        with in_double():  # it holds for one thread only
            wider = [eval_shape(wide, jax.ShapeDtypeStruct(t.shape, t.dtype)) for t in types]
            function = compiled(lambda *args: evaluate(closed, args, DoubleContext()))
            made = function.lower(*wider).compile()
        return lambda *args: made(*(wide(x) for x in args))

    with ThreadPoolExecutor() as pool:
        return list(pool.map(finish, programs))


def _moved(x: Any, rng: np.random.Generator, scale: float) -> Any:
    if not scale or is_key(x) or x.dtype != jnp.float64:
        return x
    return jnp.asarray(jittered(np.asarray(x), rng, scale))


def _actions(environment: Environment, rng: np.random.Generator) -> Any:
    """A random action for every row, and every agent."""
    space: Space = environment.action
    shape = (ROWS, *_agents(environment), *space.shape)
    if isinstance(space, Box):
        low, high = (np.asarray(b, np.float64) for b in space.bounds)
        finite = np.isfinite(low) & np.isfinite(high)
        drawn = rng.uniform(np.where(finite, low, -1.7), np.where(finite, high, 1.7), shape)
    else:
        drawn = rng.integers(space.n if isinstance(space, Discrete) else space.counts, size=shape)
    return jnp.asarray(drawn.astype(space.dtype))


def _compare(
    environment: Environment,
    method: str,
    batch: Batch,
    whole: Sequence[Any],
    part: Sequence[Any],
    rows: Sequence[int],
) -> None:
    for label, a, b in zip(batch.labels[method], whole, part, strict=True):
        there, here = _plain(a)[np.asarray(rows)], _plain(b)
        if distance(there, here) > TOLERANCE:
            raise ReplicaError(
                f"environment {environment.name!r} looks at its neighbours: the same environments "
                f"have another {label} after {method} where {len(rows)} are together than where "
                f"{ROWS} are. Each must answer by itself, from its own state, action and key: look "
                "for a custom_vmap whose rule mixes rows, or a callback that is given all of them"
                f"{defined_at(getattr(environment, method))}"
            )


def _plain(x: Any) -> np.ndarray:
    return np.asarray(raw_key(x) if is_key(x) else x)
