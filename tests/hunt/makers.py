"""For each primitive that can be drawn, functions whose call makes it."""

import functools

import numpy as np

from hunt.catalogue import functions
from hunt.draw import Draw
from hunt.judge import double_precision, primitives_of

TRIES = 3
MOST = 8


@functools.cache
def makers() -> dict[str, list[str]]:
    """Found by drawing each function a few times; at most so many functions for a primitive."""
    found: dict[str, list[str]] = {}
    with double_precision():
        for name, arguments in sorted(functions().items()):
            for seed in range(TRIES):
                draw = Draw(np.random.default_rng([len(name), seed]))
                if not draw.attempt(name, arguments):
                    continue
                for primitive in primitives_of(draw.program()):
                    names = found.setdefault(primitive, [])
                    if name not in names and len(names) < MOST:
                        names.append(name)
    return found
