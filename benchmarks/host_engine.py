"""What benchmarks run of fragflow on the host: PPO, and its parts written by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fragflow import ops, run
from fragflow.algorithms.ppo import PPO
from fragflow.api.environment_batch import Environments
from fragflow.api.spaces import Discrete, Space
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies.named import named_policy
from fragflow.policies.policy import Deployment
from fragflow.remote.launch.launcher import Launcher
from fragflow.runtime.programs.devices import compute_in_calling_thread


class HostEngine:
    """PPO under single-learner-coarse, built as `fragflow.run.run` builds it.

    Its workers are threads, or processes of the launcher's.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        num_envs: int,
        rollout: int,
        settings: Mapping[str, Any],
        workers: int = 1,
        implementations: Mapping[str, str] | None = None,
        launcher: Callable[[], Launcher] | None = None,
    ):
        compute_in_calling_thread()
        self.ppo = PPO(rollout_length=rollout, **settings)
        self.environment = make_environment(name, **arguments)
        self.num_envs, self.rollout = num_envs, rollout
        experiment = run.Experiment(
            algorithm=self.ppo,
            environment=self.environment,
            num_envs=num_envs,
            total_steps=2**30,
        )
        source = tracer(self.ppo, self.environment, num_envs)
        fdg = cut(source, named_policy("single-learner-coarse"), Deployment(workers=workers))
        self._ready = run._prepare_local(
            experiment,
            source,
            fdg,
            run.Silent(),
            is_deterministic=False,
            asynchronous={},
            launcher=launcher,
            implementations=implementations,
            stall_timeout_seconds=120.0,
        )
        self._done = 0

    def advance(self, iterations: int) -> None:
        self._ready.engine.run(self._done, iterations)
        self._done += iterations

    def close(self) -> None:
        self._ready.engine.close()

    def parts(self) -> dict[str, Callable[[], object]]:
        """One iteration's stepping, inference and learning, each by itself."""
        pool = self.environment.open(range(self.num_envs))
        obs = pool.reset(np.arange(self.num_envs))
        rng = np.random.default_rng(0)
        actions = _some_actions(rng, self.environment.action, self.num_envs)
        state = self._ready.state()
        key = jax.random.key(0)
        ids = jnp.arange(self.num_envs, dtype=jnp.int32)
        keys = Environments(self.environment, ids, self.num_envs).keys(key, self.rollout)
        actor, obs_stats = state.params["actor"], state.obs_stats

        @jax.jit
        def act(obs: Any, t: Any) -> Any:
            return self.ppo.act(actor, obs_stats, obs, keys[t], self.environment.action)

        rows = (self.rollout, self.num_envs)
        # For bytes as large as they get, for other numbers a few units.
        top = 256 if obs.dtype == np.uint8 else 3
        noise = rng.uniform(0, top, (*rows, *obs.shape[1:])).astype(obs.dtype)
        flags = np.zeros(rows, np.bool_)
        rollout = ops.Rollout(
            obs=noise,
            action=np.broadcast_to(actions, (self.rollout, *actions.shape)),
            log_prob=np.zeros(rows, np.float32),
            next_obs=noise,
            reward=np.ones(rows, np.float32),
            terminated=flags,
            truncated=flags,
            mask=~flags,
        )
        learn = jax.jit(self._learning(key)).lower(state, rollout).compile()

        def step() -> None:
            for _ in range(self.rollout):
                pool.step(actions)

        def infer() -> None:
            for t in range(self.rollout):
                np.asarray(act(obs, t)[1])

        return {
            "raw stepping": step,
            "inference": infer,
            "learning": lambda: jax.block_until_ready(learn(state, rollout)),
        }

    def _learning(self, key: jax.Array) -> Callable[[Any, ops.Rollout], Any]:
        """The learner's half of an iteration as anyone would write it for `jax.jit`."""
        ppo = self.ppo

        def learn(state: Any, rollout: ops.Rollout) -> Any:
            params, scale = state.params, state.return_scale
            obs, value, next_value = ppo.values(params["critic"], state.obs_stats, rollout)
            advantage, target, mean_square = ppo.advantages(rollout, value, next_value, scale)
            batch = ops.PPOBatch(
                obs, rollout.action, rollout.log_prob, advantage, target, rollout.mask, value
            )

            def minibatch(learner: ops.Learner, time_idx: jax.Array) -> tuple[ops.Learner, Any]:
                grads, info = ppo.gradient(learner.params, batch, time_idx)
                learner, norm = ppo.update(learner, grads, jnp.float32(0.0))
                return learner, (info, norm)

            time_idx = ops.time_minibatches(key, self.rollout, ppo.epochs, ppo.minibatches)
            learner, info = lax.scan(minibatch, ops.Learner(params, state.optimiser), time_idx)
            return learner, info, mean_square

        return learn


def _some_actions(rng: np.random.Generator, space: Space, count: int) -> np.ndarray:
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=count).astype(np.int32)
    return rng.uniform(-1.0, 1.0, (count, *space.shape)).astype(np.float32)
