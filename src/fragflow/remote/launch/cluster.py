"""Settings of a Ray cluster: its address, and the resources that fragments need there."""

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fragflow.errors import ConfigError, did_you_mean

RAY_KEYS = ("address", "token-file", "insecure", "interface", "ports")
NEED_KEYS = ("cpus", "gpus", "resources")
RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""resources that Ray accounts for by itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The resources that each process of a fragment reserves."""

    cpus: float = 1.0
    gpus: float | None = None
    """None: one for each device that it computes on"""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """those that a cluster's owner has named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster; without an address, one of its own on this machine."""

    address: str | None = None
    token_file: str | None = None
    """file of the token that lets us use the cluster; by default Ray's own"""
    insecure: bool = False
    """use a cluster that asks for no token"""
    interface: str | None = None
    """this machine's address that workers connect to; by default Ray's"""
    ports: tuple[int, int] = (0, 0)
    """first and last that may be used for messages; 0: any"""
    needs: Mapping[str, Need] = field(default_factory=dict[str, Need])
    """by fragment, or by a place of the policy that is in it"""


def find_cluster(path: str | None, address: str | None) -> Cluster | None:
    """The cluster of a file, or at an address; None if neither is given."""
    if path is None and address is None:
        return None
    cluster = Cluster() if path is None else read_cluster(path)
    return cluster if address is None else replace(cluster, address=address)


def read_cluster(path: str | Path) -> Cluster:
    """Reads a `cluster.toml`."""
    title = f"--cluster {path}"
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{title}: cannot read it ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{title}: not valid TOML: {error}") from error
    _refuse_unknown(title, content, ("ray", "fragments"))
    ray = _table(title, content, "ray")
    _refuse_unknown(f"{title}: [ray]", ray, RAY_KEYS)
    fragments = _table(title, content, "fragments")
    needs = {}
    for name, need in fragments.items():
        where = f"{title}: [fragments.{name}]"
        if not isinstance(need, dict):
            raise ConfigError(f"{where}: expected a table with {', '.join(NEED_KEYS)}")
        _refuse_unknown(where, need, NEED_KEYS)
        needs[name] = _need(where, need)
    return Cluster(
        address=_value(title, ray, "address", str, None),
        token_file=_value(title, ray, "token-file", str, None),
        insecure=_value(title, ray, "insecure", bool, False),
        interface=_value(title, ray, "interface", str, None),
        ports=_ports(title, _value(title, ray, "ports", str, None)),
        needs=needs,
    )


def need_of(cluster: Cluster, names: Collection[str], devices: Mapping[str, int]) -> Need:
    """The resources of a process whose fragments a file may call by `names`."""
    named = [need for key, need in cluster.needs.items() if key in names]
    resources: dict[str, float] = {}
    for need in named:
        for name, amount in need.resources.items():
            resources[name] = max(amount, resources.get(name, 0.0))
    given = [need.gpus for need in named if need.gpus is not None]
    return Need(
        cpus=max((need.cpus for need in named), default=1.0),
        gpus=max(given, default=float(devices.get("gpu", 0))),
        resources=resources,
    )


def check_needs(cluster: Cluster, fragments: Sequence[str], names: Collection[str]) -> None:
    """Checks that every fragment in a cluster's file is one of the run's.

    `names` are all names by which a file may call them.
    """
    for key in cluster.needs:
        if key not in names:
            raise ConfigError(
                f"the cluster's file has a fragment {key!r}, which this policy does not "
                f"make. Its fragments: {', '.join(fragments)}."
            )


def _need(where: str, need: Mapping[str, Any]) -> Need:
    resources = need.get("resources", {})
    if not isinstance(resources, dict):
        raise ConfigError(f"{where}: resources is {resources!r}: expected {{ name = amount }}")
    for name in resources:
        if name in RAYS_OWN:
            raise ConfigError(
                f"{where}: resources has {name!r}, which is Ray's own: expected those that nodes "
                "were started with (ray start --resources). cpus and gpus have keys of their own."
            )
    gpus = need.get("gpus")
    return Need(
        cpus=_amount(where, "cpus", need.get("cpus", 1)),
        gpus=None if gpus is None else _amount(where, "gpus", gpus),
        resources={name: _amount(where, name, amount) for name, amount in resources.items()},
    )


def _amount(where: str, name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Ray counts in parts of 10,000.
    if not (is_number and 0 <= value < math.inf and value == round(value, 4)):
        raise ConfigError(
            f"{where}: {name} is {value!r}: expected a number from 0 on, with four decimals at most"
        )
    return float(value)


def _ports(title: str, text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) < 65536):
        raise ConfigError(
            f"{title}: [ray] ports is {text!r}: expected FIRST-LAST, from 1024 to 65535"
        )
    return int(first), int(last)


def _value(title: str, table: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = table.get(key, default)
    if value is not default and not isinstance(value, kind):
        raise ConfigError(f"{title}: [ray] {key} is {value!r}: expected a {kind.__name__}")
    return value


def _table(title: str, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{title}: {key} is {table!r}: expected a table [{key}]")
    return table


def _refuse_unknown(title: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(
                f"{title}: unknown key {key!r}.{did_you_mean(key, known)} "
                f"Known: {', '.join(known)}."
            )
