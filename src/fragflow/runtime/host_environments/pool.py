"""Pools of environments on the host: opens, steps, checks and closes them for a run."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax

from fragflow.api.environment import teams_of
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import Host, HostBatch, HostEnvironment, HostStep, has_compiled_step
from fragflow.error_owner import defined_at, users_frame, words_of
from fragflow.errors import EnvironmentFault, FragflowError
from fragflow.graph.analyses.replaceable import host_of
from fragflow.graph.ir import FDG
from fragflow.policies.policy import Deployment, Policy
from fragflow.runtime.host_environments.observation_bounds import Range


class AnsweringPool(Protocol):
    """Environments on the host, wherever they are, asked for their first observations."""

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]: ...


class WorkerPool(Protocol):
    """The environments of one worker, in its process."""

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]: ...
    def waiting(self) -> contextlib.AbstractContextManager[None]: ...
    def stuck(self, seconds: float) -> EnvironmentFault | None: ...
    def close(self) -> None: ...


def open_pools(fdg: FDG, workers: int = 1) -> dict[str, list["HostPool"]]:
    """Opens the environments of each replica, by fragment; one pool serves a group.

    `workers` is the number of workers that run this graph, each with its own environments.
    """
    pools: dict[str, list[HostPool]] = {}
    try:
        for name, fragment in fdg.fragments.items():
            host = host_of(fragment)
            if host is None:
                continue
            count = 1 if fragment.group else fragment.replicas
            size = fdg.program.num_envs // count
            pools[name] = []
            for r in range(count * workers):
                ids = range(r * size, (r + 1) * size)
                pools[name].append(HostPool(host, ids, one_by_one=fragment.first is not None))
    except BaseException:
        close_pools(pools)
        raise
    return pools


def as_placed(
    environment: AnyEnvironment, policy: Policy, deployment: Deployment
) -> AnyEnvironment | Host:
    """Wraps `environment` to be stepped by the compiled program, if the policy allows this."""
    if not isinstance(environment, HostEnvironment) or not has_compiled_step(environment):
        return environment
    on_cpu = deployment.platform("accelerator") == "cpu"
    return Host(environment, is_compiled=True) if policy.is_one_program and on_cpu else environment


def close_pools(pools: Mapping[str, Sequence[WorkerPool]]) -> None:
    """Closes all pools, even if closing one of them fails."""
    for group in pools.values():
        for pool in group:
            with contextlib.suppress(Exception):
                pool.close()


def answer_by(pools: Mapping[str, Sequence[AnsweringPool]]) -> Callable[..., Sequence[np.ndarray]]:
    """Makes a function that answers calls for all environments at once, for the first state."""

    def answer(method: str, *args: Any) -> Sequence[np.ndarray]:
        (group,) = pools.values()
        parts = [np.split(np.asarray(a), len(group)) for a in args]
        answers = [pool.call(method, *(p[r] for p in parts)) for r, pool in enumerate(group)]
        return [np.concatenate(leaves) for leaves in zip(*answers, strict=True)]

    return answer


class HostPool:
    """The environments of one worker, and the records of their episodes."""

    def __init__(self, host: Host, ids: Sequence[int], one_by_one: bool = False):
        """With `one_by_one`, environments answer one by one: see `send` and `receive`."""
        self.ids = tuple(ids)
        self._host = host
        self._environment = host.environment
        self._steps = 0
        if host.is_compiled:
            host.pool = self
        try:
            environment: Any = host.environment
            opened = environment.open_one_by_one if one_by_one else environment.open
            self.batch: Any = opened(self.ids)
        except Exception as error:
            raise self._fault("its start", error) from error
        self.busy_since: float | None = None
        """start of the call that is under way, if any"""
        self._expected = functools.cache(self._expectations)
        self._first_team = teams_of(host.environment)[0]
        self._action_type = np.dtype(host.environment.action.dtype)

    def call(self, method: str, *args: Any) -> Sequence[np.ndarray]:
        """Answers a call of the traced program."""
        with self.waiting():
            return self._reset(*args) if method == "reset" else self._step(*args)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Notes the time of a call, also if a compiled program steps the environments itself."""
        self.busy_since = time.monotonic()
        try:
            yield
        finally:
            self.busy_since = None

    def compiled_step(self, ticket: jax.Array, action: jax.Array) -> list[jax.Array]:
        """The compiled form of a step; its ticket tells XLA that it follows the step before.

        Nothing is checked here: NaN will show in the metrics.
        """
        ticket, action = lax.optimization_barrier((ticket, action))
        step = self.batch.compiled_step(action)
        return lax.optimization_barrier([ticket + 1, *jax.tree.leaves(tuple(step))])

    def stuck(self, seconds: float) -> EnvironmentFault | None:
        """An error if a call has taken longer than `seconds`."""
        since = self.busy_since
        if since is None or time.monotonic() - since < seconds:
            return None
        return EnvironmentFault(
            f"{self._environment.name}: environments {self.ids[0]} to {self.ids[-1]} have not "
            f"answered for {seconds:.0f} seconds, at step {self._steps}"
        )

    def close(self) -> None:
        """Closes the environments, and ends all that they have started."""
        if self._host.is_compiled and self.busy_since is not None:
            return  # a compiled program still uses them: they end with the process
        self.batch.close()

    def _reset(self, raw_keys: Any) -> Sequence[np.ndarray]:
        raw = np.asarray(raw_keys).astype(np.uint64)
        seeds = ((raw[:, 0] ^ (raw[:, 1] << np.uint64(7))) & np.uint64(0x7FFFFFFF)).astype(np.int64)
        self._steps = 0
        self._made = np.zeros(len(self.ids), np.int32)
        try:
            obs = self.batch.reset(seeds)
        except Exception as error:
            raise self._fault("reset", error) from error
        leaves = jax.tree.leaves(obs)
        self._check("reset", leaves, observations=1)
        return leaves

    def _step(self, ticket: Any, record: Any, action: Any) -> Sequence[np.ndarray]:
        ticket = np.asarray(ticket)
        self._refuse_old(ticket[0], self._steps)
        self._steps += 1
        try:
            step = self.batch.step(np.asarray(action, self._action_type))
        except Exception as error:
            raise self._fault("step", error) from error
        leaves = self._leaves(step)
        self._check("step", leaves, observations=2)
        return [ticket + np.int32(1), self._recorded(np.asarray(record), step), *leaves]

    def send(self, rows: np.ndarray, ticket: np.ndarray, action: np.ndarray) -> None:
        """Starts a step in some environments that answer one by one."""
        made = self._made[rows]
        for wrong in np.flatnonzero(ticket != made):
            self._refuse_old(ticket[wrong], made[wrong])
        self._made[rows] += 1
        self._steps = max(self._steps, int(made.max()) + 1)
        try:
            self.batch.send(rows, np.asarray(action, self._action_type))
        except Exception as error:
            raise self._fault("step", error) from error

    def receive(self, count: int) -> tuple[np.ndarray, HostStep]:
        """Waits for the first `count` answers; returns their rows and the answers."""
        with self.waiting():
            try:
                rows, step = self.batch.receive(count)
            except Exception as error:
                raise self._fault("step", error) from error
        self._check("step", self._leaves(step), observations=2, rows=rows)
        return rows, step

    def answered(
        self, ticket: np.ndarray, record: np.ndarray, step: HostStep
    ) -> Sequence[np.ndarray]:
        """The results of a call of the traced program, for some environments."""
        return [
            ticket + np.int32(1),
            self._recorded(record, step),
            *jax.tree.leaves(tuple(step)),
        ]

    def _refuse_old(self, ticket: int, made: int) -> None:
        if ticket != made:
            raise EnvironmentFault(
                f"{self._environment.name} runs on the host and cannot go back: it has made "
                f"{made} steps, but env.step got a state after {ticket}. Use every state "
                "that env.step returns only once."
            )

    def _recorded(self, record: np.ndarray, step: HostStep) -> np.ndarray:
        record = record.copy()
        done = step.terminated | step.truncated
        if done.ndim == 1:
            record[:, 0] += step.reward
            record[:, 1] += 1.0 if step.mask is None else step.mask
        else:
            record[:, 0] += step.reward[:, : self._first_team].mean(1)
            record[:, 1] += 1.0
            done = done.all(1)
        if done.any():
            record[done, 2] += 1.0
            record[done, 3:5] += record[done, 0:2]
            record[done, 0:2] = 0.0
        return record

    def _expectations(
        self, method: str, count: int
    ) -> tuple[Sequence[jax.ShapeDtypeStruct], Range | None]:
        """The types of what `count` environments answer, and the range of their observations."""
        types = [
            jax.ShapeDtypeStruct((count, *t.shape), t.dtype)
            for t in self._host.result_types(method)
        ]
        types = types if method == "reset" else types[2:]
        return types, Range.of(self._environment.observation, types[0].shape)

    def _leaves(self, step: HostStep) -> list[Any]:
        if not isinstance(step, HostStep):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvironmentFault(
                f"{self._environment.name} returned {type(step).__name__} from step at step "
                f"{self._steps}: expected fragflow.HostStep{defined_at(self.batch.step)}"
            )
        return jax.tree.leaves(tuple(step))

    def _check(
        self,
        method: str,
        leaves: Sequence[Any],
        observations: int,
        rows: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        """Refuses invalid answers of environments; the first leaves are observations.

        `rows` are the environments that answered, if not all did.
        """
        ids = self.ids if rows is None else [self.ids[row] for row in rows]
        types, bounds = self._expected(method, len(ids))
        if len(leaves) != len(types):
            raise EnvironmentFault(
                f"{self._environment.name} returned {len(leaves)} arrays from {method} at step "
                f"{self._steps}: expected {len(types)}{self._defined(method)}"
            )
        before = None
        for k, (leaf, expected) in enumerate(zip(leaves, types, strict=True)):
            if leaf is before:
                continue  # no episode ended: the next observation is the true successor
            before = leaf
            if not hasattr(leaf, "dtype"):
                raise EnvironmentFault(
                    f"{self._environment.name} returned {type(leaf).__name__} from {method} at "
                    f"step {self._steps}: expected an array, {expected.dtype}"
                    f"{list(expected.shape)}{self._defined(method)}"
                )
            if leaf.shape != expected.shape or leaf.dtype != expected.dtype:
                raise EnvironmentFault(
                    f"{self._environment.name} returned {leaf.dtype}{list(leaf.shape)} from "
                    f"{method} at step {self._steps}: expected {expected.dtype}"
                    f"{list(expected.shape)}{self._defined(method)}"
                )
            if k < observations and bounds is not None:
                if not bounds.holds(leaf):
                    self._refuse_non_finite(method, leaf, ids)
                    self._refuse_out_of_range(method, leaf, bounds, ids)
            elif leaf.dtype == np.float32 and np.count_nonzero(np.isfinite(leaf)) != leaf.size:
                self._refuse_non_finite(method, leaf, ids)

    def _defined(self, method: str) -> str:
        """The place in the user's code that defines `reset` or `step`."""
        return defined_at(getattr(self.batch, method, None))

    def _refuse_non_finite(self, method: str, leaf: np.ndarray, ids: Sequence[int]) -> None:
        bad = np.flatnonzero(~np.isfinite(leaf).reshape(len(leaf), -1).all(1))
        if len(bad):
            raise EnvironmentFault(
                f"{self._environment.name}: environment {ids[bad[0]]} returned NaN or "
                f"infinity from {method} at step {self._steps}{self._defined(method)}"
            )

    def _refuse_out_of_range(
        self, method: str, leaf: np.ndarray, bounds: Range, ids: Sequence[int]
    ) -> None:
        breach = bounds.breach(leaf)
        if breach is not None:
            raise EnvironmentFault(
                f"{self._environment.name}: environment {ids[breach.row]} returned an "
                f"observation from {method} at step {self._steps} that is out of range: "
                f"{breach.words}. {breach.fix}"
            )

    def _fault(self, method: str, error: Exception) -> FragflowError:
        if isinstance(error, EnvironmentFault):
            return EnvironmentFault(f"{error}, at step {self._steps}")
        if isinstance(error, FragflowError):
            return error
        index = getattr(error, "environment_index", None)
        if index is not None:
            which, last = f"environment {self.ids[index]}", str(error)
        else:
            which, last = "an environment", words_of(error)
        frame = users_frame(error)
        where = "" if frame is None else f" ({frame.place})"
        return EnvironmentFault(
            f"{self._environment.name}: {which} failed in {method} at step {self._steps}: {last}"
            f"{where}"
        )


class HostPlayer:
    """Environments on the host, played from Python with the checks that every run makes."""

    def __init__(self, environment: HostEnvironment, count: int, first: int = 0):
        """`first` is the index of the first environment."""
        self._pool = HostPool(Host(environment), range(first, first + count))
        self._count = count
        self._record = np.zeros((count, 5), np.float32)

    @property
    def batch(self) -> HostBatch:
        """The batch that the environment's `open` returned."""
        return self._pool.batch

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """First observations; seeds are below 2^31."""
        self._ticket = np.zeros(self._count, np.int32)
        (obs,) = self._pool.call("reset", np.array([[seed, 0] for seed in seeds], np.uint32))
        return obs

    def step(self, action: np.ndarray) -> HostStep:
        self._ticket, self._record, *answer = self._pool.call(
            "step", self._ticket, self._record, action
        )
        return HostStep(*answer)

    def close(self) -> None:
        self._pool.close()
