"""JAX's private interfaces that concern a process: its devices, settings and peers."""

import functools
from typing import Any

import jax
from jax._src import compilation_cache, distributed, xla_bridge
from jax._src.lib import _jax as jaxlib  # pyright: ignore[reportPrivateImportUsage]


def has_started() -> bool:
    """True if JAX has chosen its devices, so that their number can no longer be set."""
    return xla_bridge.backends_are_initialized()


def num_cpu_devices() -> int:
    """The number of virtual CPU devices that JAX was asked for; -1 if it was not asked for any."""
    return jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]


def setting(name: str) -> Any:
    """The value of one of JAX's settings, also of those that it does not show."""
    return jax.config._read(name)


def forget_compilation_cache() -> None:
    """Makes JAX look up the place of compiled programs again; else it keeps the one it found."""
    compilation_cache.reset_cache()


def collect_at(host: str) -> None:
    """Makes collectives between CPUs use the address `host` of this machine.

    By default they use the address of the machine's name, which other machines often do not know.
    """

    def make() -> Any:
        client = distributed.global_state.client
        collectives = jaxlib.make_gloo_tcp_collectives(distributed_client=client, hostname=host)
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory(
        "cpu", functools.cache(make), priority=0, fail_quietly=False
    )
