"""A search of mctx in an actor may be cut if it is made for each environment by itself."""

from dataclasses import dataclass
from typing import Any

import jax
import pytest

from fragflow.environments import make_environment
from fragflow.errors import ReplicaError
from fragflow.graph.cut import cut
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import Deployment, named_policy

mctx = pytest.importorskip("mctx")

import fragflow as ff  # noqa: E402
from equivalence.own.muzero import MuZero  # noqa: E402


def for_all(algorithm: Any, params: Any, obs: Any, key: Any) -> Any:
    """As mctx is usually called: one key, and all environments as a batch."""
    latent = algorithm._latent(params, obs)
    prior, value = algorithm._judged(params, latent)
    root = mctx.RootFnOutput(prior_logits=prior, value=value, embedding=latent)
    found = mctx.muzero_policy(params, key, root, algorithm._imagined, algorithm.simulations)
    return found.action, found.action_weights, found.search_tree.summary().value


@dataclass(frozen=True)
class ByVmap(MuZero):
    @ff.component("actor")
    def act(self, env: Any, params: Any, obs: Any, keys: Any) -> Any:
        return jax.vmap(lambda obs, key: self._search(params, obs, key))(obs, keys)


@dataclass(frozen=True)
class ByTheFirstKey(MuZero):
    @ff.component("actor")
    def act(self, env: Any, params: Any, obs: Any, keys: Any) -> Any:
        return for_all(self, params, obs, keys[0])


@dataclass(frozen=True)
class ByOneKey(MuZero):
    @ff.component("actor")
    def act(self, env: Any, params: Any, obs: Any, keys: Any) -> Any:
        return for_all(self, params, obs, jax.random.key(0))


def divide(algorithm: Any, policy: str = "gpu-only") -> None:
    source = tracer(algorithm, make_environment("CartPole-v1"), 8)
    cut(source, named_policy(policy), Deployment(workers=2))


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        pytest.param(MuZero(), "gpu-only", marks=pytest.mark.slow),  # it is run, elsewhere
        (ByVmap(), "gpu-only"),
        pytest.param(ByVmap(), "single-learner-coarse", marks=pytest.mark.slow),
    ],
)
def test_one_search_for_each_environment(algorithm: Any, policy: str) -> None:
    divide(algorithm, policy)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (ByTheFirstKey(), "takes one environment's key for other environments"),
        (ByOneKey(), "is drawn for every environment from one shared key"),
    ],
    ids=["the first key", "one key"],
)
def test_one_key_for_all_says_what_to_write_instead(algorithm: Any, why: str) -> None:
    with pytest.raises(ReplicaError, match=rf"{why}.*env\.map\(lambda key, x: f\(key, x\[None\]\)"):
        divide(algorithm)
