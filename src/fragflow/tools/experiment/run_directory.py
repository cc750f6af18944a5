"""The directory of a run: configuration, metrics, weights, summary. Data only, no code."""

import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fragflow.errors import ConfigError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
WEIGHTS = "weights.safetensors"


class RunDirectory:
    """Files of one run, written as it goes."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: Path | str) -> "RunDirectory":
        """An empty directory that can be written to; anything else is refused."""
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError(
                    f"run directory {path} exists and is not empty: choose another --run-dir"
                )
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot write to run directory {path} ({error.strerror}): choose another --run-dir"
            ) from error
        return cls(path)

    def discard_if_empty(self) -> None:
        """Removes the directory of a run that never began."""
        with suppress(OSError):
            self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_json(self.path / CONFIG, config)

    def append_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One line per row; on disk when this returns."""
        lines = "".join(json_text(row) + "\n" for row in rows)
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(lines)

    def write_weights(self, params: Any) -> None:
        from safetensors.numpy import save

        write_bytes(self.path / WEIGHTS, save(named_leaves(params)))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)


def default_path(algorithm: str, env: str, policy: str, seed: int) -> Path:
    """`runs/<algo>-<env>-<policy>-s<seed>-<timestamp>`, a path that does not exist yet."""
    words = [_plain(algorithm), _plain(env), _plain(policy), f"s{seed}"]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / "-".join([*words, stamp])
    for count in range(2, 1000):
        if not path.exists():
            break
        path = path.with_name(f"{'-'.join([*words, stamp])}-{count}")
    return path


def read_config(path: Path | str) -> dict[str, Any]:
    """The configuration of a run."""
    file = Path(path) / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} is not a run directory: cannot read {CONFIG}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not the configuration of a run: expected a JSON object")
    return config


def read_weights(path: Path | str, template: Any) -> Any:
    """The saved parameters as a pytree like `template`; anything that does not match is refused."""
    import jax
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = Path(path) / WEIGHTS
    try:
        saved = load_file(file)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} has no {WEIGHTS}: the run has not finished") from error
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    paths, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    wrong = [f"{name} is missing" for name in wanted if name not in saved]
    wrong += [f"{name} is not a parameter" for name in saved if name not in wanted]
    for name, leaf in wanted.items():
        if name in saved and (saved[name].shape, saved[name].dtype) != (leaf.shape, leaf.dtype):
            wrong.append(
                f"{name} is {saved[name].dtype}{list(saved[name].shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ConfigError(f"{file} does not fit the algorithm: {'; '.join(wrong[:3])}{more}")
    return jax.tree.unflatten(structure, [saved[name] for name in wanted])


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Every array of a pytree by its path."""
    import jax

    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): _contiguous(leaf) for path, leaf in paths}


def sha256_of(tree: Any) -> str:
    """Over the bytes of all leaves, in pytree order."""
    import jax

    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(_contiguous(leaf).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of everything that is installed and can change a run's numbers."""
    import platform

    found = {"python": platform.python_version()}
    for package in ("fragflow", "jax", "jaxlib", "flax", "optax", "numpy", "gymnax"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and infinity become null."""
    return json.dumps(_plain_value(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json_text(value, indent=2) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _contiguous(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return np.ascontiguousarray(array).reshape(array.shape)


def _plain(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.") or "x"


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
