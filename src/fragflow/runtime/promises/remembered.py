"""Remembers what has been tried, in the user's cache directory: one small file of JSON each."""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def directory() -> Path:
    """Next to compiled programs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fragflow" / "probe"


def recall(key: str) -> Mapping[str, Any] | None:
    """What is known of `key`; None if nothing is, or if others could have written it."""
    folder = directory()
    try:
        if not _is_private(folder):
            return None
        known = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) else None


def remember(key: str, facts: Mapping[str, Any]) -> None:
    """Keeps `facts`; a directory that cannot be written is as good as none."""
    folder = directory()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(folder):
            return
        # Another run may read it at the same time: it appears whole, or not at all.
        descriptor, path = tempfile.mkstemp(".new", key, folder)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dict(facts), file)
        os.replace(path, folder / f"{key}.json")


def _is_private(folder: Path) -> bool:
    """Whether nobody else can write there."""
    found = folder.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others
    )
