"""Removes a directory when its last user has ended, however it ended.

Runs as a separate process, because a killed process cannot clean up after itself:
`python cleanup.py DIRECTORY PROCESS`.
Users register in the directory. Imports nothing of fragflow, so that it stays small.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PERIOD_SECONDS = 0.5
SUFFIX = ".user"


def employ(directory: Path) -> None:
    """Registers this process as a user of `directory`, which the last user's end removes."""
    process = str(os.getpid())
    (directory / f"{process}{SUFFIX}").touch(mode=0o600)
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(directory), process],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={},
        check=True,
    )


def main(directory: Path, process: int) -> None:
    """Waits for the end of one user; if no other is alive, removes the directory."""
    while directory.exists() and is_alive(process):
        time.sleep(PERIOD_SECONDS)
    others = [int(path.stem) for path in directory.glob(f"*{SUFFIX}")]
    if not any(is_alive(other) for other in others if other != process):
        shutil.rmtree(directory, ignore_errors=True)


def is_alive(process: int) -> bool:
    """True if a process runs or is stopped; on Linux not if it is dead but not yet waited for."""
    if not Path("/proc/self").exists():  # not Linux
        try:
            os.kill(process, 0)
        except OSError:
            return False
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # leaves an orphan: whoever ends a process may end its children too
    main(Path(sys.argv[1]), int(sys.argv[2]))
