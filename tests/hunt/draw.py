"""Draws programs: operands of every kind, and arguments that fit the functions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow.graph.replicas.kinds import UNIFORM, ZERO, Kind, partial, varying
from hunt.program import Program, Ref, Size, Step, aval, renumbered, step_refs, step_results
from hunt.relations import KEY, Operand, Sizes

DTYPES = ("float64", "int32", "bool", "float32", "complex128", "bfloat16", "uint8", "int64")
ODDS = (0.74, 0.12, 0.04, 0.03, 0.02, 0.02, 0.01, 0.02)
INTEGERS = (
    "n",
    "n",
    "2 * n",
    "n - 1",
    "n // 2",
    "n % 3",
    "int(n > {local})",
    "3 - int(n > {local})",
    "-n",
    "n + 1",
    "{whole} // n",
)
FLOATS = (
    "float(n)",
    "1.0 / n",
    "n * n * 1.0",
    "n ** 0.5",
    "float(n > {local})",
    "0.5 * n",
    "-1.0 / n",
)


class Draw:
    """One program in the making."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.sizes = Sizes(int(rng.integers(2, 5)), int(rng.integers(2, 4)))
        self.made: list[Operand | None] = []
        """for each value the operand that it is, or None for a step's result"""
        self.avals: list[tuple[Any, Any]] = []
        """for each value its type in the whole and in a replica"""
        self.steps: list[Step] = []
        self.counts: list[int] = []
        self._first: int | None = None
        """the first array of the step that is being drawn"""

    # Small choices.

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int = 0, high: int = 4) -> Any:
        if self.chance(0.12):
            return self._size(INTEGERS)
        return int(self.rng.integers(low, high))

    def number(self) -> Any:
        if self.chance(0.15):
            return self._size(FLOATS)
        return self.one_of((0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 0.3))

    def test(self) -> Any:
        """A truth value that may depend on how many environments there are."""
        return Size(f"n > {self.sizes.local}") if self.chance(0.4) else self.chance(0.5)

    def length(self) -> Any:
        return Size(self.one_of(("n", "n", "2 * n", "3 * n", "n - 1"))) if self.chance(0.6) else 3

    def _size(self, options: Sequence[str]) -> Size:
        return Size(self.one_of(options).format(local=self.sizes.local, whole=self.sizes.whole))

    def axis(self) -> int:
        rank = len(self._shapes(self._first)[0]) if self._first is not None else 1
        return int(self.rng.integers(-rank, rank)) if rank else 0

    def dtype(self) -> str:
        options = (
            "float64",
            "float32",
            "int32",
            "int16",
            "bool",
            "bfloat16",
            "uint8",
            "complex128",
        )
        return self.one_of(options)

    # Arrays.

    def array(self, want: str = "number") -> Ref:
        """The first array of a step, or one that fits it."""
        fits = [i for i, (whole, _) in enumerate(self.avals) if fits_type(whole.dtype, want)]
        if self._first is None:
            if fits and self.chance(0.8):
                ref = Ref(fits[-1] if self.chance(0.8) else self.one_of(fits))
            else:
                ref = self.fresh(want)
            self._first = ref.index
            return ref
        shapes, dtype = self._shapes(self._first), self.avals[self._first][0].dtype
        same = [i for i in fits if self._shapes(i) == shapes]
        if same and self.chance(0.35):
            return Ref(self.one_of(same))
        luck = self.rng.random()
        drop = 0 if luck < 0.7 else len(shapes[0]) if luck < 0.85 else 1
        like = shapes[0][drop:], shapes[1][drop:]
        return self.fresh(want, like, dtype_name(dtype))

    def matrix(self, rank: int = 2, want: str = "float") -> Ref:
        """An array of at least so many axes."""
        fits = [
            i
            for i, (whole, _) in enumerate(self.avals)
            if fits_type(whole.dtype, want) and len(whole.shape) >= rank
        ]
        if fits and self.chance(0.7):
            self._first = fits[-1]
            return Ref(fits[-1])
        ref = self.fresh(want, rank=rank)
        self._first = self._first if self._first is not None else ref.index
        return ref

    def square(self) -> Ref:
        """Matrices of three rows and columns, perhaps one for each environment."""
        local = (self.sizes.local, 3, 3) if self.chance(0.6) else (3, 3)
        whole = (self.sizes.whole, 3, 3) if len(local) == 3 else local
        ref = self.fresh("float", (whole, local), "float64")
        self._first = ref.index
        return ref

    def places(self) -> Ref:
        """Integers to index with."""
        luck = self.rng.random()
        local: tuple[int, ...] = ()
        if luck < 0.6:
            local = (self.sizes.local,) if luck < 0.35 else (2,)
        whole = tuple(self.sizes.replicas * d if luck < 0.35 else d for d in local)
        return self.fresh("int", (whole, local), "int32")

    def places_or(self) -> Any:
        """An index: a number, or integers that are a value."""
        return self.places() if self.chance(0.6) else self.integer(0, 3)

    def keys(self) -> Ref:
        many = self.chance(0.5)
        local = (self.sizes.local,) if many else ()
        whole = (self.sizes.whole,) if many else ()
        return self.fresh("key", (whole, local), KEY)

    def rows(self) -> Ref:
        """An array that has a row for each environment first."""
        tail = (3,) * int(self.rng.integers(1, 3))
        shapes = (self.sizes.whole, *tail), (self.sizes.local, *tail)
        ref = self.fresh("float", shapes, "float64")
        self._first = ref.index
        return ref

    def row_places(self) -> Ref:
        shapes = (self.sizes.whole,), (self.sizes.local,)
        return self.fresh("int", shapes, "int32")

    def vector(self) -> Ref:
        return self.fresh("float", ((3,), (3,)), "float64")

    def arrays(self) -> list[Ref]:
        return [self.array() for _ in range(int(self.rng.integers(1, 4)))]

    def fresh(
        self,
        want: str = "number",
        shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        dtype: str = "",
        rank: int | None = None,
    ) -> Ref:
        """A new operand."""
        if shapes is None:
            shapes = self._new_shapes(int(self.rng.integers(0, 4)) if rank is None else rank)
        if not dtype:
            dtype = str(self.rng.choice(DTYPES, p=ODDS))
        if not fits_type(dtype if dtype == KEY else np.dtype(dtype), want):
            dtype = {"int": "int32", "key": KEY, "bool": "bool"}.get(want, "float64")
        kind = self._kind(shapes, dtype)
        style = self.one_of(("normal", "normal", "positive", "wide"))
        operand = Operand(kind, shapes[1], dtype, style)
        self.made.append(operand)
        self.avals.append((aval(operand, self.sizes, True), aval(operand, self.sizes, False)))
        return Ref(len(self.made) - 1)

    def _new_shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        local = [
            int(self.rng.choice((1, 2, 3, 4), p=(0.08, 0.25, 0.55, 0.12))) for _ in range(rank)
        ]
        whole = list(local)
        if rank and self.chance(0.6):
            axis = int(self.rng.integers(rank))
            local[axis] = self.sizes.local * int(self.rng.choice((1, 2, 3), p=(0.75, 0.15, 0.1)))
            whole[axis] = local[axis] * self.sizes.replicas
        return tuple(whole), tuple(local)

    def _kind(self, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> Kind:
        whole, local = shapes
        luck, is_number = self.rng.random(), dtype not in (KEY, "bool")
        sized = [i for i, (x, y) in enumerate(zip(whole, local, strict=True)) if x != y]
        if sized:
            return self._varying(sized[0], local[sized[0]] // self.sizes.local, luck, is_number)
        if not is_number or luck < 0.35:
            return UNIFORM
        if luck < 0.42:
            return ZERO
        if luck < 0.55:
            return replace(UNIFORM, degree=int(self.rng.choice((1, 1, -1, 2))))
        if luck < 0.85 or dtype == "complex128":
            return partial("", degree=int(self.rng.choice((0, 0, 1, 1, 2))))
        return partial("", degree=0, reduction=self.one_of(("max", "min")))

    def _varying(self, axis: int, per: int, luck: float, is_number: bool) -> Kind:
        outer = self.one_of([d for d in range(1, per + 1) if per % d == 0] or [1])
        kind = varying(axis, outer=outer, inner=per // outer)
        if is_number and luck < 0.12:
            return replace(kind, outer=1, inner=per, flexible=True)
        if is_number and luck < 0.17:
            return replace(kind, zero=True)
        if is_number and luck < 0.27:
            return replace(kind, degree=int(self.rng.choice((1, -1))))
        return kind

    def _shapes(self, index: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        whole, local = self.avals[index or 0]
        return tuple(whole.shape), tuple(local.shape)

    # Steps.

    def attempt(self, function: str, arguments: Callable[["Draw"], Any]) -> bool:
        """Adds a call, if the function takes what was drawn for it, with all and with some."""
        before = len(self.made)
        self._first = None
        args, kwargs = arguments(self)
        step = Step(function, tuple(args), tuple(kwargs.items()))
        try:
            wholes = self._types(step, self.sizes.whole, 0)
            locals_ = self._types(step, self.sizes.local, 1)
        except Exception:  # of any class: JAX says in many ways that arguments do not fit
            wholes, locals_ = [], []
        fits = wholes and len(wholes) == len(locals_) <= 12
        if not fits or not all(_is_like(a, b) for a, b in zip(wholes, locals_, strict=True)):
            del self.made[before:], self.avals[before:]
            return False
        self.made += [None] * len(wholes)
        self.avals += zip(wholes, locals_, strict=True)
        self.steps.append(step)
        self.counts.append(len(wholes))
        return True

    def _types(self, step: Step, n: int, which: int) -> list[Any]:
        read = sorted(set(step_refs(step)))
        given = [self.avals[i][which] for i in read]

        def call(*args: Any) -> list[Any]:
            pool: list[Any] = [None] * len(self.avals)
            for i, a in zip(read, args, strict=True):
                pool[i] = a
            return step_results(step, pool, n)

        return jax.eval_shape(call, *given)

    def program(self) -> Program:
        """What was drawn, with operands first and those left out that nothing reads."""
        used = {i for step in self.steps for i in step_refs(step)}
        given = [i for i, o in enumerate(self.made) if o is not None and i in used]
        results = [i for i, o in enumerate(self.made) if o is None]
        number = {old: new for new, old in enumerate([*given, *results])}
        return Program(
            self.sizes,
            tuple(o for i in given if (o := self.made[i]) is not None),
            tuple(renumbered(step, number.__getitem__) for step in self.steps),
            tuple(self.counts),
        )


def _is_like(a: Any, b: Any) -> bool:
    small = all(jnp.size(x) <= 4096 for x in (a, b))
    return a.ndim == b.ndim and a.dtype == b.dtype and small and a.size > 0 and b.size > 0


def fits_type(dtype: Any, want: str) -> bool:
    is_key = dtype == KEY or jnp.issubdtype(dtype, jax.dtypes.extended)
    if want == "key" or is_key:
        return want == "key" and is_key
    if want == "float":
        return bool(jnp.issubdtype(dtype, jnp.floating))
    if want == "int":
        return bool(jnp.issubdtype(dtype, jnp.integer))
    if want == "bool":
        return np.dtype(dtype).kind == "b"
    return True


def dtype_name(dtype: Any) -> str:
    return KEY if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).name
