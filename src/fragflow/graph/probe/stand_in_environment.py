"""Plays environments with numbers that follow from each row alone; any such numbers will do.

An environment answers row by row, so what replicas make of its answers can be tried with other
answers, which cost nothing. They are within the declared spaces, differ from environment to
environment and from step to step, and one episode in five ends. Actions that are floats change them
a little and smoothly: a hash of their last digits would make rounding large.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragflow._jax import (
    Eqn,
    component_of,
    contains_host_call,
    host_call_p,
    host_program_p,
    hosts_compiled_into,
    is_key,
    plain_aval,
    raw_key,
    result_paths,
    wrapped_key,
)
from fragflow.api.host import Host
from fragflow.api.spaces import Box, Discrete, Space

ENDS = 0.1
"""the probability that an episode terminates, and that it is cut"""

Answer = Callable[[Eqn, Sequence[Any], Any], list[Any] | None]


def stand_in(environment: Any, plays_jax: bool) -> Answer:
    """Makes a function that answers calls of the host and, if asked to, of environments in JAX."""
    spaces = environment.environment if isinstance(environment, Host) else environment

    def answer(eqn: Eqn, args: Sequence[Any], ids: Any) -> list[Any] | None:
        if eqn.primitive in (host_call_p, host_program_p):
            method = eqn.params.get("method", "compiled_step")
            types = [v.aval for v in eqn.outvars]
            return host_answer(method, args, ids, types, spaces.observation)
        name = component_of(eqn) or ""
        if (
            not plays_jax
            or not name.startswith("environment.")
            or contains_host_call(eqn)
            or any(hosts_compiled_into(eqn))
        ):
            return None
        return _of_jax(eqn, args, spaces.observation)

    return answer


def host_answer(
    method: str, args: Sequence[Any], ids: Any, types: Sequence[Any], space: Space
) -> list[Any]:
    """Answers for a host: indices and the step's number stand for the state that it keeps."""
    draws = _Draws([ids, *args])
    if method == "reset":
        return [draws.of_space(space, types[0])]
    ticket, record = args[0] + 1, [args[1] + draws.numbers(types[1])] if method == "step" else []
    return [ticket, *record, *_timestep(draws, types[1 + len(record) :], space)]


def _of_jax(eqn: Eqn, args: Sequence[Any], space: Space) -> list[Any]:
    """Answers for environments in JAX: their rows have keys, which differ from step to step.

    Results that nobody reads have been removed.
    """
    draws = _Draws(args)
    is_step = component_of(eqn) == "environment.step"
    results: list[Any] = []
    for path, variable in zip(result_paths(eqn), eqn.outvars, strict=True):
        aval, field = variable.aval, path.rpartition(".")[2]
        is_timestep = path.startswith("result[1]")
        if is_timestep and field in ("obs", "next_obs"):
            results.append(draws.of_space(space, aval))
        elif is_timestep and field in ("terminated", "truncated"):
            results.append(draws.ends(aval)[field == "truncated"] & is_step)
        elif path == "result[0].random":
            results.append(draws.bits(aval.shape))
        else:
            results.append(draws.numbers(aval))
    return results


def _timestep(draws: "_Draws", types: Sequence[Any], space: Space) -> list[Any]:
    """obs, next_obs, reward, terminated, truncated, and the mask if there is one."""
    terminated, truncated = draws.ends(types[3])
    mask = [draws.uniform(types[5].shape) < 0.8] if len(types) > 5 else []
    return [
        draws.of_space(space, types[0]),
        draws.of_space(space, types[1]),
        draws.numbers(types[2]),
        terminated,
        truncated,
        *mask,
    ]


class _Draws:
    """Draws numbers that follow from each row, one array after the other."""

    def __init__(self, rows: Sequence[Any]):
        count = rows[0].shape[0]
        self._seed = jnp.zeros((count,), jnp.uint32)
        self._shift = jnp.zeros((count,), jnp.float64)
        for row in rows:
            plain = raw_key(row) if is_key(row) else row
            flat = plain.reshape(count, -1)
            if _is_float(row):
                self._shift += flat.astype(jnp.float64).mean(1) if flat.shape[1] else 0.0
            else:
                for k in range(flat.shape[1]):
                    self._seed = _mixed(self._seed * np.uint32(31) + flat[:, k].astype(jnp.uint32))
        self._number = 0

    def bits(self, shape: Sequence[int]) -> Any:
        """Whole numbers of 32 bits."""
        self._number += 1
        columns = np.arange(math.prod(shape[1:]), dtype=np.uint32)
        offset = np.uint32(self._number * 0x9E3779B9 & 0xFFFFFFFF)
        drawn = _mixed(self._seed[:, None] + columns * np.uint32(0x85EBCA6B) + offset)
        return drawn.reshape(drawn.shape[0], *shape[1:])

    def uniform(self, shape: Sequence[int]) -> Any:
        """Numbers from 0 to 1, of which actions decide a tenth."""
        said = 0.05 * (1 + jnp.tanh(self._shift)).reshape(-1, *[1] * (len(shape) - 1))
        return 0.9 * self.bits(shape).astype(jnp.float64) / 2**32 + said

    def numbers(self, aval: Any) -> Any:
        """Small numbers of any type."""
        if is_key(aval):
            return wrapped_key(self.bits(plain_aval(aval).shape), aval)
        if aval.dtype == bool:
            return self.uniform(aval.shape) < 0.5
        drawn = 2 * self.uniform(aval.shape) - 1
        return drawn if _is_float(aval) else jnp.floor(drawn + 1).astype(aval.dtype)

    def ends(self, aval: Any) -> tuple[Any, Any]:
        """Flags of episodes that terminate, and of those that are cut: for all agents together."""
        drawn = _mixed(self._seed + np.uint32(0x27D4EB2F)).astype(jnp.float64) / 2**32
        drawn = drawn.reshape(-1, *[1] * (len(aval.shape) - 1))
        shape = (drawn.shape[0], *aval.shape[1:])
        terminated, ended = drawn < ENDS, drawn < 2 * ENDS
        return jnp.broadcast_to(terminated, shape), jnp.broadcast_to(ended & ~terminated, shape)

    def of_space(self, space: Space, aval: Any) -> Any:
        """Values within the space; the first axes are those of rows and agents."""
        drawn = self.uniform(aval.shape)
        if isinstance(space, Discrete):
            return jnp.floor(drawn * space.n).astype(aval.dtype)
        if not isinstance(space, Box):
            return jnp.floor(drawn * np.asarray(space.counts)).astype(aval.dtype)
        low, high = (np.asarray(b, np.float64) for b in space.bounds)
        finite = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(finite, low, -1.7), np.where(finite, high, 1.7)
        value = low + drawn * (high - low)
        return value if _is_float(aval) else jnp.floor(value).astype(aval.dtype)


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _mixed(x: Any) -> Any:
    """A hash of 32 bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
