"""`fragflow check ENV`: plays an environment and tells whether it keeps its contract."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.api import Discrete, HostEnvironment, MultiDiscrete, Space
from fragflow.api.environment import num_agents_of
from fragflow.api.environment_batch import Environments
from fragflow.api.host import HostStep
from fragflow.errors import EnvironmentFault
from fragflow.runtime.host_environments.observation_bounds import Range
from fragflow.runtime.host_environments.pool import HostPlayer

NUM_ENVS = 3


@dataclass(slots=True)
class Finding:
    """The result of one rule."""

    rule: str
    verdict: str
    """ok, note or FAIL"""
    text: str


class Player(Protocol):
    """Some environments, played from Python."""

    def reset(self, seeds: Sequence[int]) -> np.ndarray: ...
    def step(self, action: np.ndarray) -> HostStep: ...
    def close(self) -> None: ...


class JaxPlayer:
    """Environments that are JAX programs, batched and restarted as in a run; seeds are indices."""

    def __init__(self, environment: Any, count: int):
        def environments(ids: jax.Array) -> Environments:
            return Environments(environment, ids, count)

        key = jax.random.key(0)
        self._reset = jax.jit(lambda ids: environments(ids).reset(key))
        self._step = jax.jit(lambda ids, state, action: environments(ids).step(state, action))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        self._ids = jnp.array(seeds, jnp.int32)
        self._state, timestep = self._reset(self._ids)
        return np.asarray(timestep.obs)

    def step(self, action: np.ndarray) -> HostStep:
        self._state, timestep = self._step(self._ids, self._state, action)
        return HostStep(*(None if leaf is None else np.asarray(leaf) for leaf in timestep))  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        pass


@dataclass
class Checker:
    """Plays an environment and applies one rule after the other."""

    environment: Any
    steps: int = 1000
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> list[Finding]:
        rules: list[tuple[str, Callable[[], Iterator[str]]]] = [
            ("types and shapes", self._types),
            ("ranges", self._ranges),
            ("new episodes", self._episodes),
            ("determinism", self._determinism),
            ("independence", self._independence),
        ]
        for name, rule in rules:
            try:
                problems = list(rule())
            except EnvironmentFault as fault:
                problems = [f"FAIL {fault}"]
            except Exception as error:
                problems = [f"FAIL {type(error).__name__}: {error}"]
            verdict, text = "ok", ""
            for problem in problems:
                word, _, rest = problem.partition(" ")
                if verdict != "FAIL":
                    verdict, text = word, rest
            self.findings.append(Finding(name, verdict, text))
            if verdict == "FAIL" and name == "types and shapes":
                break  # nothing else can be tried
        return self.findings

    def _player(self, count: int = NUM_ENVS) -> Player:
        is_host = isinstance(self.environment, HostEnvironment)
        return (HostPlayer if is_host else JaxPlayer)(self.environment, count)

    def _play(
        self, seeds: Sequence[int], steps: int, rows: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[HostStep]]:
        """Random actions, the same for the same environment in any batch."""
        player = self._player(len(seeds))
        rng = np.random.default_rng(0)
        try:
            first = player.reset(seeds)
            answers = []
            for _ in range(steps):
                action = self._sample(rng)
                answers.append(player.step(action if rows is None else action[list(rows)]))
            return first, answers
        finally:
            player.close()

    def _sample(self, rng: np.random.Generator) -> np.ndarray:
        """Random actions for every environment, and every agent in it."""
        rows = (NUM_ENVS, *self._agents)
        actions = sample(self.environment.action, rng, math.prod(rows))
        return actions.reshape(*rows, *actions.shape[1:])

    @property
    def _agents(self) -> tuple[int, ...]:
        count = num_agents_of(self.environment)
        return () if count is None else (count,)

    def _types(self) -> Iterator[str]:
        space = self.environment.observation
        first, answers = self._play(range(NUM_ENVS), min(self.steps, 10))
        expected = (NUM_ENVS, *self._agents, *space.shape)
        for what, obs in [
            ("reset", first),
            *((f"step {t + 1}", a.obs) for t, a in enumerate(answers)),
        ]:
            if obs.shape != expected or obs.dtype != space.dtype:
                yield (
                    f"FAIL {what} gives observations {obs.dtype}{list(obs.shape)}, expected "
                    f"{space.dtype}{list(expected)}"
                )

    def _ranges(self) -> Iterator[str]:
        first, answers = self._play(range(NUM_ENVS), self.steps)
        bounds = Range.of(self.environment.observation, first.shape)
        observed = [
            ("reset", first),
            *((f"step {t + 1}", a.next_obs) for t, a in enumerate(answers)),
        ]
        for what, obs in observed:
            if not np.isfinite(obs.astype(np.float64)).all():
                yield f"FAIL an observation of {what} is NaN or infinite"
            breach = bounds and bounds.breach(obs)
            if breach:
                yield f"FAIL an observation of {what} is out of range: {breach.words}"
        for t, answer in enumerate(answers):
            if not np.isfinite(answer.reward).all():
                yield f"FAIL the reward of step {t + 1} is NaN or infinite"

    def _episodes(self) -> Iterator[str]:
        _, answers = self._play(range(NUM_ENVS), self.steps)
        ends = 0
        for t, answer in enumerate(answers):
            both = answer.terminated & answer.truncated
            if both.any():
                yield f"FAIL step {t + 1} is both terminated and truncated"
            done = answer.terminated | answer.truncated
            done = done.reshape(NUM_ENVS, -1).all(1)
            ends += int(done.sum())
            if answer.mask is None:
                pairs = list(zip(answer.obs, answer.next_obs, strict=True))
                same = np.array([np.array_equal(*pair) for pair in pairs])
                similar = np.array([self._agree(*pair) for pair in pairs])
                if (same & done).any():
                    yield (
                        f"FAIL an episode ends at step {t + 1}, but no new one starts: `obs` is "
                        "still its last observation"
                    )
                if (~similar & ~done).any():
                    yield f"FAIL `obs` and `next_obs` differ at step {t + 1}, where no episode ends"
        if not ends:
            yield f"note no episode ended in {self.steps} steps; try more with --steps"

    def _determinism(self) -> Iterator[str]:
        steps = min(self.steps, 200)
        one, again = self._play((1, 2, 3), steps), self._play((1, 2, 3), steps)
        difference = _first_difference(one, again)
        if difference:
            yield f"FAIL the same seeds and actions give a different {difference.text}"
        other = self._play((4, 5, 6), steps)
        if not _first_difference(one, other):
            yield "note different seeds give the same episodes"

    def _independence(self) -> Iterator[str]:
        steps = min(self.steps, 200)
        if not getattr(self.environment, "draws_apart", True):
            yield (
                "note environments of a batch draw random numbers together: results depend on how "
                "they are spread over workers"
            )
            return
        together = self._play((1, 2, 3), steps)
        alone = self._play((2,), steps, rows=[1])
        row = (together[0][1:2], [_row(answer, 1) for answer in together[1]])
        difference = _first_difference(row, alone)
        if difference and self._agree(*difference.values):
            yield f"note XLA rounds {difference.text} differently when others share its batch"
        elif difference:
            text = f"{difference.text} when others share its batch"
            yield f"FAIL an environment gives a different {text}"

    def _agree(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Compares two answers; compiled programs may round in more than one way."""
        if isinstance(self.environment, HostEnvironment) or a.dtype.kind != "f":
            return np.array_equal(a, b)
        return np.allclose(a, b, rtol=1e-4, atol=1e-5)


def sample(space: Space, rng: np.random.Generator, count: int) -> np.ndarray:
    """Random actions; unbounded ones are drawn from a normal distribution."""
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, count).astype(space.dtype)
    if isinstance(space, MultiDiscrete):
        return rng.integers(0, space.counts, (count, len(space.counts))).astype(space.dtype)
    low, high = (bound.astype(np.float64) for bound in space.bounds)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = rng.uniform(
        np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), (count, *space.shape)
    )
    return np.where(bounded, uniform, rng.normal(size=uniform.shape)).astype(space.dtype)


def _row(answer: HostStep, k: int) -> HostStep:
    return HostStep(*(None if leaf is None else leaf[k : k + 1] for leaf in answer))  # pyright: ignore[reportArgumentType]


Episode = tuple[np.ndarray, list[HostStep]]


class Mismatch(NamedTuple):
    """The first difference between two episodes."""

    text: str
    values: tuple[np.ndarray, np.ndarray]


def _first_difference(a: Episode, b: Episode) -> Mismatch | None:
    if not np.array_equal(a[0], b[0]):
        return Mismatch("first observation", (a[0], b[0]))
    for t, (x, y) in enumerate(zip(a[1], b[1], strict=True)):
        for name in HostStep._fields:
            left, right = getattr(x, name), getattr(y, name)
            if left is not None and not np.array_equal(left, right):
                return Mismatch(f"{name} at step {t + 1}", (left, right))
    return None
