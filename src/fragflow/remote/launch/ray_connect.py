"""Joins a Ray cluster, or makes one of our own; reports problems before anything starts."""

import contextlib
import logging
import math
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fragflow.errors import ConfigError
from fragflow.remote.launch.cluster import Cluster

MIN_VERSION = (2, 54)
"""earlier ones do not ask for tokens"""
CONNECT_SECONDS = 5.0
SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""of HTTP/2, without settings: length, type, flags, stream"""
TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def import_ray() -> Any:
    """Imports Ray; ConfigError if it is missing or too old."""
    try:
        import ray
        import ray.exceptions
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError:
        raise ConfigError(
            "--runtime ray needs Ray, which is not installed: pip install 'fragflow[ray]'"
        ) from None
    found = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if found < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ConfigError(
            f"Ray {ray.__version__} is too old: expected {least} or later. "
            "pip install -U 'fragflow[ray]'"
        )
    return ray


def connected(
    ray: Any, cluster: Cluster, needed: Mapping[str, float], directory: Path
) -> Callable[[], None]:
    """Connects to a cluster with all `needed` resources; returns a function that leaves it.

    `directory` is for a cluster of our own.
    """
    if ray.is_initialized():
        _refuse_shortage(ray, needed, "the Ray cluster that this process is connected to")
        return lambda: None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with contextlib.ExitStack() as later:
        if cluster.address is None:
            later.enter_context(_variables(_own_token(directory)))
            whole = {name: math.ceil(amount) for name, amount in needed.items()}  # of nodes
            cpus = max(os.cpu_count() or 1, whole.pop("CPU", 1))
            whole.pop("GPU", None)
            with warnings.catch_warnings():
                # JAX warns of forks; Ray's forks start another program at once.
                warnings.filterwarnings("ignore", message=".*os.fork")
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    resources=whole,
                    include_dashboard=False,
                    _temp_dir=str(directory / "ray"),
                    **quiet,
                )
        else:
            host, port = _parts(cluster.address)
            later.enter_context(_variables(_their_token(cluster)))
            _refuse_others(cluster.address, host, port)
            _join(ray, cluster, quiet)
        later.callback(ray.shutdown)
        _refuse_shortage(ray, needed, f"the Ray cluster at {cluster.address or 'this machine'}")
        return later.pop_all().close
    raise AssertionError("not reached")


def _join(ray: Any, cluster: Cluster, quiet: Mapping[str, Any]) -> None:
    try:
        ray.init(address=cluster.address, **quiet)
    except ConnectionError as error:
        raise ConfigError(
            f"the Ray cluster at {cluster.address} does not let us in: {_first_line(error)}. "
            "Is the token right (token-file in the cluster's file, or RAY_AUTH_TOKEN_PATH)?"
        ) from error
    except RuntimeError as error:
        raise ConfigError(
            f"cannot join the Ray cluster at {cluster.address}: {_first_line(error)}"
        ) from error


def _parts(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(
            f"--ray-address is {address!r}: expected HOST:PORT of a cluster's head, such as "
            "10.0.0.1:6379"
        )
    return host.strip("[]"), int(port)


def _refuse_others(address: str, host: str, port: int) -> None:
    """Raises ConfigError if no Ray cluster answers: Ray itself would try for a long time."""
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as there:
            is_ray = "RAY_USE_TLS" in os.environ or _speaks_http2(there)
    except (OSError, OverflowError, UnicodeError) as error:  # also for names that are invalid
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no Ray cluster answers at {address}: {why}. Is its head running "
            "(ray start --head), and is this its GCS port?"
        ) from None
    if not is_ray:
        raise ConfigError(
            f"the server at {address} is not a Ray cluster's head: it does not speak gRPC. Is this "
            "its GCS port (ray start --head --port)?"
        )


def _speaks_http2(there: socket.socket) -> bool:
    """True if the server answers an HTTP/2 client's preface (RFC 9113, 3.4) with settings."""
    there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS_FRAME)
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while len(answer) < len(SETTINGS_FRAME) and (more := there.recv(64)):
            answer += more
    return answer[3:4] == SETTINGS_FRAME[3:4]


def _refuse_shortage(ray: Any, needed: Mapping[str, float], where: str) -> None:
    there = ray.cluster_resources()
    short = [
        f"{amount:g} {name} (it has {there.get(name, 0.0):g})"
        for name, amount in needed.items()
        if there.get(name, 0.0) < amount
    ]
    if short:
        raise ConfigError(
            f"{where} is too small: the policy asks for {', '.join(short)}. Use fewer --workers or "
            "--learners, or add nodes."
        )


def _own_token(directory: Path) -> dict[str, str]:
    """A token for a cluster of our own, in a file that only this user can read."""
    path = directory / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _their_token(cluster: Cluster) -> dict[str, str]:
    if cluster.token_file is not None:
        path = Path(cluster.token_file).expanduser()
        if not path.is_file():
            raise ConfigError(f"token-file is {cluster.token_file}: there is no such file")
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    given = any(os.environ.get(name) for name in TOKEN_VARIABLES)
    if given or (Path.home() / ".ray" / "auth_token").is_file():
        return {"RAY_AUTH_MODE": "token"}
    if cluster.insecure:
        return {}
    raise ConfigError(
        f"no token for the Ray cluster at {cluster.address}: without one, whoever reaches its "
        "ports runs code there. Set RAY_AUTH_TOKEN_PATH, or token-file in the cluster's file; or "
        "insecure = true there, in a network that you trust."
    )


def read_token_again() -> None:
    """Has Ray read its environment variables again, which it does only when it is imported."""
    with contextlib.suppress(ImportError, AttributeError):  # another version of Ray
        from ray import _raylet as core

        core.Config.initialize("")  # pyright: ignore[reportAttributeAccessIssue]
        core.AuthenticationTokenLoader.instance().reset_cache()  # pyright: ignore


@contextlib.contextmanager
def _variables(new: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables of Ray for a while."""
    old = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    read_token_again()
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
