"""What the benchmarks run of fragflow, built as `fragflow.run.run` builds it."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.tracing.trace import (
    env_steps_per_iteration,
    init_function,
    iteration_function,
    tracer,
)
from fragflow.policies.named import named_policy
from fragflow.policies.policy import Deployment
from fragflow.runtime import run_chunks
from fragflow.runtime.drivers.thread_workers import ThreadWorkers
from fragflow.runtime.drivers.worker import Worker
from fragflow.runtime.lockstep import LockstepRuntime
from fragflow.runtime.observer import Results
from fragflow.runtime.planning.plan import make_plan
from fragflow.runtime.programs.compile import ROOM
from fragflow.runtime.programs.devices import accelerator
from fragflow.runtime.programs.prepare_workers import Assembly

ROLLOUT = 128
ITERATIONS = 1 << 16
"""what the learning rate is annealed over: more than any benchmark runs"""


@dataclass
class Task:
    """PPO on CartPole-v1 or what is given, with a first state and what `run` hands to programs."""

    num_envs: int
    algorithm: Any = field(
        default_factory=lambda: PPO(rollout_length=ROLLOUT, epochs=4, minibatches=4)
    )
    env: Any = "CartPole-v1"

    def __post_init__(self) -> None:
        is_name = isinstance(self.env, str)
        self.environment = make_environment(self.env) if is_name else self.env
        self.steps = self.algorithm.rollout_length * self.num_envs
        self.sources = {
            "env_ids": np.arange(self.num_envs, dtype=np.int32),
            "run_key": np.asarray(jax.random.key_data(jax.random.key(0))),
            "steps_per_iteration": np.int32(self.steps),
            "total_iterations": np.int32(ITERATIONS),
        }
        init = init_function(self.algorithm, self.environment, self.num_envs)
        self.state: Any = jax.jit(init)(self.sources["run_key"], self.sources["env_ids"])

    def runtime(self, policy: str, implementations: Mapping[str, str] | None = None) -> "Running":
        """Traced, cut and compiled; one worker."""
        source = tracer(self.algorithm, self.environment, self.num_envs)
        assert env_steps_per_iteration(source.at(source.extent), self.num_envs) == self.steps
        fdg = cut(source, named_policy(policy), Deployment(workers=1, accelerator=accelerator()))
        names = (carry.inside for carry in fdg.program.loop.carries)
        leaves = dict(zip(names, jax.tree.leaves(self.state), strict=True))
        assembly = Assembly(
            fdg, make_plan(fdg), leaves, self.sources, implementations=implementations
        )
        workers = ThreadWorkers(fdg)
        workers.start(assembly)
        return Running(LockstepRuntime(fdg, workers), fdg, workers)

    def by_hand(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The same loop as anyone would write it for `jax.jit`, and its arguments."""
        iteration = iteration_function(self.algorithm, self.environment, self.num_envs)

        def train(state: Any, start: Any, count: Any, *sources: Any) -> tuple[Any, Any]:
            types = jax.eval_shape(iteration, state, start, *sources)[1]
            room = jax.tree.map(lambda t: jnp.zeros((ROOM, *t.shape), t.dtype), types)

            def body(k: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                state, kept = carry
                state, metrics = iteration(state, start + k, *sources)
                kept = jax.tree.map(
                    lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, k, 0),
                    kept,
                    metrics,
                )
                return state, kept

            return lax.fori_loop(0, count, body, (state, room))

        return train, (self.state, np.int32(0), np.int32(1), *self.sources.values())


@dataclass(frozen=True)
class Running:
    """A runtime with everything compiled, and the workers that it drives."""

    runtime: LockstepRuntime
    fdg: FDG
    worker_set: ThreadWorkers

    @property
    def workers(self) -> list[Worker]:
        return [w for driver in self.worker_set.drivers for w in driver.workers.values()]

    def run(self, start: int, count: int) -> list[Results]:
        return self.runtime.run(start, count)

    def state(self) -> dict[str, np.ndarray]:
        return self.runtime.state()

    def close(self) -> None:
        self.runtime.close()


class Driver:
    """Runs iterations in chunks like `run` does: as many as fit into its reporting interval."""

    def __init__(self, runtime: Running):
        self.runtime = runtime
        self._done = 0
        self.chunk = 1
        for _ in range(2):
            self.advance(1)
        began = time.perf_counter()
        self.advance(1)
        wanted = int(run_chunks.CHUNK_SECONDS / (time.perf_counter() - began))
        self.chunk = max(1, min(wanted, run_chunks.MAX_CHUNK))

    def advance(self, iterations: int) -> None:
        end = self._done + iterations
        while self._done < end:
            count = min(self.chunk, end - self._done)
            self.runtime.run(self._done, count)
            self._done += count

    def hlo(self) -> str:
        """The optimised text of the one program that gpu-only is."""
        (worker,) = self.runtime.workers
        (program,) = worker.programs
        return program.call.as_text()  # pyright: ignore[reportFunctionMemberAccess]


class HandDriver:
    """The hand-written loop in chunks of the same size, its metrics read after each."""

    def __init__(self, task: Task, chunk: int):
        train, arguments = task.by_hand()
        self.compiled = jax.jit(train).lower(*arguments).compile()
        self._state, _, _, *self._sources = jax.device_put(arguments)
        self._done = 0
        self.chunk = chunk

    def advance(self, iterations: int) -> None:
        end = self._done + iterations
        while self._done < end:
            count = min(self.chunk, end - self._done)
            self._state, metrics = self.compiled(
                self._state, np.int32(self._done), np.int32(count), *self._sources
            )
            jax.block_until_ready(self._state)
            jax.tree.map(np.asarray, metrics)
            self._done += count


def opcodes(hlo: str) -> Counter[str]:
    """How often each instruction occurs in the text of an optimised program."""
    return Counter(re.findall(r"^\s+(?:ROOT )?%?\S+ = .*? ([a-z][\w-]*)\(", hlo, re.MULTILINE))


def versions() -> dict[str, str]:
    packages = ("fragflow", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy")
    return {name: _version(name) for name in packages}


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return "not installed"
