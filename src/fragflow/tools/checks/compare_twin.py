"""`fragflow check ENV --twin OTHER`: compares a JAX port with its original on the host.

Before every step the original is put into the port's state. Both get the same action and must then
answer the same, so that a difference comes from this step and has not built up over several.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api import Box, Discrete, Environment, HostEnvironment, MultiDiscrete, Space
from fragflow.api.environment import num_agents_of
from fragflow.environments.libraries.gymnasium import GymnasiumEnvironment, SyncBatch
from fragflow.errors import ConfigError, EnvironmentFault
from fragflow.runtime.host_environments.observation_bounds import declared_bounds
from fragflow.runtime.host_environments.pool import HostPlayer
from fragflow.tools.checks.contract import Finding, sample

StateMap: TypeAlias = Callable[[Any, Any], object]
"""puts the original, the second argument, into the port's state, the first"""

MAX_HOLDS = (1, 5, 20, 80)
"""one environment each: for how many steps it repeats an action at most. Longer ones get around
further, to goals and walls that no trembling reaches"""
STEPS = 1000
TOLERANCE = 1e-5
"""enough for what 32 bits round in one step"""


@dataclass
class TwinChecker:
    """Plays a port and its original side by side and says where they differ."""

    port: Environment
    original: HostEnvironment
    state_map: StateMap | None = None
    """(state, host): sets `host`, a Gymnasium environment without its wrappers or else what `open`
    returned for one environment, to the port's state, whose leaves are numpy arrays; None: the
    numbers of the state become the `state` of `host`"""
    steps: int = STEPS
    """in each environment"""
    seed: int = 0
    tolerance: float = TOLERANCE
    """by how much numbers may differ, as a part of the larger one, or of 1 if that is larger"""
    how: str = field(default="", init=False)
    """in words, the way the original's state was set; empty if it was not"""

    def __post_init__(self) -> None:
        if isinstance(self.port, HostEnvironment) or not isinstance(self.original, HostEnvironment):
            raise ConfigError(
                "a twin check compares a JAX environment with its original on the host: "
                "`fragflow check ENV --twin OTHER`, where ENV is the one in JAX"
            )
        if num_agents_of(self.port) is not None or num_agents_of(self.original) is not None:
            raise ConfigError("a twin check is for environments of one agent")
        if isinstance(self.original, GymnasiumEnvironment):
            # One by one, in this process: each with a state that can be set.
            self.original = dataclasses.replace(self.original, vectorization="sync")
        self._reset = jax.jit(lambda key, t: self.port.reset(jax.random.fold_in(key, 2 * t)))
        self._step = jax.jit(
            lambda state, action, key, t: self.port.step(
                state, action, jax.random.fold_in(key, 2 * t + 1)
            )
        )

    def run(self) -> list[Finding]:
        spaces = [
            *self._differences("observations", self.port.observation, self.original.observation),
            *self._differences("actions", self.port.action, self.original.action),
        ]
        finding = Finding("spaces", "FAIL" if spaces else "ok", "; ".join(spaces))
        action = _common(self.port.action, self.original.action)
        if action is None or self.port.observation.shape != self.original.observation.shape:
            return [finding]  # nothing can be compared
        tallies = {name: Tally(self.tolerance) for name in ("observation", "reward")}
        tallies |= {name: Tally(0.0, is_flag=True) for name in ("terminated", "truncated")}
        try:
            for index in range(len(MAX_HOLDS)):
                self._play(index, action, tallies)
        except ConfigError:
            raise  # of the state map
        except EnvironmentFault as fault:
            return [finding, Finding("play", "FAIL", str(fault))]
        except Exception as error:
            return [finding, Finding("play", "FAIL", f"{type(error).__name__}: {error}")]
        return [finding, *(tally.finding(name) for name, tally in tallies.items())]

    def _differences(self, what: str, ours: Space, theirs: Space) -> Iterator[str]:
        if type(ours) is not type(theirs) or ours.shape != theirs.shape:
            yield f"{what} are {_kind(ours)}, the twin's {_kind(theirs)}"
            return
        if ours.dtype != theirs.dtype:
            yield f"{what} are {ours.dtype}, the twin's {theirs.dtype}"
        sides = ("least", "greatest")
        for side, a, b in zip(sides, declared_bounds(ours), declared_bounds(theirs), strict=True):
            for entry in _far_entries(a, b, self.tolerance)[:1]:
                which = f" of entry {list(entry)}" if entry else ""
                yield f"{what}: the {side} value{which} is {a[entry]:g}, the twin's {b[entry]:g}"

    def _play(self, index: int, space: Space, tallies: dict[str, "Tally"]) -> None:
        """One environment, from episode to episode; both start a new one where either ends."""
        rng = np.random.default_rng([self.seed, index])
        key = jax.random.fold_in(jax.random.key(self.seed), index)
        player = HostPlayer(self.original, 1, first=index)
        try:
            is_over, state, action = True, None, np.empty(0)
            began = held_until = 0
            for t in range(self.steps):
                if is_over:
                    player.reset([int(rng.integers(2**31))])
                    state, began = self._reset(key, t)[0], t
                state = _with_numpy(state)
                self._set_state(state, player.batch)
                if t == held_until:
                    action = sample(space, rng, 1)
                    held_until += int(rng.integers(1, MAX_HOLDS[index] + 1))
                ours = self._step(state, action[0], key, t)
                theirs = player.step(action)
                terminated = bool(ours.terminated)
                truncated = bool(ours.truncated) and not terminated
                where = Where(index, t + 1, t + 1 - began, action[0])
                for name, mine, its in (
                    ("observation", ours.obs, theirs.next_obs[0]),
                    ("reward", ours.reward, theirs.reward[0]),
                    ("terminated", terminated, theirs.terminated[0]),
                    ("truncated", truncated, theirs.truncated[0]),
                ):
                    tallies[name].compare(where, np.asarray(mine), np.asarray(its))
                is_over = terminated or truncated or theirs.terminated[0] or theirs.truncated[0]
                state = ours.state
        finally:
            player.close()

    def _set_state(self, state: Any, batch: Any) -> None:
        host = batch.environments[0].unwrapped if isinstance(batch, SyncBatch) else batch
        if self.state_map is None:
            self.state_map, self.how = default_state_map(self.original.name, state, host)
        self.how = self.how or "by the given function"
        try:
            self.state_map(state, host)
        except Exception as error:
            raise ConfigError(
                f"the state map failed to set the state of {self.original.name}: "
                f"{type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True)
class Where:
    """A step of the comparison."""

    environment: int
    step: int
    step_of_episode: int
    action: np.ndarray

    def __str__(self) -> str:
        return (
            f"at step {self.step} of environment {self.environment} (step {self.step_of_episode} "
            f"of its episode), action {_short(self.action)}"
        )


@dataclass
class Tally:
    """A comparison of two environments' answers of one kind, over all steps."""

    tolerance: float
    is_flag: bool = False
    steps: int = 0
    raised: int = 0
    """flags: steps where both said True"""
    different: int = 0
    largest: float = 0.0
    """difference seen, also where it is tolerated"""
    first: str = ""
    """the first that is not"""

    def compare(self, where: Where, ours: np.ndarray, theirs: np.ndarray) -> None:
        self.steps += 1
        if ours.shape != theirs.shape:
            self._differs(f"{where}: shape {list(ours.shape)}, the twin's {list(theirs.shape)}")
            return
        self.raised += int(self.is_flag and bool(ours) and bool(theirs))
        if (ours == theirs).all():
            return
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        self.largest = max(self.largest, float(_apart(a, b).max(initial=0.0)))
        for entry in _far_entries(a, b, self.tolerance)[:1]:
            which = f"entry {list(entry)} is " if entry else ""
            by = "" if self.is_flag else f", {_apart(a, b)[entry]:.3g} apart"
            said, should = _short(ours[entry]), _short(theirs[entry])
            self._differs(f"{where}: {which}{said}, the twin's {should}{by}")

    def _differs(self, text: str) -> None:
        self.different += 1
        self.first = self.first or text

    def finding(self, name: str) -> Finding:
        if self.different:
            most = "" if self.is_flag else f", by up to {self.largest:.3g}"
            count = f"{self.different} of {self.steps} steps differ{most}"
            return Finding(name, "FAIL", f"{count}; first {self.first}")
        if not self.is_flag:
            return Finding(name, "ok", f"largest difference {self.largest:.3g}")
        if not self.raised:
            return Finding(name, "note", f"never seen in {self.steps} steps, so not compared")
        return Finding(name, "ok", f"{self.raised} episodes")


def default_state_map(name: str, state: Any, host: Any) -> tuple[StateMap, str]:
    """The port's numbers, in order, as the `state` of the original; and these in words."""
    try:
        current = np.asarray(host.state, np.float64)
    except (AttributeError, TypeError, ValueError):
        current = np.empty(0)
    names: list[str] = []
    found = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if _is_float(leaf) and found < current.size:
            names.append(jax.tree_util.keystr(path, simple=True, separator=".") or "the state")
            found += leaf.size
    if not current.size or found != current.size:
        raise ConfigError(
            f"no known way to set the state of {name}: it has no attribute `state` that the "
            "numbers of the port's state fit. Give --state-map module:function; the function gets "
            "the port's state (with numpy arrays) and the host environment, and sets the state of "
            "the latter, like `def same(state, env): env.set_state(state.qpos, state.qvel)`"
        )

    def set_state(state: Any, host: Any) -> None:
        floats = [np.ravel(leaf) for leaf in jax.tree.leaves(state) if _is_float(leaf)]
        host.state = np.concatenate(floats)[:found].astype(np.float64).reshape(current.shape)

    return set_state, f"state = ({', '.join(names)})"


def _with_numpy(state: Any) -> Any:
    """With numpy arrays for leaves; keys of random numbers stay what they are."""

    def convert(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else np.asarray(leaf)

    return jax.tree.map(convert, state)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"


def _common(ours: Space, theirs: Space) -> Space | None:
    """Actions that both understand."""
    if type(ours) is not type(theirs) or ours.shape != theirs.shape:
        return None
    if isinstance(ours, Box):
        (low, high), (other_low, other_high) = declared_bounds(ours), declared_bounds(theirs)
        low, high = np.maximum(low, other_low), np.minimum(high, other_high)
        return dataclasses.replace(ours, low=tuple(low.ravel()), high=tuple(high.ravel()))
    most = np.minimum(declared_bounds(ours)[1], declared_bounds(theirs)[1]).astype(int) + 1
    return Discrete(n=int(most)) if isinstance(ours, Discrete) else MultiDiscrete(counts=(*most,))


def _kind(space: Space) -> str:
    return f"{type(space).__name__} of shape {list(space.shape)}"


def _far_entries(a: np.ndarray, b: np.ndarray, tolerance: float) -> list[tuple[int, ...]]:
    """The indices of numbers that differ by more than the tolerance."""
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1.0)
    far = _apart(a, b) > tolerance * np.where(np.isfinite(largest), largest, 1.0)
    return [tuple(int(k) for k in entry) for entry in np.argwhere(far)] if far.any() else []


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances; infinite where one is NaN or infinite and the other is not the same."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _short(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim:
        return np.array2string(array, precision=6, separator=", ", threshold=8)
    return f"{array:.6g}" if array.dtype.kind == "f" else str(array)
