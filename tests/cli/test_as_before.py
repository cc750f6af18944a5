"""`ff.train` leaves its user's process as it was, however it ends."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import jax
import pytest

from fragflow._jax_process import setting
from fragflow.tools.experiment.restore_settings import as_before

FOOTPRINTS = Path(__file__).with_name("footprints.py")
ENDINGS = {
    "no such environment": "ConfigError: unknown Gymnasium environment",
    "too many devices": "ConfigError: policy 'multi-learner' needs 40 devices",
    "it breaks": "EnvironmentFault: runtime.faulty:Faulty-v0: ",
    "Ctrl-C": "KeyboardInterrupt",
}
"""how ways of training end that do not end well"""
OURS = ("NPROC", "JAX_", "XLA_")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_nothing_is_left_in_the_process(runtime: str) -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    path = [str(FOOTPRINTS.parents[1]), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)  # for runtime.faulty
    done = subprocess.run(
        [sys.executable, FOOTPRINTS, runtime],
        env=variables | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # most of the time is XLA's
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) > 2
    for way, found in report.items():
        assert found["left"] == [], way
        assert found["files"] == [], way
        if way in ENDINGS:
            assert found["ended"].startswith(ENDINGS[way]), way
        else:
            assert len(found["ended"]) == 64, f"{way}: {found['ended']}"


def test_of_two_runs_at_a_time_the_last_one_puts_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    name = "jax_persistent_cache_min_compile_time_secs"
    before = setting(name)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(as_before())
        monkeypatch.setenv("NPROC", "16")
        jax.config.update(name, before + 1)
        second.enter_context(as_before())
        first.close()
        assert os.environ["NPROC"] == "16"
        assert setting(name) == before + 1
        second.close()
        assert "NPROC" not in os.environ
        assert setting(name) == before
