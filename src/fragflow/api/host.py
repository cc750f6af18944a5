"""Environments that are not JAX programs: stepped on the host, many at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from fragflow._jax import host_call, host_program
from fragflow.api.environment import Timestep, num_agents_of
from fragflow.api.spaces import Space, space_types


class HostStep(NamedTuple):
    """A batch of environments' answers; the environment axis comes first."""

    obs: Any
    """act on this next; the first observation of the new episode where one ended"""
    next_obs: Any
    """the true successor; differs from `obs` where an episode ended"""
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    mask: np.ndarray | None = None
    """False where nothing happened: a step that starts an episode, or an agent that had ended"""


class HostBatch(Protocol):
    """Some environments of one kind. Episodes that end are followed by new ones."""

    def reset(self, seeds: np.ndarray) -> Any:
        """Starts an episode in every environment and returns observations; seeds are `[N]`."""
        ...

    def step(self, action: np.ndarray) -> HostStep: ...
    def close(self) -> None: ...


@runtime_checkable
class HostEnvironment(Protocol):
    """A kind of environment that runs on the host; with several agents, see `Environment`."""

    @property
    def name(self) -> str: ...
    @property
    def observation(self) -> Space: ...
    @property
    def action(self) -> Space: ...

    @property
    def has_mask(self) -> bool:
        """True if answers have a `mask`: some steps only start episodes, or agents end early."""
        ...

    @property
    def draws_apart(self) -> bool:
        """True if an environment's behaviour depends on its own seed and actions alone.

        If not, results depend on how environments are spread over workers, and the run says so.
        """
        ...

    def open(self, ids: Sequence[int]) -> HostBatch:
        """The environments with these global indices."""
        ...


class AsyncBatch(HostBatch, Protocol):
    """Environments that answer one by one, so that the first can go on before the last."""

    def send(self, rows: np.ndarray, action: np.ndarray) -> None:
        """Starts a step in environments that have answered.

        `rows`, `[R]`, are their numbers within the batch.
        """
        ...

    def receive(self, count: int) -> tuple[np.ndarray, HostStep]:
        """Waits for `count` answers; returns their rows' numbers, in order, and the answers."""
        ...


def answers_one_by_one(environment: HostEnvironment) -> bool:
    """True if `environment` has `open_one_by_one(ids)`, which opens an `AsyncBatch`."""
    return getattr(environment, "answers_one_by_one", False)


class CompiledBatch(HostBatch, Protocol):
    """Environments in C++ that a compiled program on the CPU can step by itself."""

    def compiled_step(self, action: jax.Array) -> Timestep:
        """`step` as a traced function; `reset` must come before."""
        ...


def has_compiled_step(environment: HostEnvironment) -> bool:
    """True if the batches that `environment` opens are `CompiledBatch`es."""
    return getattr(environment, "compiles", False)


class Host:
    """An environment on the host as a traced program sees it: a name, and types of results."""

    def __init__(self, environment: HostEnvironment, is_compiled: bool = False):
        self.environment = environment
        self.is_compiled = is_compiled
        """steps are made by the compiled program itself"""
        self.pool: Any = None
        """answers calls where nothing is traced (the eager runtime), or steps are compiled"""

    @property
    def name(self) -> str:
        return self.environment.name

    def reset(self, raw_keys: jax.Array) -> Any:
        """Observations of new episodes."""
        leaves = host_call(self, "reset", raw_keys)
        return jax.tree.unflatten(self._structure(), leaves)

    def step(
        self, ticket: jax.Array, record: jax.Array, action: Any
    ) -> tuple[jax.Array, jax.Array, Timestep]:
        """The next ticket and record, and what the environments answered.

        A ticket is a step's number: an environment on the host cannot go back to an old one.
        """
        results = host_call(self, "step", ticket, record, *jax.tree.leaves(action))
        ticket, record, *leaves = results
        return ticket, record, self._timestep(leaves)

    def compiled_step(self, ticket: jax.Array, action: Any) -> tuple[jax.Array, Timestep]:
        """`step` within a compiled program, which keeps the record itself."""
        ticket, *leaves = host_program(self, ticket, *jax.tree.leaves(action))
        return ticket, self._timestep(leaves)

    def compiled_results(self, *args: jax.Array) -> list[jax.Array]:
        """The results of `compiled_step`, traced when the program around it is compiled."""
        return self._open_pool("compiled_step").compiled_step(*args)

    def result_types(self, method: str) -> list[jax.ShapeDtypeStruct]:
        """The types of a call's results for one environment."""
        count = num_agents_of(self.environment)
        agents = () if count is None else (count,)
        types = jax.tree.leaves(space_types(self.environment.observation))
        obs = [jax.ShapeDtypeStruct((*agents, *t.shape), t.dtype) for t in types]
        if method == "reset":
            return obs
        flag = jax.ShapeDtypeStruct(agents, np.bool_)
        record = jax.ShapeDtypeStruct((5,), np.float32)
        return [
            jax.ShapeDtypeStruct((), np.int32),
            *([record] if method == "step" else []),
            *obs,
            *obs,
            jax.ShapeDtypeStruct(agents, np.float32),
            flag,
            flag,
            *([flag] if self.environment.has_mask else []),
        ]

    def result_names(self, method: str) -> list[str]:
        """The names of a call's results."""
        if method == "reset":
            return ["obs"]
        return ["ticket", "record", *HostStep._fields]

    def call(self, method: str, *args: np.ndarray) -> Sequence[np.ndarray]:
        """Carries out a call where nothing is traced."""
        return self._open_pool(method).call(method, *args)

    def _open_pool(self, method: str) -> Any:
        if self.pool is None:
            raise RuntimeError(f"{self.name} is not open: {method} was called outside of a run")
        return self.pool

    def _timestep(self, leaves: Sequence[jax.Array]) -> Timestep:
        structure = self._structure()
        count = structure.num_leaves
        obs = jax.tree.unflatten(structure, leaves[:count])
        next_obs = jax.tree.unflatten(structure, leaves[count : 2 * count])
        return Timestep(obs, next_obs, *leaves[2 * count :])

    def _structure(self) -> Any:
        return jax.tree.structure(space_types(self.environment.observation))
