"""Virtual environments of their own, and what pip puts into them."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements-base.lock"


def run(
    *words: str | Path,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, who knows nothing of this checkout."""
    ours = ("PYTHONPATH", "JAX_", "XLA_", "NPROC", "CXX")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=seconds,
    )


class Fresh:
    """An empty virtual environment, without pip: that of the tests installs into it."""

    def __init__(self, path: Path):
        done = run(sys.executable, "-m", "venv", "--without-pip", path)
        assert done.returncode == 0, done.stderr
        self.bin = path / "bin"

    def pip(
        self, *words: str | Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        return run(*pip, "--python", self.bin / "python", *words, variables=variables)

    def install(
        self, *words: str | Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = self.pip("install", *words, variables=variables)
        assert done.returncode == 0, done.stderr
        return done

    def python(self, code: str) -> str:
        done = run(self.bin / "python", "-c", code, cwd=self.bin)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def site_packages(self) -> Path:
        return Path(self.python("import sysconfig; print(sysconfig.get_path('purelib'))"))


def constraints(path: Path) -> Path:
    """The lock's versions, without hashes: pip takes what is needed, of these."""
    lines = LOCK.read_text().splitlines()
    pins = [line.rstrip("\\ ") for line in lines if re.match(r"[a-z0-9].*==", line)]
    assert len(pins) > 10, f"{LOCK.name} is not what it was"
    path.write_text("\n".join(pins) + "\n")
    return path


def wheel(directory: Path) -> Path:
    """Builds this checkout's wheel with what is installed here."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    done = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", directory, ROOT)
    assert done.returncode == 0, done.stderr
    (made,) = directory.glob("fragflow-*.whl")
    return made
