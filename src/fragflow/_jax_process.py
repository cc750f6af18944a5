"""What is private to JAX and concerns a process: its devices, settings and partners."""

import functools
from typing import Any

import jax
from jax._src import compilation_cache, distributed, xla_bridge
from jax._src.lib import _jax as jaxlib  # pyright: ignore[reportPrivateImportUsage]


def has_started() -> bool:
    """Whether JAX has chosen its devices, so that their number can no longer be set."""
    return xla_bridge.backends_are_initialized()


def num_cpu_devices() -> int:
    """How many virtual CPU devices JAX was asked for; -1 if it was not."""
    return jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]


def setting(name: str) -> Any:
    """One of JAX's settings, also of those that it does not show."""
    return jax.config._read(name)


def forget_compilation_cache() -> None:
    """Has JAX look again where compiled programs are kept: it goes on with what it has found."""
    compilation_cache.reset_cache()


def collect_at(host: str) -> None:
    """Has collectives of CPUs use the address `host` of this machine.

    By default it is what the machine's name stands for, often an address that no other knows.
    """

    def make() -> Any:
        client = distributed.global_state.client
        collectives = jaxlib.make_gloo_tcp_collectives(distributed_client=client, hostname=host)
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory(
        "cpu", functools.cache(make), priority=0, fail_quietly=False
    )
