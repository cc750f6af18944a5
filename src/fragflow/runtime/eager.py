"""The eager runtime: the whole loop in Python, uncompiled and uncut, so that print and pdb work."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np

from fragflow.graph.tracing.trace import SOURCES, episode_labels, leaf_labels
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.host_environments.pool import HostPool
from fragflow.runtime.observer import Devices, Results
from fragflow.runtime.programs.implementations import Picks

Iteration = Callable[..., tuple[Any, Any]]
_Name = TypeVar("_Name")


class EagerRuntime:
    """Runs one iteration at a time with `jit` switched off."""

    num_programs = 0
    picks: Picks = MappingProxyType({})
    sent = Sent()
    devices: Devices = MappingProxyType({})

    def __init__(
        self,
        make_iteration: Callable[[Callable[[], None]], Iteration],
        init: Callable[[jax.Array, jax.Array], Any],
        sources: Mapping[str, np.ndarray],
        pool: HostPool | None = None,
    ):
        """`make_iteration` is given a function to call at every step of the environments.

        `pool` holds environments on the host; it is closed here.
        """
        self._pool = pool
        self.sources = sources
        """set again once the length of training is known"""
        self._iteration = make_iteration(self._count_step)
        self._steps = 0
        self._first: Results | None = None
        with jax.disable_jit():
            run_key, env_ids = (jax.numpy.asarray(sources[k]) for k in ("run_key", "env_ids"))
            self._state = init(run_key, env_ids)

    def env_steps(self) -> int:
        """Runs the first iteration and returns how many steps each environment made in it.

        Nothing in it depends on the length of training: its progress is zero in any case.
        """
        self._first = self._run_one(0)
        return self._steps

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

    def final_state(self) -> Any:
        return self._state

    def close(self) -> None:
        """Closes the environments on the host."""
        if self._pool is not None:
            self._pool.close()

    def _count_step(self) -> None:
        self._steps += 1

    def _run_one(self, index: int) -> Results:
        args = [jax.numpy.asarray(self.sources[name]) for name in SOURCES]
        with jax.disable_jit():
            self._state, outputs = self._iteration(self._state, jax.numpy.int32(index), *args)
        metrics, episodes = outputs
        return Results(
            metrics=_by_name(leaf_labels(metrics), metrics),
            episodes=_by_name(episode_labels(episodes), episodes),
        )


def _by_name(names: Iterable[_Name], tree: Any) -> dict[_Name, np.ndarray]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return dict(zip(names, leaves, strict=True))
