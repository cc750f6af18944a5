"""A kernel in C++ that a run names is called by the programs that its workers compile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fragflow.ops.kernels import native
from remote.training import COARSE

pytestmark = pytest.mark.skipif(native.absent() is not None, reason=f"cpp: {native.absent()}")

SLOW = pytest.mark.slow
CALL = 'custom_call_target="fragflow_discounted_sums"'


@pytest.mark.parametrize(
    "runtime", [pytest.param("local", marks=SLOW), "processes", pytest.param("ray", marks=SLOW)]
)
def test_what_xla_dumps_has_the_call(runtime: str, tmp_path: Path) -> None:
    if runtime == "ray":
        pytest.importorskip("ray", reason="Ray is an extra")
    words = ["train", "ppo", "--env", "CartPole-v1", "--policy", COARSE, "--workers", "2"]
    words += ["--num-envs", "4", "--total-steps", "512", "--hidden", "8", "--eval-episodes", "0"]
    words += ["--no-probe", "--quiet", "--runtime", runtime, "--run-dir", "run"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "JAX_", "NPROC"))}
    dumped = tmp_path / "dump"
    done = subprocess.run(
        [sys.executable, "-m", "fragflow.tools.cli.main", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        env=kept
        | {
            # Processes number their programs alike.
            "XLA_FLAGS": f"--xla_dump_to={dumped} --xla_dump_hlo_as_text "
            "--xla_dump_include_timestamp",
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # what is not compiled is not dumped
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of the time is XLA's
        },
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["implementations"] == {"discounted_sums": "cpp"}
    calls = [p for p in dumped.glob("*after_optimizations.txt") if CALL in p.read_text()]
    assert calls, sorted(p.name for p in dumped.iterdir())
