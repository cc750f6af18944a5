"""Runs `ff.train` in a process of its own in several ways, and says what each has left behind."""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium  # noqa: F401 what it sets when it is imported stays
import jax

import fragflow as ff
from fragflow.errors import FragflowError

TINY = {
    "num_envs": 4,
    "total_steps": 64,
    "hyperparameters": {"rollout_length": 4, "epochs": 1, "minibatches": 1},
    "eval_episodes": 2,
    "quiet": True,
}
BELIEVED = {"probe": False}
"""the first way is probed before it runs, which is enough"""
FIXED = "jax_num_cpu_devices"
"""the one setting that cannot be put back"""


def interrupt() -> bool:
    """As Ctrl-C would, between two iterations."""
    signal.raise_signal(signal.SIGINT)
    return False


def ways(runtime: str) -> dict[str, dict[str, Any]]:
    """What to train, by name; the first of them starts JAX."""
    on_threads = {
        "environments on the host": {"env": "gymnasium:CartPole-v1"},
        "asynchronous": {"policy": "single-learner-coarse", "workers": 2, "sync": "async"}
        | BELIEVED,
        "no such environment": {"env": "gymnasium:No-such-v0"},
        "too many devices": {"policy": "multi-learner", "workers": 40, "num_envs": 40},
    }
    return {
        "several devices": {"policy": "multi-learner", "workers": 2},
        **(on_threads if runtime == "local" else {}),
        "it breaks": {
            "env": "gymnasium:runtime.faulty:Faulty-v0",
            "env_args": {"fault": "raise", "every": True, "at": 10, "vectorization": "sync"},
        },
        "Ctrl-C": {"stop": interrupt, "run_dir": tempfile.mkdtemp()},
    }


def state() -> dict[str, Any]:
    """Everything of this process that a library could change under its user's hands."""
    return {
        "variables": dict(os.environ),
        "settings of JAX": {k: str(v) for k, v in jax.config.values.items() if k != FIXED},
        "signals": {str(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
        "woken by signals": _wakeup(),
        "threads": {t.name: str(t.daemon) for t in threading.enumerate()},
        "path": {p: "" for p in sys.path},
        "hook": {"except": str(sys.excepthook), "thread": str(threading.excepthook)},
        "warnings": {str(f): "" for f in warnings.filters},
        "handlers": {str(h): "" for h in logging.getLogger().handlers},
        "levels": {"root": str(logging.getLogger().level)},
        "children": {child: "" for child in children()},
        "directory": {"": os.getcwd()},
        "stand-ins": {k: str(m) for k, m in list(sys.modules.items()) if _is_ours(k, m)},
        "mask": {"": str(os.umask(os.umask(0o022)))},
    }


def _wakeup() -> dict[str, str]:
    now = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(now)
    return {"": str(now)}


def _is_ours(name: str, module: Any) -> bool:
    """Whether a module that is not fragflow's own is of a class that fragflow has made."""
    return type(module).__module__.startswith("fragflow") and not name.startswith("fragflow")


def children() -> list[str]:
    """Processes that this one has started, and that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid():
            found.append(entry.parent.name)
    return found


def open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry).split(":")[0])
        except OSError:
            continue
    return sorted(found)


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{kind}: {name}: {before[kind].get(name)} became {after[kind].get(name)}"
        for kind in before
        for name in sorted({*before[kind], *after[kind]})
        if before[kind].get(name) != after[kind].get(name)
    ]


def settled(measure: Callable[[], list[str]]) -> list[str]:
    """What is left after a moment: threads and processes need one to go."""
    deadline = time.monotonic() + 5
    while (left := measure()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def main(runtime: str) -> None:
    # Whoever starts tests in the background has this signal ignored, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report: dict[str, Any] = {}
    for name, changes in ways(runtime).items():
        before, files = state(), open_files()
        try:
            settings: dict[str, Any] = {"env": "CartPole-v1", "runtime": runtime}
            result = ff.train("ppo", **{**settings, **TINY, **changes})
            ended = result.params_sha256
        except (FragflowError, KeyboardInterrupt) as error:
            ended = f"{type(error).__name__}: {error}"
        left = settled(lambda before=before: difference(before, state()))
        more = [f for f in open_files() if open_files().count(f) > files.count(f)]
        report[name] = {"ended": ended, "left": left, "files": sorted(set(more))}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
