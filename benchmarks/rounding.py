"""What of a machine changes a result: one thing at a time, and whether parameters have other bits.

PPO on EnvPool's HalfCheetah-v4 for ten iterations, each time in a new process. Other instructions
stand for another CPU.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learning
import measure
from learning_tasks import CHEETAH

COMMAND = (
    f"{CHEETAH} --learning-rate 3e-4 --epochs 10 --minibatches 32 --entropy-coef 0 "
    "--total-steps 20480 --eval-episodes 0 --quiet"
)
NO_FMA = "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX512VL"


@dataclass(frozen=True)
class Change:
    """What a process has besides."""

    variables: dict[str, str] = field(default_factory=dict[str, str])
    flags: str = ""
    before: tuple[str, ...] = ()
    """a command that starts it"""


CHANGES = {
    "nothing": Change(),
    "XLA: at most AVX-512": Change({"XLA_FLAGS": "--xla_cpu_max_isa=AVX512"}),
    "XLA: at most AVX2": Change({"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}),
    "XLA: at most AVX": Change({"XLA_FLAGS": "--xla_cpu_max_isa=AVX"}),
    "XLA: at most SSE4.2": Change({"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}),
    "XLA: vectors of 512 bits": Change({"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"}),
    "XLA: one thread": Change({"NPROC": "1"}),
    "XLA: eight threads": Change({"NPROC": "8"}),
    "one core": Change(before=("taskset", "-c", "0")),
    "libc: no FMA, no AVX": Change({"GLIBC_TUNABLES": NO_FMA}),
    "numpy: no FMA, no AVX": Change({"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512_SKX"}),
    "EnvPool: one thread": Change(flags="--env-arg threads=1"),
    "EnvPool: eight threads": Change(flags="--env-arg threads=8"),
    "no cache on disk": Change({"JAX_ENABLE_COMPILATION_CACHE": "false"}),
    "advantages by XLA": Change(flags="--implementation discounted_sums=xla"),
    "one program (gpu-only)": Change(flags="--policy gpu-only"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    hashes = {name: parameters(change) for name, change in CHANGES.items()}
    same = {name: digest == hashes["nothing"] for name, digest in hashes.items()}
    rows = [(name, "the same" if same[name] else "others", hashes[name][:10]) for name in hashes]
    measure.print_table("changed by itself", ("", "bits", "SHA-256"), rows)
    about: dict[str, Any] = {"machine": learning.machine(), "versions": learning.versions()}
    measure.write(options.json, about | {"command": f"fragflow train {COMMAND}", "hashes": hashes})


def parameters(change: Change) -> str:
    """The hash of what is learnt."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = shlex.split(f"{COMMAND} {change.flags}")
        command = [*change.before, sys.executable, "-m", "fragflow.tools.cli.main", "train", *words]
        variables = os.environ | change.variables
        subprocess.run([*command, "--run-dir", str(run)], env=variables, check=True)
        return json.loads((run / "summary.json").read_text(encoding="utf-8"))["params_sha256"]


if __name__ == "__main__":
    main()
