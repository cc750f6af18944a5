"""Other interpreters: they find the modules that this one finds, and no others.

A plain `python -m` would look for modules in the current directory first, which may be a run
directory that a stranger has filled.
"""

import os
import sys


def words(module: str) -> list[str]:
    """How a command begins that runs a module of ours."""
    return [sys.executable, "-P", "-m", module]


def search_path() -> dict[str, str]:
    """The environment variable by which modules are found where they are found here."""
    places = (place or os.getcwd() for place in sys.path)
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
