"""The eager runtime: the whole loop in Python, uncompiled and uncut, so that print and pdb work."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fragflow.graph.tracing.trace import SOURCES, leaf_labels
from fragflow.runtime.drivers.traffic import Sent
from fragflow.runtime.hosts.pool import HostPool
from fragflow.runtime.observer import Devices
from fragflow.runtime.programs.implementations import Picks

Iteration = Callable[..., tuple[Any, Any]]


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
        """to be set anew when the length of training is known"""
        self._iteration = make_iteration(self._count_step)
        self._steps = 0
        self._first: dict[str, np.ndarray] | None = None
        with jax.disable_jit():
            run_key, env_ids = (jax.numpy.asarray(sources[k]) for k in ("run_key", "env_ids"))
            self._state = init(run_key, env_ids)

    def env_steps(self) -> int:
        """Runs the first iteration and says how many steps each environment made in it.

        Nothing in it depends on how long training will be: its progress is zero in any case.
        """
        self._first = self._run_one(0)
        return self._steps

    def run(self, start: int, count: int) -> list[dict[str, np.ndarray]]:
        """Runs `count` iterations; for each, every metric's label and value."""
        rows = []
        for index in range(start, start + count):
            first, self._first = self._first, None
            rows.append(first or self._run_one(index))
        return rows

    def settle(self, made: int) -> list[dict[str, np.ndarray]]:
        """Nothing goes on after an iteration."""
        del made
        return []

    def final_state(self) -> Any:
        return self._state

    def close(self) -> None:
        """Nothing is left running."""
        if self._pool is not None:
            self._pool.close()

    def _count_step(self) -> None:
        self._steps += 1

    def _run_one(self, index: int) -> dict[str, np.ndarray]:
        args = [jax.numpy.asarray(self.sources[name]) for name in SOURCES]
        with jax.disable_jit():
            self._state, outputs = self._iteration(self._state, jax.numpy.int32(index), *args)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
        return dict(zip(leaf_labels(outputs), leaves, strict=True))
