"""Random training loops: a small language whose programs are legal under any placement.

A program is a list of instructions, each a tuple of small numbers that pick operands from a pool of
values. Values are per environment (`V`, `[n, 2]`) or shared (`U`, `[2]`); the only way from V to U
is a reduction with all_sum or all_max, as in real algorithms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fragflow as ff

COMPONENTS = ("a", "b", "c", "d.x", "d.y")
TYPES = ("number", "bool", "uint8")


class Item(NamedTuple):
    kind: str
    array: Any


@dataclass(frozen=True)
class Step:
    code: str
    picks: tuple[int, int, int]
    body: tuple["Step", ...] = ()


def draws(step: Step) -> bool:
    """Whether random numbers are drawn in `step`."""
    return step.code == "draw" or any(draws(inner) for inner in step.body)


def steps(depth: int) -> st.SearchStrategy[tuple[Step, ...]]:
    picks = st.tuples(*[st.integers(0, 7)] * 3)
    flat = st.builds(
        Step,
        st.sampled_from(
            ["component"] * 4
            + ["glue", "glue", "reduce", "reducing component", "draw", "constant", "cast", "pair"]
        ),
        picks,
    )
    if depth == 0:
        return st.lists(flat, min_size=1, max_size=4).map(tuple)
    nested = st.builds(Step, st.just("loop"), picks, steps(depth - 1))
    return st.lists(st.one_of(flat, flat, nested), min_size=1, max_size=5).map(tuple)


@dataclass(frozen=True)
class Arithmetic:
    """Operations on numbers of one type."""

    dtype: str
    operations: tuple[Callable[[Any, Any], Any], ...]


INTEGERS = Arithmetic(
    "int32",
    (
        lambda x, y: x * 3 + y,
        lambda x, y: jnp.where(x > y, x - 7, y ^ x),
        lambda x, y: jnp.maximum(x, y) - (x >> 1),
        lambda x, y: jnp.flip(x, -1) + 5 * y,
        lambda x, y: lax.while_loop(lambda s: s[1] < 2, lambda s: (s[0] + y, s[1] + 1), (x, 0))[0],
        lambda x, y: lax.cond(jnp.asarray(True), lambda: x + y, lambda: x - y),
    ),
)
# All of them are continuous, and no float becomes a bool or an integer: a difference by rounding
# must stay one.
FLOATS = Arithmetic(
    "float32",
    (
        lambda x, y: jnp.tanh(x) + 0.5 * y,
        lambda x, y: jnp.where(x > y, jnp.sin(x - y), 0.3 * (y - x)),
        lambda x, y: jnp.maximum(x, y) * 0.7,
        lambda x, y: jnp.flip(x, -1) * 0.9 - jnp.tanh(y),
    ),
)


class NoEnvironment:
    """Environments without a world: the programs bring their own values."""

    name = "nothing"
    observation = ff.Box(shape=(1,))
    action = ff.Discrete(n=2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> ff.Step:
        no = jnp.zeros((), bool)
        return ff.Step(state, state, jnp.float32(0), no, no)


class State(NamedTuple):
    params: Any
    rows: Any
    kept: Any


@dataclass(frozen=True)
class RandomLoop(ff.Algorithm):
    program: tuple[Step, ...] = ()
    arithmetic: Arithmetic = INTEGERS

    def init(self, env: ff.Environments, key: jax.Array) -> State:
        dtype = self.arithmetic.dtype
        keys = env.keys(key)
        bits = jax.vmap(lambda k: jax.random.randint(k, (2,), 0, 9))(keys)
        return State(
            params={"p": jnp.arange(2, dtype=dtype), "q": jnp.ones(2, dtype) * 3},
            rows={"v": bits.astype(dtype), "small": bits.astype("uint8"), "on": bits > 4},
            kept={"key": jax.random.key_data(keys), "never changed": jnp.full((2,), 7, dtype)},
        )

    def step(self, env: ff.Environments, state: State, clock: ff.Clock) -> tuple[State, Any]:
        pool = [
            Item("U", state.params["p"]),
            Item("V", state.rows["v"]),
            Item("V", state.rows["small"]),
            Item("V", state.rows["on"]),
            Item("U", state.params["q"]),
            Item("U", state.kept["never changed"]),
        ]
        pool = self.run(env, self.program, pool, clock.key)
        dtype = self.arithmetic.dtype
        uniform = [self.number(i.array) for i in pool if i.kind == "U"]
        varying = [self.number(i.array) for i in pool if i.kind == "V"]
        new = State(
            params={"p": uniform[-1], "q": uniform[len(uniform) // 2]},
            rows={
                "v": varying[-1],
                "small": self.like(varying[len(varying) // 2], state.rows["small"]),
                "on": self.like(varying[-1], state.rows["on"]),
            },
            kept=state.kept,
        )
        return new, {"last": uniform[-1].sum().astype(dtype)}

    def run(
        self, env: ff.Environments, program: tuple[Step, ...], pool: list[Item], key: jax.Array
    ) -> list[Item]:
        pool = list(pool)
        for number, step in enumerate(program):
            # Random numbers are slow to compile: keys are made only where they are drawn from.
            own = jax.random.fold_in(key, number) if draws(step) else key
            pool.append(self.one(env, step, pool, own))
            if step.code == "loop":
                last = pool.pop()
                pool += last.array
        return pool

    def one(self, env: ff.Environments, step: Step, pool: list[Item], key: jax.Array) -> Item:
        i, j, k = step.picks
        x, y = pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]
        kind = "V" if "V" in (x.kind, y.kind) else "U"
        operations = self.arithmetic.operations
        operation = operations[(i + j + k) % len(operations)]
        match step.code:
            case "component":
                call = ff.component(COMPONENTS[k % len(COMPONENTS)])(self.apply)
                return Item(kind, call(operation, x.array, y.array))
            case "pair":
                call = ff.component(COMPONENTS[k % len(COMPONENTS)])(self.apply_two)
                return Item(kind, call(operation, x.array, y.array))
            case "glue":
                return Item(kind, self.apply(operation, x.array, y.array))
            case "cast":
                to = "number" if x.array.dtype == "float32" else TYPES[k % len(TYPES)]
                array = self.number(x.array)
                return Item(
                    x.kind,
                    array if to == "number" else array > 1 if to == "bool" else array.astype(to),
                )
            case "constant":
                array = np.asarray([k, 3], self.arithmetic.dtype)
                return Item(x.kind, self.number(x.array) + array)
            case "draw":
                draw = jax.vmap(lambda one: jax.random.randint(one, (2,), 0, 5))
                return Item("V", self.number(draw(env.keys(key))))
            case "reduce":
                return self.reduced(x, k)
            case "reducing component":
                call = ff.component(COMPONENTS[k % len(COMPONENTS)])(self.reduced_array)
                return Item("U", call(x.array, k)) if x.kind == "V" else x
            case "loop":
                return Item("", self.loop(env, step, pool, key))
        raise AssertionError(step.code)

    def loop(
        self, env: ff.Environments, step: Step, pool: list[Item], key: jax.Array
    ) -> list[Item]:
        i, j, k = step.picks
        carried = [pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]]
        length = 1 + k % 3
        kinds: list[str] = []

        def body(carry: Any, xs: Any) -> tuple[Any, Any]:
            sliced, one_key = xs
            inner = [Item(c.kind, a) for c, a in zip(carried, carry, strict=True)]
            inner = self.run(env, step.body, [*pool, *inner, Item("U", sliced)], one_key)
            after = []
            for c, a in zip(carried, carry, strict=True):
                same = [n for n in inner[len(pool) :] if n.kind == c.kind]
                new = self.number(same[-1].array) if same else a
                # Now and then a carry is handed on unchanged.
                after.append(a if (i + k) % 4 == 0 else self.like(new, a))
            kinds[:] = [n.kind for n in inner[-2:]]
            return tuple(after), tuple(n.array for n in inner[-2:])

        keys = jax.random.split(key, length) if draws(step) else jnp.zeros((length, 2), "uint32")
        xs = (jnp.arange(2 * length, dtype=self.arithmetic.dtype).reshape(length, 2), keys)
        carry, ys = lax.scan(body, tuple(c.array for c in carried), xs, reverse=k % 2 == 1)
        out = [Item(c.kind, a) for c, a in zip(carried, carry, strict=True)]
        return [*out, *(Item(kind, y[-1]) for kind, y in zip(kinds, ys, strict=True))]

    def number(self, array: Any) -> Any:
        return array.astype(self.arithmetic.dtype)

    def like(self, array: Any, old: Any) -> Any:
        """`array` with the type of `old`, or something of that type in its place."""
        if array.dtype == "float32" and old.dtype != "float32":
            return ~old if old.dtype == bool else old * 3 + 1
        return array > 1 if old.dtype == bool else array.astype(old.dtype)

    def apply(self, operation: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        x, y = self.number(x), self.number(y)
        x, y = jnp.broadcast_arrays(x, y)
        return operation(x, y)

    def apply_two(self, operation: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        first = self.apply(operation, x, y)
        return first + self.apply(operation, y, first)

    def reduced(self, x: Item, k: int) -> Item:
        return Item("U", self.reduced_array(x.array, k)) if x.kind == "V" else x

    def reduced_array(self, array: Any, k: int) -> Any:
        array = self.number(array)
        if self.arithmetic.dtype == "float32":
            return ff.all_mean(array.mean(0))
        return ff.all_sum(array.sum(0)) if k % 2 else ff.all_max(array.max(0))


def placements() -> st.SearchStrategy[ff.Policy]:
    """Any assignment of the components to one to four fragments of one to four replicas."""

    def policy(owners: tuple[int, ...], counts: tuple[int, ...]) -> ff.Policy:
        places = tuple(
            ff.Place(
                name=f"f{f}",
                components=(),
                optional=tuple(c for c, o in zip(COMPONENTS, owners, strict=True) if o == f),
                replicas=counts[f],
            )
            for f in range(4)
        )
        return ff.Policy(name="random", places=tuple(p for p in places if p.optional))

    owners = st.tuples(*[st.integers(0, 3)] * len(COMPONENTS))
    counts = st.tuples(*[st.sampled_from([1, 1, 2, 4])] * 4)
    return st.builds(policy, owners, counts)
