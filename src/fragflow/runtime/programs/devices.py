"""Makes sure that JAX has as many devices as a policy needs."""

import contextlib
import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from fragflow._jax_process import has_started, num_cpu_devices
from fragflow.errors import ConfigError
from fragflow.policies.policy import Deployment, Place, Policy

MAX_VIRTUAL = 8
_OPTION = "--xla_backend_extra_options"
_SMALL_LOOPS = "xla_cpu_small_while_loop_byte_threshold"
_MAX_LOOP = 1024
"""bytes; the limit for small loops of JAX 0.10"""


def deploy_here(
    policy: Policy, workers: int, learners: int, slots: Mapping[str, int] | None = None
) -> Deployment:
    """The deployment on this machine: JAX has the devices, and its accelerator is known.

    `slots` gives, by platform, the number of replicas with a place of their own; by default one per
    accelerator.
    """
    asked = Deployment(workers=workers, learners=learners)
    prepare_devices(policy, asked)
    return as_here(asked, slots)


def as_here(asked: Deployment, slots: Mapping[str, int] | None = None) -> Deployment:
    """Adds this machine's accelerators; whether there are enough devices is not asked."""
    return replace(asked, accelerator=accelerator(), slots=slots or places())


def own_devices(policy: Policy, deployment: Deployment) -> int:
    """Counts the devices that no two fragments may share."""
    return sum(deployment.count(p.replicas) for p in policy.places if p.own_devices)


def needed_devices(policy: Policy, deployment: Deployment) -> int:
    """Counts the devices for replicas that may reduce among themselves, or ask for their own."""
    own = own_devices(policy, deployment)
    counts = [
        deployment.count(place.replicas)
        for place in policy.places
        if any(c.split(".")[0] not in ("environment", "actor") for c in _claims(place))
    ]
    return max(own, *counts, 1)


def _claims(place: Place) -> tuple[str, ...]:
    return (*place.components, *place.optional)


def compute_in_calling_thread() -> None:
    """Makes JAX run CPU programs in the calling thread, if it has not started; in workers too.

    Between two calls of environments on the host there is little to compute: it would cost as much
    to wake one of XLA's threads for it, and to be woken by that thread.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def prepare_devices(policy: Policy, deployment: Deployment) -> None:
    """Asks JAX for virtual CPU devices, if it has not started; raises if there are too few."""
    set_up_xla(policy, deployment)
    needed = needed_devices(policy, deployment)
    if needed == 1:
        return
    is_first = not has_started()
    if is_first and needed <= MAX_VIRTUAL:
        jax.config.update("jax_num_cpu_devices", max(needed, num_cpu_devices()))
    if accelerator() != "cpu":  # replicas that share an accelerator are fused
        needed = own_devices(policy, deployment)
    if is_first:
        if len(jax.devices()) < needed:
            most = len(jax.devices()) if needed <= MAX_VIRTUAL else f"at most {MAX_VIRTUAL}"
            raise ConfigError(
                f"policy {policy.name!r} needs {needed} devices, but there are {most} here: "
                "use fewer --workers or --learners."
            )
    elif len(jax.devices()) < needed:
        raise ConfigError(
            f"policy {policy.name!r} needs {needed} devices, but JAX has already started with "
            f"{len(jax.devices())}. Call ff.train before any other JAX function, or start Python "
            f"with JAX_NUM_CPU_DEVICES={needed}."
        )


def set_up_xla(policy: Policy, deployment: Deployment) -> None:
    """Sets the variables that XLA reads when it starts, here or in worker processes."""
    keep_loops_apart()
    if needed_devices(policy, deployment) > 1:
        # A collective needs a thread per device at once: with few cores it would deadlock.
        os.environ.setdefault("NPROC", "16")


def shortage(policy: Policy, deployment: Deployment) -> str | None:
    """Why threads of this machine could not run it, if they lack devices."""
    needed = needed_devices(policy, deployment)
    if accelerator() != "cpu":
        needed, most = own_devices(policy, deployment), len(jax.devices())
    else:
        most = max(MAX_VIRTUAL, len(jax.devices()))
    if needed <= most:
        return None
    return f"it needs {needed} devices, and there are at most {most} here"


def keep_loops_apart() -> None:
    """Makes XLA compile loops operation by operation, if it has not started; in workers too.

    From JAX 0.11 on, XLA makes one function of a small loop, whatever its components: it then
    contracts multiplications and additions across their boundaries, and the bits of a result
    depend on where the program was cut.
    """
    os.environ["XLA_FLAGS"] = xla_flags()


def xla_flags() -> str:
    """The flags that XLA starts with in runs."""
    flags = os.environ.get("XLA_FLAGS", "")
    return (
        flags if _SMALL_LOOPS in flags else f"{flags} {_OPTION}={_SMALL_LOOPS}={_MAX_LOOP}".strip()
    )


@functools.cache
def are_loops_apart() -> bool:
    """True if XLA does so: compiles a loop above the limit, and looks at the program."""
    if not has_started():
        keep_loops_apart()
    start = jax.ShapeDtypeStruct((_MAX_LOOP,), "float32", sharding=_on_cpu())
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: 1.5 * y + x, x))
    return "xla_cpu_small_call" not in (loop.lower(start).compile().as_text() or "")


def _on_cpu() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])


def accelerator() -> str:
    """The platform that fragments for accelerators run on."""
    return jax.default_backend()


def places() -> dict[str, int]:
    """By platform, the number of replicas that can have an accelerator of their own."""
    kind = accelerator()
    return {} if kind == "cpu" else {kind: len(jax.devices())}


def processor_of(device: Any) -> str:
    """The model of a device: other models have other kernels, with other bits."""
    return device.device_kind if device.platform != "cpu" else _model_of_cpu()


@functools.cache
def _model_of_cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
