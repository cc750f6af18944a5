"""Short runs, to be compared."""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fragflow.policies import named_policy, synchronisation
from fragflow.run import Experiment, Outcome, run
from graph.toy import Drift

COARSE = "single-learner-coarse"


def train(
    algorithm: Any,
    policy: str = COARSE,
    *,
    environment: Any = None,
    workers: int = 2,
    sync: str = "lockstep",
    runtime: Any = "processes",
    iterations: int = 3,
    **more: Any,
) -> Outcome:
    length = getattr(algorithm, "rollout_length", 4)
    experiment = Experiment(
        algorithm=algorithm,
        environment=environment or Drift(),
        num_envs=8,
        total_steps=iterations * 8 * length,
        seed=7,
    )
    chosen = replace(named_policy(policy), synchronisation=synchronisation(sync))
    return run(experiment, chosen, workers=workers, runtime=runtime, **more)


@functools.cache
def in_threads(algorithm: Any, policy: str = COARSE, **options: Any) -> Outcome:
    """What nothing has disturbed."""
    return train(algorithm, policy, runtime="local", **options)


def assert_same(a: Outcome, b: Outcome) -> None:
    jax.tree.map(np.testing.assert_array_equal, a.state, b.state)
    assert [r.metrics for r in a.rows] == [r.metrics for r in b.rows]
    if a.replacements == b.replacements:
        assert (a.messages, a.bytes_moved) == (b.messages, b.bytes_moved)
    else:  # what was sent again counts too
        assert a.messages <= b.messages
        assert a.bytes_moved <= b.bytes_moved
