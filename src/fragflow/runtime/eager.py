"""The eager runtime: the whole loop in Python, uncompiled and uncut, so that print and pdb work."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from fragflow.graph.tracing.trace import SOURCES, episode_labels, leaf_labels
from fragflow.runtime.host_environments.pool import HostPool
from fragflow.runtime.observer import Results
from fragflow.runtime.protocols import WorkerReport

Iteration = Callable[..., tuple[Any, Any]]
_Name = TypeVar("_Name")


class EagerRuntime:
    """Runs one iteration at a time with `jit` switched off."""

    def __init__(
        self,
        make_iteration: Callable[[Callable[[], None]], Iteration],
        init: Callable[[jax.Array, jax.Array], Any],
        make_sources: Callable[[int], Mapping[str, np.ndarray]],
        pool: HostPool | None = None,
    ):
        """Runs the first iteration, to see how many steps each environment makes in one.

        `make_iteration` is given a function to call at every step of the environments,
        `make_sources` that number of steps: 0 for the first iteration, in which nothing depends on
        the length of training. `pool` holds environments on the host; it is closed here.
        """
        self._pool = pool
        self._iteration = make_iteration(self._count_step)
        self._steps = 0
        self._sources = make_sources(0)
        with jax.disable_jit():
            run_key, env_ids = (jax.numpy.asarray(self._sources[k]) for k in ("run_key", "env_ids"))
            self.tree = init(run_key, env_ids)
            """the algorithm's state, as it is now"""
        self._first: Results | None = self._run_one(0)
        self.env_steps = self._steps
        """of each environment, per iteration"""
        self._sources = make_sources(self.env_steps)

    def run(self, start: int, count: int) -> list[Results]:
        """Runs `count` iterations; returns the results of each."""
        rows = []
        for index in range(start, start + count):
            first, self._first = self._first, None
            rows.append(first or self._run_one(index))
        return rows

    def settle(self, made: int) -> list[Results]:
        """Returns no results: no iteration is under way after `run`."""
        del made
        return []

    def state(self) -> dict[str, Any]:
        return dict(zip(leaf_labels(self.tree), jax.tree.leaves(self.tree), strict=True))

    def report(self) -> WorkerReport:
        return WorkerReport()

    def close(self) -> None:
        """Closes the environments on the host."""
        if self._pool is not None:
            self._pool.close()

    def _count_step(self) -> None:
        self._steps += 1

    def _run_one(self, index: int) -> Results:
        args = [jax.numpy.asarray(self._sources[name]) for name in SOURCES]
        with jax.disable_jit():
            self.tree, outputs = self._iteration(self.tree, jax.numpy.int32(index), *args)
        metrics, episodes = outputs
        return Results(
            metrics=_by_name(leaf_labels(metrics), metrics),
            episodes=_by_name(episode_labels(episodes), episodes),
        )


def _by_name(names: Iterable[_Name], tree: Any) -> dict[_Name, np.ndarray]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return dict(zip(names, leaves, strict=True))
