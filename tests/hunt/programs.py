"""The hunt for wrong cuts: a drawn function within an algorithm, cut by a policy, and played.

python -m hunt.programs --count 100             draws, and says what was found
python -m hunt.programs --replay SEED:INDEX     one draw again, made small

The function stands in glue, in a component, in the body of a scan or in a branch; what it makes
goes into the parameters, a row of the state or a metric, reduced in one of the ways there are. If
the cut is accepted, one iteration of the whole and one of the replicas, from one random state and
in double precision, must give the same state and metrics.
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fragflow as ff
from fragflow.errors import FragflowError
from fragflow.graph.cut import cut
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.replicas.kinds import UNIFORM, partial, varying
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import POLICIES, Deployment
from graph.toy import Drift
from hunt.catalogue import chances, functions
from hunt.draw import Draw, fits_type
from hunt.lockstep import Lockstep, TooLongError, as_parts
from hunt.program import Program, Ref, aval
from hunt.relations import KEY, Operand, Sizes, broken

PLACES = ("glue", "component", "scan", "branch")
CLOSINGS = ("all_mean", "all_sum", "all_max", "as it is", "rows")
PLAYED = ("gpu-only", "multi-learner")
"""policies all of whose fragments have a replica for every part of the environments"""
OTHERS = ("single-learner-coarse", "central")
"""policies of which it is only seen whether the cut is made"""


PORTION = 20
"""programs after which counts are kept"""


class State(NamedTuple):
    params: Any
    env_state: Any
    obs: Any
    rows: Any


@dataclass(frozen=True)
class Drawn(ff.Algorithm):
    """An algorithm around a drawn function of observations and parameters."""

    program: Program
    place: str
    closing: str

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        env_state, timestep = env.reset(key)
        return State(jnp.ones(3), env_state, timestep.obs, jnp.zeros((env.num_envs,)))

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        keys = env.keys(clock.key)
        action = self.act(state.obs, state.params)
        env_state, timestep = env.step(state.env_state, action)
        obs, w, n = timestep.obs, state.params, env.num_envs

        def call(obs: Any, w: Any) -> Any:
            return self.closed(obs, w, keys, n)

        if self.place == "component":
            change, rows = self.learn(obs, w, keys)
        elif self.place == "scan":
            (_, (change, rows)), _ = lax.scan(
                lambda c, _: ((c[0], call(c[0], w)), None),
                (obs, (jnp.zeros(()), jnp.zeros(n))),
                None,
                length=2,
            )
        elif self.place == "branch":
            change, rows = lax.cond(w.sum() > -1e6, call, lambda o, w: (w.sum(), o[:, 0]), obs, w)
        else:
            change, rows = call(obs, w)
        params = self.update(w, change)
        return State(params, env_state, obs, rows), {"change": change}

    def closed(self, obs: Any, w: Any, keys: Any, n: int) -> tuple[Any, Any]:
        """What the drawn function makes, as a scalar and as a row for each environment."""
        made = self.program.run(given(obs, w, keys), n)[-1]
        if jnp.issubdtype(made.dtype, jax.dtypes.extended):
            made = jax.random.key_data(made)
        made = made.real.astype(jnp.float32)
        if self.closing == "rows":
            rows = made.reshape(n, -1).sum(1)
            return ff.all_mean(jnp.mean(rows)), jnp.tanh(rows)
        none = obs[:, 0]
        if self.closing == "all_mean":
            return ff.all_mean(jnp.mean(made)), none
        if self.closing == "all_sum":
            return ff.all_sum(jnp.sum(made)), none
        if self.closing == "all_max":
            return ff.all_max(jnp.max(made)), none
        return jnp.sum(made), none

    @ff.component("actor")
    def act(self, obs: Any, w: Any) -> Any:
        return (obs @ w > 0).astype(jnp.int32)

    @ff.component("learner.gradient")
    def learn(self, obs: Any, w: Any, keys: Any) -> Any:
        return self.closed(obs, w, keys, obs.shape[0])

    @ff.component("learner.update")
    def update(self, w: Any, change: Any) -> Any:
        return w - 0.1 * change


def given(obs: Any, w: Any, keys: Any) -> list[Any]:
    """The values that a drawn function starts from, in the order of `OPERANDS`."""
    return [
        obs,
        w,
        obs[:, 0],
        (obs[:, 1] > 0).astype(jnp.int32),
        obs[:, :, None] * obs[:, None, :],
        keys,
        jnp.mean(obs, 0),
        jnp.sum(obs, 0),
        jnp.max(obs, 0),
        jnp.sum(w),
    ]


def operands(n: int) -> list[Operand]:
    """What these values are."""
    rows = varying(0)
    return [
        Operand(rows, (n, 3), "float32"),
        Operand(UNIFORM, (3,), "float32"),
        Operand(rows, (n,), "float32"),
        Operand(rows, (n,), "int32"),
        Operand(rows, (n, 3, 3), "float32"),
        Operand(rows, (n,), KEY),
        Operand(partial("", 0), (3,), "float32"),
        Operand(partial("", 1), (3,), "float32"),
        Operand(partial("", 0, "max"), (3,), "float32"),
        Operand(UNIFORM, (), "float32"),
    ]


class Unavailable(Exception):
    """No value of the algorithm has the type that a function needs."""


class InAlgorithm(Draw):
    """Draws from the values of an algorithm: there are no other operands."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes):
        super().__init__(rng)
        self.sizes = sizes
        for operand in operands(sizes.local):
            self.made.append(operand)
            self.avals.append((aval(operand, sizes, True), aval(operand, sizes, False)))
        self.start = len(self.made)

    def array(self, want: str = "number") -> Ref:
        if self._first is None and len(self.made) == self.start and want != "key":
            self._first = self.one_of((0, 0, 0, 1, 2, 4, 6, 7, 8))
            return Ref(self._first or 0)
        return super().array(want)

    def fresh(
        self,
        want: str = "number",
        shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        dtype: str = "",
        rank: int | None = None,
    ) -> Ref:
        fits = [
            i
            for i, (whole, local) in enumerate(self.avals)
            if fits_type(whole.dtype, want)
            and (shapes is None or (whole.shape, local.shape) == shapes)
            and (rank is None or len(whole.shape) == rank)
        ]
        if not fits:
            raise Unavailable
        return Ref(self.one_of(fits))

    def whole_program(self) -> Program:
        """All operands stay, since the algorithm makes them by position."""
        return Program(
            self.sizes,
            tuple(o for o in self.made[: self.start] if o is not None),
            tuple(self.steps),
            tuple(self.counts),
        )


@dataclass(frozen=True)
class Case:
    """An algorithm and how it is cut."""

    algorithm: Drawn
    policy: str
    sizes: Sizes

    def __str__(self) -> str:
        calls = "\n".join(str(self.algorithm.program).splitlines()[1:])
        place, closing = self.algorithm.place, self.algorithm.closing
        return (
            f"{calls}\nin a {place}, closed by {closing!r}; {self.policy}, "
            f"{self.sizes.whole} environments, {self.sizes.replicas} replicas"
        )


def drawn(seed: int, index: int) -> Case | None:
    rng = np.random.default_rng([seed, index, 3])
    sizes = Sizes(int(rng.choice((3, 5))), int(rng.choice((2, 3, 4))))
    draw = InAlgorithm(rng, sizes)
    names, odds = chances()
    wanted, made = int(rng.integers(1, 3)), 0
    for _ in range(20):
        name = names[int(rng.choice(len(names), p=odds))]
        if not name.startswith("hunt.forms.all_"):
            with suppress(Unavailable):
                made += draw.attempt(name, functions()[name])
        if made == wanted:
            break
    if not made:
        return None
    program = draw.whole_program()
    place, closing = str(rng.choice(PLACES)), str(rng.choice(CLOSINGS))
    policy = str(rng.choice((*PLAYED, *PLAYED, *OTHERS)))
    return Case(Drawn(program, place, closing), policy, sizes)


@dataclass(frozen=True)
class Played:
    """What became of a case."""

    outcome: str
    """refused, accepted, played, failed or wrong"""
    why: str = ""


def judge(case: Case, seed: Sequence[int]) -> Played:
    """Cuts, and plays what is accepted."""
    source = tracer(case.algorithm, Drift(), case.sizes.whole)
    try:
        source.at(source.extent)
    except Exception as error:  # the drawn function does not fit after all
        return Played("failed", f"{type(error).__name__}: {error}")
    try:
        deployment = Deployment(workers=case.sizes.replicas)
        cut(source, POLICIES[case.policy], deployment)
    except FragflowError as error:
        return Played("refused", str(error))
    except Exception as error:
        return Played("wrong", f"the compiler fails: {type(error).__name__}: {error}")
    if case.policy not in PLAYED:
        return Played("accepted")
    for k in range(2):
        try:
            difference = play(source, case.sizes, np.random.default_rng([*seed, k]))
        except TooLongError as error:
            return Played("failed", str(error))
        if difference:
            return Played("wrong", difference)
    return Played("played")


def play(source: Tracer, sizes: Sizes, rng: np.random.Generator) -> str:
    """One iteration whole and in parts, from a random state; the first leaf that differs."""
    whole, local = source.at(source.extent), source.at(Extent(sizes.local))
    ins = [v.aval for v in whole.closed.jaxpr.invars], [v.aval for v in local.closed.jaxpr.invars]
    args, parts = [], []
    state = len(whole.state_labels)
    for i, (a, b) in enumerate(zip(*ins, strict=True)):
        value = _random(a, rng)
        if i == state + 1:
            value = np.arange(sizes.whole, dtype=np.int32)
        elif i >= state and not a.shape:
            value = np.asarray(3, a.dtype)  # of the clock
        args.append(value)
        parts.append(as_parts(value, sizes.replicas, a.shape != b.shape))
    player = Lockstep(double=True)
    one = player.run(whole.closed, [args])[0]
    many = player.run(local.closed, [list(p) for p in zip(*parts, strict=True)])
    tolerance = 1e-9 if not player.rounded else 1e-3
    labels = [*(f"state {x}" for x in whole.state_labels), *whole.metric_labels, *whole.episodes]
    for i, (label, w) in enumerate(zip(labels, one, strict=True)):
        ls = [m[i] for m in many]
        kind = UNIFORM if np.shape(w) == np.shape(ls[0]) else varying(0)
        why = broken(kind, w, ls, sizes, tolerance)
        if why:
            return f"{label}: {why}"
    return ""


def _random(aval: Any, rng: np.random.Generator) -> Any:
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(
            jnp.asarray(rng.integers(0, 2**32, (*aval.shape, 2), dtype=np.uint32))
        )
    if aval.dtype.kind == "b":
        return rng.integers(0, 2, aval.shape).astype(bool)
    if aval.dtype.kind in "iu":
        return rng.integers(0, 5, aval.shape).astype(aval.dtype)
    return rng.normal(size=aval.shape)


@dataclass
class Found:
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def drawn(self) -> int:
        return self.outcomes.total()


def hunt(
    seed: int, indices: Iterator[int], *, seconds: float = float("inf"), found: Found | None = None
) -> Found:
    found = found or Found()
    end = time.process_time() + seconds
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for index in indices:
            if time.process_time() > end:
                break
            case = drawn(seed, index)
            if case is None:
                found.outcomes["nothing drawn"] += 1
                continue
            result = judge(case, [seed, index])
            found.outcomes[result.outcome] += 1
            if result.outcome == "wrong":
                found.wrong[f"{seed}:{index}"] = explained(*shrunk(case, result, [seed, index]))
    return found


def shrunk(case: Case, result: Played, seed: Sequence[int]) -> tuple[Case, Played]:
    """Fewer functions, a plainer place and policy, as long as it stays wrong."""
    for candidate in _smaller(case):
        found = judge(candidate, seed)
        if found.outcome == "wrong":
            return shrunk(candidate, found, seed)
    return case, result


def _smaller(case: Case) -> Iterator[Case]:
    algorithm = case.algorithm
    program = algorithm.program
    if len(program.steps) > 1:
        fewer = replace(program, steps=program.steps[:-1], counts=program.counts[:-1])
        yield replace(case, algorithm=replace(algorithm, program=fewer))
    if algorithm.place != "glue":
        yield replace(case, algorithm=replace(algorithm, place="glue"))
    if case.policy != "gpu-only":
        yield replace(case, policy="gpu-only")
    if case.sizes.replicas > 2:
        yield replace(case, sizes=Sizes(case.sizes.local, 2))


def explained(case: Case, result: Played) -> str:
    return f"{case}\naccepted, but {result.why}"


def report(
    found: Found, say: Callable[[str], str] = "python -m hunt.programs --replay {}".format
) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in found.outcomes.most_common())
    lines = [f"{say(number)}\n{text}\n" for number, text in found.wrong.items()]
    lines.append(f"{found.drawn} programs: {counts}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--replay", metavar="SEED:INDEX")
    parser.add_argument("--progress", type=Path, help="a file to go on from, and to keep counts in")
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    if options.replay:
        seed, index = map(int, options.replay.split(":"))
        found = hunt(seed, iter([index]))
        print(drawn(seed, index), report(found), sep="\n\n")
        return 0
    file = options.progress
    kept = json.loads(file.read_text()) if file and file.exists() else {}
    found = Found(Counter(kept.get("outcomes", {})), kept.get("wrong", {}))
    begin = time.process_time()
    while found.drawn < options.count:
        last = min(found.drawn + PORTION, options.count)
        left = options.seconds - (time.process_time() - begin)
        hunt(options.seed, iter(range(found.drawn, last)), seconds=left, found=found)
        if file:
            file.write_text(json.dumps({"outcomes": found.outcomes, "wrong": found.wrong}))
        if found.drawn < last:
            break
        jax.clear_caches()
    print(report(found))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
