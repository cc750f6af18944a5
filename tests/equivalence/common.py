"""What equivalence tests share: a short run under a policy, and how its state is compared."""

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.api import Algorithm
from fragflow.environments import make_environment
from fragflow.policies import named_policy
from fragflow.run import Experiment, Outcome, run

ONE_LEARNER = ("single-learner-coarse", "single-learner-fine", "environments")
REPLICATED = ("multi-learner", "gpu-only", "central")


def graded(
    deployments: Iterable[tuple[str, int]], cases: Iterable[str] = (), *, workers: int = 2
) -> list[Any]:
    """Policies with numbers of workers, of which all but one are slow tests.

    With `cases`, each of them in front: the first is tried with all policies, the others often with
    the first only. What is tried often is compiled quickly, the slow tests as real runs are.
    """
    deployments = list(deployments)
    first_case, first_policy = next(iter(cases), ""), deployments[0][0]

    def marks(case: str, policy: str, count: int) -> pytest.MarkDecorator:
        is_often = count == workers and (case == first_case or policy == first_policy)
        return pytest.mark.quick if is_often else pytest.mark.slow

    if not cases:
        return [pytest.param(*d, marks=marks("", *d)) for d in deployments]
    return [pytest.param(case, *d, marks=marks(case, *d)) for case in cases for d in deployments]


def one_of_each(cases: Iterable[str], policies: Iterable[str]) -> list[Any]:
    """All pairs: each case, and each policy, is in one that is tried often; others are slow."""
    cases, policies = list(cases), list(policies)
    often = set(zip(cases, policies, strict=True))
    slow = pytest.mark.slow
    pairs = [(case, policy) for case in cases for policy in policies]
    return [pair if pair in often else pytest.param(*pair, marks=slow) for pair in pairs]


def train(*what: Any, **settings: int) -> Outcome:
    """A run of a few iterations: of an algorithm in an environment, under a policy, by workers.

    The algorithm has a `rollout_length`; the environment is a name or an object. What has run
    before, with the same optimisations, is kept.
    """
    is_quick = jax.config.read("jax_disable_most_optimizations")
    return _train(*what, is_quick, **settings)


@functools.cache
def _train(
    algorithm: Algorithm,
    env: Any,
    policy: str,
    workers: int,
    is_quick: bool,
    *,
    num_envs: int,
    iterations: int,
    learners: int = 1,
) -> Outcome:
    del is_quick
    steps: int = getattr(algorithm, "rollout_length")  # noqa: B009
    experiment = Experiment(
        algorithm=algorithm,
        environment=make_environment(env) if isinstance(env, str) else env,
        num_envs=num_envs,
        total_steps=iterations * steps * num_envs,
        seed=0,
    )
    return run(experiment, named_policy(policy), workers=workers, learners=learners)


def forget() -> None:
    """Frees the runs that are kept."""
    _train.cache_clear()


def assert_as_said(cut: Outcome, fused: Outcome) -> None:
    """The same bits; or, where a processor's kernels round differently, the run has said so."""
    if cut.start.equality == "bitwise":
        assert digest(cut.state) == digest(fused.state)
        assert [r.metrics for r in cut.rows] == [r.metrics for r in fused.rows]
    else:
        assert "may round differently in batches of this size" in cut.start.equality
        assert relative_error(cut.state.params, fused.state.params) < 1e-4


def digest(state: Any) -> str:
    """Of all bits of a state."""
    leaves = jax.tree.leaves(state)
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def relative_error(a: Any, b: Any, least: float = 0.0) -> float:
    """Largest difference of any leaf, relative to that leaf's size, which is `least` at least."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(x - y).max() / (max(np.abs(y).max(), least) or 1.0)) for x, y in pairs)
