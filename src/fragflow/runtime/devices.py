"""Makes sure that JAX has as many devices as a policy needs."""

import os

import jax

from fragflow._jax_process import has_started, num_cpu_devices
from fragflow.errors import ConfigError
from fragflow.policies.policy import Deployment, Place, Policy

MOST_VIRTUAL = 8


def needed_devices(policy: Policy, deployment: Deployment) -> int:
    """Devices that replicas which may reduce among themselves, or ask for their own, need."""
    own = sum(deployment.count(p.replicas) for p in policy.places if p.own_devices)
    counts = [
        deployment.count(place.replicas)
        for place in policy.places
        if any(c.split(".")[0] not in ("environment", "actor") for c in _claims(place))
    ]
    return max(own, *counts, 1)


def _claims(place: Place) -> tuple[str, ...]:
    return (*place.components, *place.optional)


def compute_in_calling_thread() -> None:
    """Has JAX run CPU programs where they are called, if it has not started; workers' JAX too.

    Between two calls of environments on the host there is little to compute: waking a thread of
    XLA's for it, and being woken by it, would cost as much.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def prepare_devices(policy: Policy, deployment: Deployment) -> None:
    """Asks JAX for virtual CPU devices while it can still be asked; refuses what cannot be."""
    needed = needed_devices(policy, deployment)
    if needed == 1:
        return
    # A collective needs a thread per device at once: with few cores it would deadlock. XLA makes
    # its threads when it starts, here or in worker processes.
    os.environ.setdefault("NPROC", "16")
    if not has_started():
        if needed <= MOST_VIRTUAL:
            jax.config.update("jax_num_cpu_devices", max(needed, num_cpu_devices()))
        if len(jax.devices()) < needed:
            most = len(jax.devices()) if needed <= MOST_VIRTUAL else f"at most {MOST_VIRTUAL}"
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


def accelerator() -> str:
    """The platform that fragments for accelerators run on."""
    return jax.default_backend()


def places() -> dict[str, int]:
    """How many replicas of a platform have an accelerator of their own."""
    platform = accelerator()
    return {} if platform == "cpu" else {platform: len(jax.devices())}
