"""The eager runtime: the whole loop in Python, uncompiled and uncut, so that print and pdb work."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fragflow.graph.trace import SOURCES


class EagerRuntime:
    """Runs one iteration at a time with `jit` switched off."""

    num_programs = 0
    num_messages = 0
    bytes_moved = 0

    def __init__(
        self,
        iteration: Callable[..., tuple[Any, Any]],
        state: Any,
        sources: Mapping[str, np.ndarray],
        labels: tuple[str, ...],
    ):
        self._iteration = iteration
        self._state = state
        self._sources = [jax.numpy.asarray(sources[name]) for name in SOURCES]
        self._labels = labels

    def run(self, start: int, count: int) -> list[dict[str, np.ndarray]]:
        """Runs `count` iterations; for each, every metric's label and value."""
        rows = []
        with jax.disable_jit():
            for index in range(start, start + count):
                self._state, outputs = self._iteration(
                    self._state, jax.numpy.int32(index), *self._sources
                )
                leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
                rows.append(dict(zip(self._labels, leaves, strict=True)))
        return rows

    def final_state(self) -> Any:
        return self._state

    def close(self) -> None:
        """Nothing is left running."""
