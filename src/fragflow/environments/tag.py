"""Tag: taggers hunt runners on a square, for a few agents or a thousand.

In the manner of WarpDrive's game of the same name (Lan et al. 2022). The square grows with the
number of agents, so that it is as crowded for a thousand as for five, and every agent sees its
nearest opponents only: the cost of an agent hardly depends on their number. A tagger that walks at
random tags hardly anyone; one that runs after the nearest runner tags many, even if they flee.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow.api.environment import Step
from fragflow.api.spaces import Box
from fragflow.errors import ConfigError, unknown

NAME = "Tag"
MAX_AGENTS = 1024
"""an agent's index is kept in ten bits of its distance"""
AREA = 4.0
"""of the square, per agent"""
REACH = 0.2
"""at which a tagger tags a runner"""
TAGGER_SPEED, RUNNER_SPEED = 0.20, 0.12
"""per step, at most"""
AGILITY = 0.4
"""share of its velocity that an agent can change in a step"""
OWN, PER_NEIGHBOUR = 6, 5
"""numbers that an observation has of the agent itself, and of each neighbour"""
FARTHEST = np.int32(np.iinfo(np.int32).max)


class TagState(NamedTuple):
    """Of one game."""

    position: jax.Array
    """`[A, 2]`, from 0 to the side of the square"""
    velocity: jax.Array
    alive: jax.Array
    """`[A]`: False for runners that were tagged"""
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class TagGame:
    """One game; agents are in the order of teams, taggers first.

    An action is where to accelerate, two numbers from -1 to 1. A tagger is rewarded with 1 for each
    runner that it tags, a runner with -1 when it is tagged, and that is its end. A game is over
    when no runner is left, or cut after `length` steps.
    """

    taggers: int
    runners: int
    neighbours: int
    length: int

    name = NAME
    action = Box(shape=(2,), low=-1.0, high=1.0)

    @property
    def num_agents(self) -> int:
        return self.taggers + self.runners

    @property
    def teams(self) -> tuple[int, ...]:
        return (self.taggers, self.runners)

    @property
    def observation(self) -> Box:
        return Box(shape=(OWN + PER_NEIGHBOUR * self.neighbours,))

    @property
    def side(self) -> float:
        """Of the square."""
        return math.sqrt(AREA * self.num_agents)

    def reset(self, key: jax.Array) -> tuple[TagState, jax.Array]:
        position = jax.random.uniform(key, (self.num_agents, 2), maxval=self.side)
        state = TagState(
            position=position,
            velocity=jnp.zeros_like(position),
            alive=jnp.ones(self.num_agents, bool),
            step=jnp.int32(0),
        )
        return state, self._observe(state, self._threats(position))

    def step(self, state: TagState, action: jax.Array, key: jax.Array) -> Step:
        del key  # nothing is left to chance
        velocity = self._velocity(state, action)
        position = jnp.clip(state.position + velocity, 0.0, self.side)
        # An agent that runs into a wall stops there.
        velocity = position - state.position
        threats = self._threats(position)
        tagged, catches = self._tags(threats[:, 0], state.alive[self.taggers :])
        alive = jnp.concatenate(
            [state.alive[: self.taggers], state.alive[self.taggers :] & ~tagged]
        )
        state_after = TagState(position, velocity, alive, state.step + 1)
        nobody_left = ~jnp.any(alive[self.taggers :])
        terminated = ~alive | nobody_left
        is_over = state_after.step >= self.length
        reward = jnp.concatenate([catches, jnp.where(tagged, -1.0, 0.0)])
        return Step(
            state_after,
            self._observe(state_after, threats),
            reward,
            terminated,
            ~terminated & is_over,
            mask=state.alive,
        )

    def _velocity(self, state: TagState, action: jax.Array) -> jax.Array:
        most = self._speed[:, None]
        wanted = (1.0 - AGILITY) * state.velocity + AGILITY * most * jnp.clip(action, -1.0, 1.0)
        speed = jnp.sqrt(jnp.sum(jnp.square(wanted), -1, keepdims=True))
        velocity = wanted * jnp.minimum(1.0, most / jnp.maximum(speed, 1e-6))
        return jnp.where(state.alive[:, None], velocity, 0.0)

    @property
    def _speed(self) -> jax.Array:
        return jnp.where(jnp.arange(self.num_agents) < self.taggers, TAGGER_SPEED, RUNNER_SPEED)

    def _threats(self, position: jax.Array) -> jax.Array:
        """The taggers nearest to each runner, packed: who tags, and what a runner sees."""
        taggers, runners = position[: self.taggers], position[self.taggers :]
        return nearest(runners, taggers, jnp.ones(self.taggers, bool), self.neighbours)

    def _tags(self, threat: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The runners that their nearest tagger tags now, and the number that each tagger tags."""
        tagged = (_distance_of(threat) < REACH**2) & alive
        by = _index_of(threat)
        mine = (by[None, :] == jnp.arange(self.taggers)[:, None]) & tagged[None, :]
        return tagged, jnp.sum(mine, -1, dtype=jnp.float32)

    def _observe(self, state: TagState, threats: jax.Array) -> jax.Array:
        """`[A, D]`: oneself, then the nearest opponents that are in the game, nearest first."""
        position, velocity, alive = state.position, state.velocity / TAGGER_SPEED, state.alive
        taggers, runners = position[: self.taggers], position[self.taggers :]
        targets = nearest(taggers, runners, alive[self.taggers :], self.neighbours)
        who = jnp.concatenate([_index_of(targets) + self.taggers, _index_of(threats)])
        there = jnp.concatenate([targets, threats]) < FARTHEST
        # Numbers of order one, however far the next opponent is.
        away = position[who] - position[:, None]
        away /= 1.0 + jnp.sqrt(jnp.sum(jnp.square(away), -1, keepdims=True))
        others = [away, velocity[who] - velocity[:, None], jnp.ones((*who.shape, 1))]
        seen = jnp.where(there[..., None], jnp.concatenate(others, -1), 0.0)
        left = jnp.broadcast_to(1.0 - state.step / self.length, (self.num_agents, 1))
        own = [2.0 * position / self.side - 1.0, velocity, alive[:, None].astype(float), left]
        seen = seen.reshape(self.num_agents, -1)
        return jnp.concatenate([*own, seen], -1).astype(jnp.float32)

    def draw(self, state: Any, size: int = 360) -> np.ndarray:
        """A picture of the game, `[size, size, 3]`: taggers red, runners blue, walls grey."""
        picture = np.full((size, size, 3), 250, np.uint8)
        picture[[0, -1]] = picture[:, [0, -1]] = 150
        scale = (size - 1) / self.side
        radius = max(3.0, REACH / 2 * scale)
        rows, columns = np.mgrid[:size, :size]
        for k in range(self.num_agents):
            if not state.alive[k]:
                continue
            x, y = np.asarray(state.position[k]) * scale
            low, high = int(max(0, y - radius)), int(min(size, y + radius + 2))
            left, right = int(max(0, x - radius)), int(min(size, x + radius + 2))
            box = (slice(low, high), slice(left, right))
            disc = (rows[box] - y) ** 2 + (columns[box] - x) ** 2 <= radius**2
            picture[box][disc] = (200, 40, 40) if k < self.taggers else (40, 80, 200)
        return picture


def nearest(position: jax.Array, others: jax.Array, there: jax.Array, count: int) -> jax.Array:
    """For each position the `count` nearest of the `others` that are there, packed, `[A, count]`.

    Squared distances are not negative, so that their bits are in the order of their values. The
    last ten are the other's index: one minimum gives both, and the next nearest is the smallest
    that is larger. Nothing of the size of all pairs is ever in memory.
    """

    def next_nearest(last: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        packed = _packed(_squared_distances(position, others))
        is_candidate = there[None, :] & (packed > last[:, None])
        found = jnp.min(jnp.where(is_candidate, packed, FARTHEST), -1)
        return found, found

    start = jnp.full(position.shape[0], -1, jnp.int32)
    _, found = lax.scan(next_nearest, start, None, length=count)
    return found.T


def _squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
    # Coordinate by coordinate: an axis of two would not fill a vector register.
    return jnp.square(a[:, None, 0] - b[None, :, 0]) + jnp.square(a[:, None, 1] - b[None, :, 1])


def _packed(distances: jax.Array) -> jax.Array:
    bits = lax.bitcast_convert_type(distances, jnp.int32)
    index = lax.broadcasted_iota(jnp.int32, distances.shape, distances.ndim - 1)
    return (bits & ~(MAX_AGENTS - 1)) | index


def _index_of(packed: jax.Array) -> jax.Array:
    return packed & (MAX_AGENTS - 1)


def _distance_of(packed: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(packed & ~(MAX_AGENTS - 1), jnp.float32)


def make(
    name: str,
    /,
    *,
    agents: int = 100,
    taggers: int | None = None,
    neighbours: int = 5,
    length: int = 100,
    **others: Any,
) -> TagGame:
    """The game with this many agents, a fifth of them taggers unless it is said otherwise."""
    if name != NAME:
        raise ConfigError(unknown("game", name, [NAME]))
    for other in others:
        known = ("agents", "taggers", "neighbours", "length")
        raise ConfigError(unknown(f"argument of {NAME}", other, known))
    for what, value in (("agents", agents), ("neighbours", neighbours), ("length", length)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{NAME}: {what} is {value!r}, expected a whole number from 1")
    if taggers is None:
        taggers = max(1, agents // 5)
    if not 2 <= agents <= MAX_AGENTS:
        raise ConfigError(f"{NAME}: agents is {agents}, expected from 2 to {MAX_AGENTS}")
    if not isinstance(taggers, int) or not 1 <= taggers < agents:
        raise ConfigError(
            f"{NAME}: taggers is {taggers!r}, expected from 1 to {agents - 1}: of {agents} agents "
            "at least one must hunt and one must run"
        )
    opponents = max(taggers, agents - taggers)
    if neighbours > opponents:
        raise ConfigError(
            f"{NAME}: neighbours is {neighbours}, but no agent has more than {opponents} "
            f"opponents: use neighbours={opponents} or more agents"
        )
    return TagGame(taggers, agents - taggers, neighbours, length)


def names() -> tuple[str, ...]:
    """Every environment that `make` knows."""
    return (NAME,)
