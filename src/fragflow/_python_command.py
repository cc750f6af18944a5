"""Commands for other interpreters, which find the modules that this one finds and no others.

A plain `python -m` would look for modules in the current directory first, which may be a run
directory that a stranger has filled.
"""

import os
import sys


def words(module: str) -> list[str]:
    """The beginning of a command that runs one of fragflow's modules."""
    return [sys.executable, "-P", "-m", module]


def search_path() -> dict[str, str]:
    """The environment variable that makes another interpreter find modules where this one does."""
    places = (place or os.getcwd() for place in sys.path)
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
