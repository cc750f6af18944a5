"""Environments that look at their neighbours are found, large ones too, each only once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap

import fragflow as ff
from fragflow.environments import make_environment
from fragflow.errors import ReplicaError
from fragflow.graph.cut import cut
from fragflow.graph.probe import row_independence
from fragflow.graph.probe.graph_hash import of_programs
from fragflow.graph.probe.probe import Verdict
from fragflow.graph.tracing.trace import tracer
from fragflow.policies import Deployment, named_policy
from fragflow.run import Experiment, run
from fragflow.runtime.observer import Silent
from fragflow.runtime.promises import run_probe
from graph.toy import Drift
from graph.wrong import Small

pytestmark = [pytest.mark.probed, pytest.mark.quick]


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fragflow" / "probe"


@custom_vmap
def centred(x: jax.Array) -> jax.Array:
    return x


@centred.def_vmap
def _(size: int, _: Any, x: jax.Array) -> Any:
    return x - 0.1 * jnp.mean(x, 0), True


@custom_vmap
def after_another(x: jax.Array) -> jax.Array:
    return x


@after_another.def_vmap
def _(size: int, _: Any, x: jax.Array) -> Any:
    return 0.9 * x + 0.1 * jnp.roll(x, 1, 0), True


@custom_vmap
def if_few(x: jax.Array) -> jax.Array:
    return x


@if_few.def_vmap
def _(size: int, _: Any, x: jax.Array) -> Any:
    return (jnp.sin(x) if size < 8 else x), True


@custom_vmap
def by_itself(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


@by_itself.def_vmap
def _(size: int, _: Any, x: jax.Array) -> Any:
    return jnp.sin(x), True


def called(function: Callable[..., Any], method: Any = "expand_dims") -> Callable[..., Any]:
    def call(x: jax.Array) -> jax.Array:
        return jax.pure_callback(function, x, x, vmap_method=method)

    return call


def minus_all(x: Any) -> Any:
    return np.asarray(x - np.float32(0.1) * np.mean(x), np.float32)


BOARD = np.zeros(3, np.float32)


def by_a_board(x: Any) -> Any:
    """One after the other leaves its place in an array that is there for all."""
    BOARD[:] = 0.5 * BOARD + x
    return BOARD.copy()


LARGE = 700
TABLE = np.linspace(-1, 1, 8, dtype=np.float32)

WRONG = {
    "a rule takes a mean": centred,
    "a rule rolls": after_another,
    "a callback is given all": called(minus_all),
    "a callback is given all, copies too": called(minus_all, "broadcast_all"),
    "an array for all": called(by_a_board, "sequential"),
}
RIGHT = {
    "a rule": by_itself,
    "in turn": sequential_vmap(jnp.sin),
    "a callback": called(np.sin),
    "a callback in turn": called(minus_all, "sequential"),
    "a table": lambda x: x + jnp.asarray(TABLE)[(x[0] > 0).astype(int)],
    "its own rows": jax.vmap(lambda v: v - lax.pmean(v, "mine"), axis_name="mine"),
}


@dataclass(frozen=True)
class Looking(Drift):
    """A point that is pushed to where its neighbours are, or by what looks like it."""

    look: Callable[[Any], Any] = lambda x: x
    equations: int = 0
    first: bool = False
    """whether it looks when an episode begins, rather than in a step"""

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place, _ = super().reset(key)
        place = self.look(place) if self.first else place
        return place, place

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        for _ in range(self.equations):
            state = jnp.tanh(state)
        step = super().step(state, action, key)
        place = step.state if self.first else self.look(step.state)
        return step._replace(state=place, obs=place)


def try_apart(environment: Any) -> None:
    row_independence.try_apart(environment, row_independence.batches(environment))


@pytest.mark.parametrize(
    ("name", "first"), [*((name, False) for name in WRONG), ("a rule takes a mean", True)]
)
def test_one_that_looks_is_caught(name: str, first: bool) -> None:
    where = rf"another state\.inner after {'reset' if first else 'step'} .*test_neighbours\.py"
    with pytest.raises(ReplicaError, match=f"'drift' looks at its neighbours: .*{where}"):
        try_apart(Looking(WRONG[name], first=first))


@pytest.mark.parametrize("name", RIGHT)
def test_one_that_does_not_look_passes(name: str) -> None:
    try_apart(Looking(RIGHT[name]))


def test_games_of_several_pass() -> None:
    try_apart(make_environment("Tag", agents=4, taggers=1, neighbours=2))


@pytest.mark.parametrize(
    ("name", "equations", "words"),
    [
        ("a rule rolls", 0, "with replicas and"),
        ("a rule rolls", LARGE, "looks at its neighbours"),
        ("a callback is given all", 0, "looks at its neighbours"),
    ],
)
def test_none_is_trained_in(name: str, equations: int, words: str) -> None:
    experiment = Experiment(
        algorithm=Small(),
        environment=Looking(WRONG[name], equations),
        num_envs=8,
        total_steps=16,
    )
    with pytest.raises(ReplicaError, match=words):
        run(experiment, named_policy("gpu-only"), workers=2)


def probed(environment: Any, policy: str = "gpu-only") -> str:
    """What a run says of its probe, without the run."""
    source = tracer(Small(), environment, 8)
    fdg = cut(source, named_policy(policy), Deployment(workers=2))
    said = run_probe.tried(
        lambda: (fdg, source), [], Silent(), is_deterministic=False, is_wanted=True
    )
    return said.text


@pytest.fixture
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Verdict(states=9, leaves=3, worst=0.0)
    monkeypatch.setattr(run_probe, "probe", lambda *_, **__: verdict)


def _fails(*_: object) -> None:
    raise ValueError("no such thing")


@pytest.mark.usefixtures("nothing_else")
def test_a_large_one_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragflow.graph.probe.probe.LARGE", 40)
    said = "; environments by a stand-in, and tried apart"
    assert probed(Looking(by_itself)).endswith(f" s{said}")
    monkeypatch.setattr(row_independence, "try_apart", _fails)
    assert probed(Looking(by_itself)).endswith(f", remembered{said}")
    assert probed(Looking(by_itself), "single-learner-fine").endswith(f" s{said}")
    # Another environment is not known, and what was not tried is not remembered.
    for _ in range(2):
        other = probed(Looking(by_itself, 1))
        assert other.endswith("and could not be tried apart (ValueError: no such thing)")


@pytest.mark.usefixtures("nothing_else")
def test_small_ones_are_tried_apart_if_they_call_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probed(Looking(called(np.sin))).endswith(" s; environments tried apart")
    monkeypatch.setattr(row_independence, "try_apart", _fails)
    assert probed(Looking(by_itself)).endswith(" s")
    assert "no such thing" in probed(Looking(called(np.sin)))  # Python may have changed


def test_what_is_remembered_is_the_program_of_an_environment() -> None:
    def key(environment: Any) -> str | None:
        batches = row_independence.batches(environment)
        return of_programs(p for b in batches for p in (b.reset, b.step))

    def from_table(table: np.ndarray) -> Callable[..., Any]:
        return lambda x: x + jnp.asarray(table)[:3]

    first = key(Looking(from_table(TABLE)))
    assert first == key(Looking(from_table(TABLE.copy())))
    others = [
        key(Looking(from_table(TABLE + 1))),
        key(Looking(from_table(TABLE), 1)),
        key(Looking(from_table(TABLE), first=True)),
        key(Looking(by_itself)),
        key(Looking(centred)),
    ]
    assert len({first, *others}) == 6
    assert key(Looking(called(np.sin))) is None


def test_a_rule_that_sees_how_many_there_are_is_refused() -> None:
    """Six and three rows are alike to it; the programs that run are not."""
    try_apart(Looking(if_few))
    with pytest.raises(ReplicaError, match="how many environments are here"):
        probed(Looking(if_few, LARGE))


@pytest.mark.parametrize(
    "look",
    [lambda x: lax.pmean(x, "replica"), ff.all_mean],
    ids=["a collective of JAX's", "ours"],
)
def test_collectives_are_refused(look: Callable[..., Any]) -> None:
    with pytest.raises((NameError, ReplicaError), match=r"unbound axis name|all_mean"):
        probed(Looking(look, LARGE))
