"""Remembers results of trials in the user's cache directory: one small JSON file each."""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def directory() -> Path:
    """The directory of the files, next to that of compiled programs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fragflow" / "probe"


def recall(key: str) -> Mapping[str, Any] | None:
    """The facts known of `key`; None if there are none, or if others could have written them."""
    folder = directory()
    try:
        if not _is_private(folder):
            return None
        known = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) else None


def remember(key: str, facts: Mapping[str, Any]) -> None:
    """Writes `facts`, unless this user cannot write to the directory, or others can."""
    folder = directory()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(folder):
            return
        # Another run may read the file at the same time: it appears whole, or not at all.
        descriptor, path = tempfile.mkstemp(".new", key, folder)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dict(facts), file)
        os.replace(path, folder / f"{key}.json")


def _is_private(folder: Path) -> bool:
    """True if nobody else can write to `folder`."""
    found = folder.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others
    )
